"""What workers write to stderr: passed on to ours as it arrives, with the last lines kept to explain a death.

    worker ── pipe ──▶ read by the thread, or by whoever asks for the last lines ──▶ kept, and written by the thread

Our own stderr may be a pipe that nobody empties. So only the thread ever writes to it, without holding the lock that
others need: neither they nor close are kept waiting.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from io import FileIO

_STDERR = 2
_READ_BYTES = 1 << 16
_MOST_READS = 32  # a process that inherited a worker's stderr may write faster than we read
_KEPT_BYTES = 1 << 13
_KEPT_LINES = 20
_ENDING_S = 1.0
_relays: weakref.WeakSet[StderrRelay] = weakref.WeakSet()


@dataclass(eq=False)
class Tail:
    """One worker's stderr: the end of the pipe that we read, and the last of what came through it."""

    fd: int
    data: bytearray = field(default_factory=bytearray)
    is_open: bool = True

    def lines(self) -> str:
        """The last lines."""
        return "\n".join(self.data.decode(errors="replace").splitlines()[-_KEPT_LINES:])


class StderrRelay:
    """Reads the stderr of all workers of a pool in one thread, which sleeps while nobody writes.

    C code writes to stderr too, and the words that matter most come just before a crash. So the worker's file
    descriptor itself is a pipe, and whatever is left in it is read once its writer is dead.
    """

    def __init__(self) -> None:
        self._tails: dict[int, Tail] = {}
        self._unwritten: deque[bytes] = deque()
        # Reentrant, because the garbage collector may find the pool, and close it, in the middle of this very thread.
        self._lock = threading.RLock()
        self._is_closed = False
        self._wake_out, wake_in = os.pipe()
        self._waker = FileIO(wake_in, "wb")  # closes in one go, and knows whether it is closed
        for end in (self._wake_out, wake_in):
            os.set_blocking(end, False)
        try:
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._wake_out, selectors.EVENT_READ)
            self._thread = threading.Thread(target=self._serve, name="shoal-stderr", daemon=True)
            self._thread.start()
        except BaseException:
            os.close(self._wake_out)
            self._waker.close()
            raise
        _relays.add(self)

    def add(self, tail: Tail) -> None:
        """Read from this descriptor too."""
        os.set_blocking(tail.fd, False)
        with self._lock:
            self._selector.register(tail.fd, selectors.EVENT_READ)
            self._tails[tail.fd] = tail

    def remove(self, tail: Tail) -> None:
        """Read what is left, then close the descriptor; also if it was never added."""
        with self._lock:
            self._let_go(tail)
            self._wake()

    def last_lines(self, tail: Tail) -> str:
        """The last lines of a worker, up to this moment."""
        with self._lock:
            self._read_all(tail)
            self._wake()
            return tail.lines()

    def close(self) -> None:
        """Read what is left in every pipe and end the thread, unless it cannot get rid of what it has to write."""
        with self._lock:
            if self._waker.closed:
                return
            for tail in list(self._tails.values()):
                self._let_go(tail)
            self._is_closed = True
            _relays.discard(self)
            self._waker.close()  # the thread sees the end of the pipe
        if self._thread is not threading.current_thread():
            self._thread.join(_ENDING_S)

    def disown(self) -> None:
        """Close our copies of everything, in a process that was forked from the one that owns the workers."""
        self._lock = threading.RLock()  # a thread that does not exist here may have held the old one
        self._is_closed = True
        self._selector.close()
        for tail in self._tails.values():
            tail.is_open = False
        for fd in (*self._tails, self._wake_out):
            with contextlib.suppress(OSError):
                os.close(fd)
        with contextlib.suppress(OSError):
            self._waker.close()
        self._tails = {}

    def _serve(self) -> None:
        while not self._is_closed:
            ready = [key.fd for key, _ in self._selector.select()]
            with self._lock:
                for fd in ready:
                    tail = self._tails.get(fd)
                    if tail is not None and self._read(tail) == b"":
                        self._selector.unregister(fd)
            if self._wake_out in ready:
                os.read(self._wake_out, _READ_BYTES)
            self._write_out()
        self._write_out()
        # The thread closes what it uses itself: nobody else knows when it has stopped using it.
        self._selector.close()
        os.close(self._wake_out)

    def _wake(self) -> None:
        """Have the thread write what somebody else has read."""
        if self._unwritten and not self._is_closed:
            self._waker.write(b"\0")  # does nothing if the pipe is full: it has been told often enough

    def _let_go(self, tail: Tail) -> None:
        self._read_all(tail)
        if self._tails.get(tail.fd) is tail:
            del self._tails[tail.fd]
            with contextlib.suppress(KeyError):  # the pipe had ended, so the thread has dropped it
                self._selector.unregister(tail.fd)
        if tail.is_open:
            tail.is_open = False
            os.close(tail.fd)

    def _read_all(self, tail: Tail) -> None:
        for _ in range(_MOST_READS):
            if not self._read(tail):
                return

    def _read(self, tail: Tail) -> bytes | None:
        """Take what has arrived: None if there is nothing yet, no bytes once nobody can write any more."""
        if self._tails.get(tail.fd) is not tail:
            return None  # its descriptor may stand for another file by now
        try:
            data = os.read(tail.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        if data:
            tail.data += data
            del tail.data[:-_KEPT_BYTES]
            self._unwritten.append(data)
        return data

    def _write_out(self) -> None:
        while self._unwritten:
            data = self._unwritten.popleft()
            while data:
                try:
                    data = data[os.write(_STDERR, data) :]
                except BlockingIOError:
                    select.select((), (_STDERR,), (), _ENDING_S)
                except OSError:  # our own stderr is closed
                    break


def _disown_in_forked_child() -> None:
    while _relays:
        _relays.pop().disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_in_forked_child)
