"""Frames between a pool and one worker, over a socket pair that only the two of them hold.

    magic "SHOA" · kind · env id · length · payload

Neither side ever blocks on a full socket: while it cannot send, it reads, so two large messages that cross each
other cannot deadlock. A frame that is not one of ours is refused before its payload is looked at.

The pool's side may be interrupted between any two lines, and continue later. So bytes go from the socket to where they
are kept in one call; frames are numbered, so that making one twice does not duplicate it; and a frame is kept until its
reader asks for the next.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from enum import IntEnum
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = struct.Struct("<4sBiQ")
_MAGIC = b"SHOA"
_MAX_PAYLOAD_BYTES = 2**34
_READ_BYTES = 1 << 16  # Python allocates these for every read; larger blocks would come from the system each time
_SLICE_S = 0.1
_WHOLE_BYTES = 4096  # up to this size, the system sends all or nothing


class Kind(IntEnum):
    """What a frame carries."""

    BUILT = 1  # worker: one env is built
    READY = 2  # worker: all envs are built or have failed; their specs
    ATTACH = 3  # pool: the memory layout
    REQUESTS = 4  # pool: what commands need beyond their rows
    EXTRAS = 5  # worker: what rows hold beyond their columns
    VALUE = 6  # worker: the answer to a call
    FAULT = 7  # worker: an env failed
    FORM = 8  # worker: a form that infos in slips may have from now on


class Frame(NamedTuple):
    """One message."""

    kind: Kind
    env_id: int
    payload: bytes


class WireError(ShoalError, OSError):
    """The other side is gone."""


class FrameError(WireError):
    """One side has sent something that is not a frame, or a frame that does not belong there."""


class Channel:
    """One end of the socket pair.

    Attributes:
        num_received: How many frames ``receive`` has returned.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.setblocking(False)
        self._receive_some = partial(end.recv, _READ_BYTES)
        self._is_torn = False
        self._reading = threading.Lock()
        self._chunks: deque[bytes] = deque()
        self._rest = b""
        self._least = _HEADER.size
        self._frames: dict[int, Frame] = {}
        self._num_frames = 0
        self.num_received = 0
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, kind: Kind, env_id: int, payload: bytes, check: Callable[[], None]) -> None:
        """Send one frame; ``check`` is called while waiting and may raise to give up.

        Raises:
            WireError: If the other side is gone.
            FrameError: If an interrupt has cut off an earlier frame, so that the other side has got only part of it.
        """
        if self._is_torn:
            raise FrameError(0, "an interrupt has cut off what it was being sent")
        data = memoryview(_HEADER.pack(_MAGIC, kind, env_id, len(payload)) + payload)
        self._is_torn = len(data) > _WHOLE_BYTES
        while data:
            try:
                data = data[self.socket.send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait_writable(check)
            except OSError as error:
                raise WireError(error.errno, "the other side of the channel is gone") from error
        self._is_torn = False

    def _wait_writable(self, check: Callable[[], None]) -> None:
        both = select.poll()
        both.register(self.socket, select.POLLIN | select.POLLOUT)
        for _, events in both.poll(_SLICE_S * 1000):
            if events & select.POLLIN:
                self._read()
        check()

    def receive(self, timeout_s: float | None) -> Frame | None:
        """The next frame, or None if none came in time.

        Raises:
            WireError: If the other side is gone.
            FrameError: If what it sent is not a frame.
        """
        frame = self.frame(self.num_received, timeout_s)
        if frame is not None:
            self.num_received += 1
            self.forget(frame)
        return frame

    def forget(self, frame: Frame) -> None:
        """Let go of a frame, which may be large, and of those before it: nobody will ask for them again."""
        for number, kept in list(self._frames.items()):  # a copy, because another thread may be adding frames
            del self._frames[number]
            if kept is frame:
                break

    def frame(self, number: int, timeout_s: float | None) -> Frame | None:
        """The frame with this number, counted from 0, or None if it did not come in time.

        Raises:
            WireError: If the other side is gone.
            FrameError: If what it sent is not a frame.
        """
        end = None if timeout_s is None else monotonic() + timeout_s
        while number not in self._frames:
            self._read()  # without polling first: the frame has almost always arrived already
            if number in self._frames:
                break
            left = _SLICE_S if end is None else min(_SLICE_S, end - monotonic())
            if left < 0:
                return None
            # In slices, because a thread that waits to send may read the frame that this one waits for.
            self._poll.poll(left * 1000)
        return self._frames[number]

    def _read(self) -> None:
        with self._reading:
            is_gone = False
            try:
                self._chunks.extend(iter(self._receive_some, b""))
                is_gone = True
            except BlockingIOError:
                pass
            except OSError as error:
                raise WireError(error.errno, "the other side of the channel is gone") from error
            had = self._num_frames
            self._split()
            if is_gone and self._num_frames == had:
                raise WireError(0, "the other side of the channel is gone")

    def _split(self) -> None:
        if len(self._rest) + sum(map(len, self._chunks)) < self._least:
            return  # or a long frame would be put together anew with each part that arrives
        incoming, size = b"".join((self._rest, *self._chunks)), _HEADER.size
        count, start, least = self._num_frames, 0, size
        while len(incoming) - start >= size:
            magic, kind, env_id, length = _HEADER.unpack_from(incoming, start)
            if magic != _MAGIC or length > _MAX_PAYLOAD_BYTES or kind not in Kind._value2member_map_:
                raise FrameError(0, f"not a shoal frame: {incoming[start : start + size]!r}")
            if len(incoming) - start - size < length:
                least = size + length
                break
            body = start + size
            self._frames[count] = Frame(Kind(kind), env_id, incoming[body : body + length])
            count, start = count + 1, body + length
        rest, none = incoming[start:], deque[bytes]()
        self._num_frames, self._rest, self._chunks, self._least = count, rest, none, least  # in one go

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
