"""What workers write to stderr comes out on ours, its last lines are kept, and it holds up nobody."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from textwrap import dedent
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from descriptors import is_open
from trainer_processes import wait_until

from shoal.engines.process.stderr import StderrRelay, Tail

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON_S = 10.0


@pytest.fixture
def relay() -> Iterator[StderrRelay]:
    """A relay that is closed at the end."""
    relay = StderrRelay()
    yield relay
    relay.close()


@pytest.fixture
def speaker(relay: StderrRelay) -> Iterator[tuple[Tail, int]]:
    """A worker's stderr as both sides have it."""
    heard, spoken = os.pipe()
    tail = Tail(heard)
    relay.add(tail)
    yield tail, spoken
    with contextlib.suppress(OSError):
        os.close(spoken)


def test_what_is_said_comes_out_whole_and_in_order(
    relay: StderrRelay, speaker: tuple[Tail, int], capfd: pytest.CaptureFixture[str]
) -> None:
    tail, spoken = speaker
    said = "".join(f"line {i}\n" for i in range(50_000))
    writer = threading.Thread(target=lambda: (os.write(spoken, said.encode()), os.close(spoken)))
    writer.start()
    while writer.is_alive():  # whoever asks meanwhile takes part of it out of the pipe
        relay.last_lines(tail)
    writer.join()
    relay.close()
    assert capfd.readouterr().err == said
    assert tail.lines().splitlines() == [f"line {i}" for i in range(49_980, 50_000)]


def test_the_last_words_are_there_at_once(relay: StderrRelay, speaker: tuple[Tail, int]) -> None:
    tail, spoken = speaker
    for number in range(200):
        os.write(spoken, f"word {number}\n".encode())
        assert relay.last_lines(tail).splitlines()[-1] == f"word {number}"


def test_what_is_left_at_the_end_still_comes_out(
    relay: StderrRelay, speaker: tuple[Tail, int], capfd: pytest.CaptureFixture[str]
) -> None:
    tail, spoken = speaker
    os.write(spoken, b"the last")
    relay.remove(tail)
    relay.close()
    assert capfd.readouterr().err == "the last"
    assert tail.lines() == "the last"


def test_half_a_character_is_no_stumbling_block(relay: StderrRelay, speaker: tuple[Tail, int]) -> None:
    tail, spoken = speaker
    os.write(spoken, "ü".encode()[:1] + b"\xff\n")
    assert relay.last_lines(tail) == "\N{REPLACEMENT CHARACTER}" * 2


def test_a_number_that_was_given_back_is_not_read_from(relay: StderrRelay, speaker: tuple[Tail, int]) -> None:
    tail, _ = speaker
    relay.remove(tail)
    reading, writing = os.pipe()
    assert reading == tail.fd
    os.write(writing, b"somebody else's")
    os.set_blocking(reading, False)
    assert relay.last_lines(tail) == ""
    relay.remove(tail)
    relay.remove(tail)
    assert os.read(reading, 100) == b"somebody else's"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("is_added", [False, True])
def test_a_descriptor_is_closed_once(is_added: bool, relay: StderrRelay) -> None:
    heard, spoken = os.pipe()
    tail = Tail(heard)
    if is_added:
        relay.add(tail)
    relay.remove(tail)
    assert not is_open(heard)
    assert os.dup(spoken) == heard  # the number is somebody else's now
    relay.remove(tail)
    assert is_open(heard)
    for fd in (heard, spoken):
        os.close(fd)


def test_a_writer_that_has_ended_costs_no_cpu(relay: StderrRelay, speaker: tuple[Tail, int]) -> None:
    _, spoken = speaker
    os.close(spoken)
    before = os.times()
    end = monotonic() + 0.3
    wait_until(lambda: monotonic() > end)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.15


def test_a_child_that_keeps_the_worker_s_stderr_does_not_hold_up_close(
    relay: StderrRelay, speaker: tuple[Tail, int], capfd: pytest.CaptureFixture[str]
) -> None:
    tail, spoken = speaker
    with subprocess.Popen(["yes"], stdout=spoken) as child:
        os.close(spoken)
        wait_until(lambda: bool(relay.last_lines(tail)))
        start = monotonic()
        relay.close()
        assert monotonic() - start < 3.0
        child.wait(SOON_S)  # its pipe is broken now
    capfd.readouterr()


def test_close_from_the_thread_itself_ends_it(relay: StderrRelay, speaker: tuple[Tail, int]) -> None:
    """As when the garbage collector runs there and finds the pool."""
    tail, spoken = speaker
    read = relay._read

    def read_and_close(tail: Tail) -> bytes | None:
        data = read(tail)
        if threading.current_thread() is relay._thread:
            relay._read = read  # type: ignore[method-assign]
            relay.close()
        return data

    relay._read = read_and_close  # type: ignore[method-assign]
    os.write(spoken, b"word")
    wait_until(lambda: not relay._thread.is_alive())
    assert tail.lines() == "word"


# ---------------------------------------------------------------------- forks


def in_child(relay: StderrRelay) -> int:
    """Fork, and leave with the number of the relay's descriptors that the child still has."""
    mine = [relay._waker.fileno(), relay._wake_out, relay._selector.fileno(), *relay._tails]  # type: ignore[attr-defined]
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            relay.close()  # as the pool's finalizer does
            code = sum(is_open(fd) for fd in mine)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in the middle of something"])
def test_a_forked_process_has_nothing_of_it_and_harms_nothing(
    busy: bool, relay: StderrRelay, speaker: tuple[Tail, int]
) -> None:
    tail, spoken = speaker
    taken, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with relay._lock:
            taken.set()
            let_go.wait()

    holder = threading.Thread(target=hold)
    if busy:
        holder.start()
        taken.wait()
    assert in_child(relay) == 0
    let_go.set()
    if busy:
        holder.join()
    os.write(spoken, b"still here\n")
    wait_until(lambda: tail.lines() == "still here")


# ---------------------------------------------------------------------- a stderr that nobody reads

STUCK = dedent("""
    import os, sys, time
    import shoal
    from shoal.testing import CountingEnv

    class Loud(CountingEnv):
        def step(self, action):
            os.write(2, b"x" * 10**6)
            return super().step(action)

    start = time.monotonic()
    pool = shoal.make_pool(Loud, 2, engine="process", num_workers=2, step_timeout=1.0, close_timeout=1.0)
    pool.reset(seed=0)
    try:
        pool.step([0, 0])
    except shoal.errors.EnvTimeout as error:
        print("in the write" if "in step" in error.remote_traceback else error, flush=True)
    pool.close()
    print(time.monotonic() - start < 20, flush=True)
    os._exit(0)
""")


@pytest.mark.slow
def test_a_stderr_that_nobody_reads_holds_up_the_env_and_nobody_else() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=pipe, stderr=pipe, text=True) as trainer:
        assert trainer.stdout is not None
        try:
            assert [trainer.stdout.readline() for _ in range(2)] == ["in the write\n", "True\n"]
        finally:
            trainer.kill()
