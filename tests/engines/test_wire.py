"""Frames arrive whole and in order however the bytes are cut, and a bad or absent peer is an error, not a hang."""

from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import testing
from shoal.engines.process.wire import Channel, Frame, FrameError, Kind, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

leak_guard = pytest.fixture(autouse=True)(testing.leak_guard)
SOON_S = 20.0
HEADER = struct.Struct("<4sBiQ")
LARGE = bytes(range(256)) * 2**15  # 8 MiB, far more than a socket buffer


def never_gives_up() -> None:
    """A check that always says: wait on."""


class Pair:
    """Both ends of one connection."""

    def __init__(self) -> None:
        one, other = socket.socketpair()
        self.ends = one, other
        self.left, self.right = Channel(one), Channel(other)

    def close(self) -> None:
        self.left.close()
        self.right.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    both = Pair()
    yield both
    both.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A bare socket, and the channel that listens to it."""
    bare, end = socket.socketpair()
    channel = Channel(end)
    yield bare, channel
    bare.close()
    channel.close()


def in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Start ``function`` in a thread; the returned function waits for its result."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((function(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(SOON_S)
        assert outcome, "locked up"
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    return result


frames = st.builds(Frame, st.sampled_from(Kind), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=100))


@settings(deadline=None, max_examples=100)
@given(st.lists(frames, min_size=1, max_size=5), st.data())
def test_frames_may_be_cut_anywhere(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(HEADER.pack(b"SHOA", kind, i, len(payload)) + payload for kind, i, payload in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bare, end = socket.socketpair()
    with bare, end:
        channel = Channel(end)
        received: list[Frame] = []
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            bare.sendall(stream[start:stop])
            while (frame := channel.receive(0)) is not None:
                received.append(frame)
        assert received == sent
        assert all(isinstance(frame.kind, Kind) for frame in received)


def test_every_single_byte_boundary_is_as_good_as_another(raw: tuple[socket.socket, Channel]) -> None:
    bare, channel = raw
    message = HEADER.pack(b"SHOA", Kind.FAULT, 3, 5) + b"hello"
    for byte in message[:-1]:
        bare.sendall(bytes([byte]))
        assert channel.receive(0) is None
    bare.sendall(message[-1:])
    assert channel.receive(0) == Frame(Kind.FAULT, 3, b"hello")


def test_what_a_channel_sends_the_other_reads(pair: Pair) -> None:
    pair.left.send(Kind.BUILT, 7, b"", never_gives_up)
    pair.left.send(Kind.VALUE, -1, b"abc", never_gives_up)
    assert pair.right.receive(0) == (Kind.BUILT, 7, b"")
    assert pair.right.receive(None) == (Kind.VALUE, -1, b"abc")
    assert pair.right.receive(0.001) is None


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(b"HTTP", Kind.VALUE, 0, 0),
        HEADER.pack(b"SHOA", 0, 0, 0),
        HEADER.pack(b"SHOA", 99, 0, 0),
        HEADER.pack(b"SHOA", Kind.VALUE, 0, 2**34 + 1),
        HEADER.pack(b"SHOA", Kind.VALUE, 0, 2**64 - 1),
        bytes(HEADER.size),
    ],
    ids=["wrong magic", "kind 0", "unknown kind", "too long", "far too long", "zeros"],
)
def test_what_is_no_frame_is_refused_before_its_payload(raw: tuple[socket.socket, Channel], header: bytes) -> None:
    bare, channel = raw
    bare.sendall(header)
    with pytest.raises(WireError, match="not a shoal frame"):
        channel.receive(SOON_S)


def test_a_frame_before_the_bad_one_is_not_given_out_twice(raw: tuple[socket.socket, Channel]) -> None:
    bare, channel = raw
    bare.sendall(HEADER.pack(b"SHOA", Kind.VALUE, 1, 0) + b"x" * HEADER.size)
    outcomes: list[Any] = []
    for _ in range(3):
        try:
            outcomes.append(channel.receive(0))
        except WireError:
            outcomes.append(WireError)
        bare.sendall(b"x")
    assert outcomes.count(Frame(Kind.VALUE, 1, b"")) <= 1
    assert WireError in outcomes


def test_a_large_frame_arrives_whole(pair: Pair) -> None:
    sent = in_thread(lambda: pair.left.send(Kind.EXTRAS, 1, LARGE, never_gives_up))
    frame = pair.right.receive(SOON_S)
    sent()
    assert frame is not None
    assert frame.payload == LARGE


@pytest.mark.parametrize("way", ["receive", "frame and forget"])
def test_a_large_frame_is_let_go(way: str, pair: Pair) -> None:
    sent = in_thread(lambda: pair.left.send(Kind.VALUE, 1, LARGE, never_gives_up))
    tracemalloc.start()
    try:
        frame = pair.right.receive(SOON_S) if way == "receive" else pair.right.frame(0, SOON_S)
        assert frame is not None
        if way != "receive":
            assert pair.right.frame(0, 0) is frame  # as after an interrupt
            pair.right.forget(frame)
        sent()
        assert len(frame.payload) == len(LARGE) < tracemalloc.get_traced_memory()[0]
        del frame
        assert tracemalloc.get_traced_memory()[0] < len(LARGE) / 8
    finally:
        tracemalloc.stop()


def test_large_frames_that_cross_do_not_lock_up(pair: Pair) -> None:
    def exchange(channel: Channel, mark: int) -> Frame | None:
        channel.send(Kind.EXTRAS, mark, LARGE, never_gives_up)
        return channel.receive(SOON_S)

    left = in_thread(lambda: exchange(pair.left, 1))
    right = in_thread(lambda: exchange(pair.right, 2))
    assert left() == (Kind.EXTRAS, 2, LARGE)
    assert right() == (Kind.EXTRAS, 1, LARGE)


def test_frames_read_while_sending_keep_their_order(pair: Pair) -> None:
    for i in range(5):
        pair.right.send(Kind.VALUE, i, b"early", never_gives_up)
    sent = in_thread(lambda: pair.left.send(Kind.EXTRAS, -1, LARGE, never_gives_up))
    assert pair.right.receive(SOON_S) is not None
    sent()
    pair.right.send(Kind.VALUE, 5, b"late", never_gives_up)
    assert [pair.left.receive(SOON_S).env_id for _ in range(6)] == [0, 1, 2, 3, 4, 5]  # type: ignore[union-attr]


def test_a_frame_read_by_a_sending_thread_reaches_the_thread_that_receives(pair: Pair) -> None:
    """Lanes of one worker share its channel: one may be sending a large info while another waits for its request."""

    was_read = threading.Event()
    read, poll = pair.left._read, pair.left._poll

    def read_and_tell() -> None:
        read()
        if pair.left._frames:
            was_read.set()

    class LatePoll:
        """Begins to wait just after the other thread has read the frame, as can happen at any time."""

        def poll(self, timeout: float | None = None) -> Any:
            if not was_read.is_set():
                pair.right.send(Kind.REQUESTS, 4, b"", never_gives_up)
                assert was_read.wait(SOON_S)
            return poll.poll(timeout)

    pair.left._read, pair.left._poll = read_and_tell, LatePoll()  # type: ignore[method-assign, assignment]
    sent = in_thread(lambda: pair.left.send(Kind.EXTRAS, 1, LARGE, never_gives_up))
    frame = in_thread(lambda: pair.left.receive(1.0))()
    assert pair.right.receive(SOON_S) is not None  # lets the sender finish
    sent()
    assert frame == (Kind.REQUESTS, 4, b"")


# ---------------------------------------------------------------------- a peer that is gone


def test_receiving_from_a_closed_peer_is_an_error(pair: Pair) -> None:
    pair.right.close()
    with pytest.raises(WireError, match="gone"):
        pair.left.receive(SOON_S)


def test_frames_sent_before_the_peer_closed_still_arrive(pair: Pair) -> None:
    pair.right.send(Kind.VALUE, 1, b"last words", never_gives_up)
    pair.right.close()
    assert pair.left.receive(SOON_S) == (Kind.VALUE, 1, b"last words")
    with pytest.raises(WireError):
        pair.left.receive(SOON_S)


def test_half_a_frame_and_then_nothing_is_an_error(raw: tuple[socket.socket, Channel]) -> None:
    bare, channel = raw
    bare.sendall(HEADER.pack(b"SHOA", Kind.VALUE, 1, 10) + b"half")
    assert channel.receive(0) is None
    bare.close()
    with pytest.raises(WireError, match="gone"):
        channel.receive(SOON_S)


def test_sending_to_a_closed_peer_is_an_error(pair: Pair) -> None:
    pair.right.close()
    with pytest.raises(WireError, match="gone"):
        pair.left.send(Kind.VALUE, 1, LARGE, never_gives_up)


def test_a_peer_that_closes_while_we_send_is_an_error(pair: Pair) -> None:
    started = threading.Event()
    sent = in_thread(lambda: pair.left.send(Kind.VALUE, 1, LARGE, started.set))
    assert started.wait(SOON_S)  # the socket is full and the sender waits
    pair.ends[1].shutdown(socket.SHUT_RDWR)
    with pytest.raises(WireError):
        sent()


def test_a_sender_may_give_up(pair: Pair) -> None:
    class GivenUp(Exception):
        pass

    def give_up() -> None:
        raise GivenUp

    with pytest.raises(GivenUp):
        pair.left.send(Kind.VALUE, 1, LARGE, give_up)


def test_a_frame_that_was_cut_off_is_not_followed_by_another(pair: Pair) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.left.send(Kind.EXTRAS, 0, LARGE, interrupt)
    with pytest.raises(FrameError, match="cut off"):
        pair.left.send(Kind.EXTRAS, 0, b"next", never_gives_up)
