"""Semaphores in shared memory wake other processes, and a waiter spins only while that is worth it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shoal import testing
from shoal.engines.process import wake
from shoal.engines.process.wake import SEMAPHORE_BYTES, Semaphore, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

leak_guard = pytest.fixture(autouse=True)(testing.leak_guard)
SOON_S = 20.0


@pytest.fixture
def memory() -> mmap.mmap:
    """Memory that forked children share; pytest keeps it until the test is over."""
    return mmap.mmap(-1, 3 * SEMAPHORE_BYTES)


@pytest.fixture
def semaphores(memory: mmap.mmap) -> list[Semaphore]:
    """Three semaphores next to each other."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return [Semaphore(start + i * SEMAPHORE_BYTES, create=True) for i in range(3)]


@contextmanager
def child(run: Callable[[], bool], exit_code: int = 0) -> Iterator[int]:
    """A forked process that runs ``run``; the block fails unless it returned True, or ended as expected."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if run() else 1
        finally:
            os._exit(code)
    try:
        yield pid
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == exit_code


def test_a_semaphore_counts(semaphores: list[Semaphore]) -> None:
    semaphore = semaphores[0]
    assert not semaphore.try_acquire()
    semaphore.post()
    semaphore.post()
    assert [semaphore.try_acquire() for _ in range(3)] == [True, True, False]


def test_neighbours_do_not_disturb_each_other(semaphores: list[Semaphore]) -> None:
    semaphores[1].post()
    assert [semaphore.try_acquire() for semaphore in semaphores] == [False, True, False]


@pytest.mark.parametrize("timeout_s", [0.0, 1e-6, 0.01, -1.0])
def test_a_wait_ends_at_its_timeout(semaphores: list[Semaphore], timeout_s: float) -> None:
    assert not semaphores[0].acquire(timeout_s)
    semaphores[0].post()
    assert semaphores[0].acquire(timeout_s)
    assert not semaphores[0].acquire(timeout_s)


def test_a_second_handle_sees_the_same_semaphore(semaphores: list[Semaphore]) -> None:
    same = Semaphore(semaphores[0]._pointer.value)
    same.post()
    assert semaphores[0].try_acquire()


def test_processes_wake_each_other(semaphores: list[Semaphore]) -> None:
    ping, pong, _ = semaphores

    def answer() -> bool:
        for _ in range(100):
            if not ping.acquire(SOON_S):
                return False
            pong.post()
        return True

    with child(answer):
        for _ in range(100):
            ping.post()
            assert pong.acquire(SOON_S)
    assert not pong.try_acquire()


def test_posts_survive_the_death_of_the_one_who_posted(semaphores: list[Semaphore]) -> None:
    def post_and_die() -> bool:
        semaphores[0].post()
        semaphores[0].post()
        return True

    with child(post_and_die):
        pass
    assert [semaphores[0].acquire(0) for _ in range(3)] == [True, True, False]


def test_a_killed_sleeper_takes_nothing_with_it(semaphores: list[Semaphore]) -> None:
    ready, work, _ = semaphores

    def sleep_for_ever() -> bool:
        ready.post()
        return work.acquire(3600.0)

    with child(sleep_for_ever, exit_code=-signal.SIGKILL) as pid:
        assert ready.acquire(SOON_S)
        os.kill(pid, signal.SIGKILL)
    work.post()
    assert work.acquire(SOON_S)


def test_a_signal_does_not_cut_a_wait_short(semaphores: list[Semaphore]) -> None:
    handled = threading.Event()
    before = signal.signal(signal.SIGUSR2, lambda *_: (handled.set(), semaphores[0].post()))
    parent = os.getpid()
    try:
        with child(lambda: os.kill(parent, signal.SIGUSR2) is None):
            assert semaphores[0].acquire(SOON_S)
        assert handled.is_set()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_an_exception_in_a_signal_handler_ends_a_wait(semaphores: list[Semaphore]) -> None:
    parent = os.getpid()
    wait, go = semaphores[:2]

    def say_go_and_wait() -> None:
        go.post()
        wait.acquire(SOON_S)

    # The child waits for its go, so that the signal cannot come before the test is ready for it.
    with child(lambda: go.acquire(SOON_S) and os.kill(parent, signal.SIGINT) is None), pytest.raises(KeyboardInterrupt):
        say_go_and_wait()


def test_other_threads_run_while_one_waits(semaphores: list[Semaphore]) -> None:
    poster = threading.Thread(target=semaphores[0].post)
    poster.start()
    assert semaphores[0].acquire(SOON_S)
    poster.join()


# ---------------------------------------------------------------------- the waiter


@pytest.mark.parametrize("budget_s", [0.0, 150e-6], ids=["sleeping", "spinning"])
def test_a_waiter_takes_each_post_once(semaphores: list[Semaphore], budget_s: float) -> None:
    waiter = Waiter(semaphores[0], budget_s)
    assert not waiter.wait(0.001)
    for _ in range(5):
        semaphores[0].post()
    assert [waiter.wait(0.001) for _ in range(6)] == [True] * 5 + [False]


@pytest.mark.parametrize("budget_s", [0.0, 150e-6], ids=["sleeping", "spinning"])
def test_a_waiter_is_woken_from_another_process(semaphores: list[Semaphore], budget_s: float) -> None:
    go, done, _ = semaphores

    def serve() -> bool:
        theirs = Waiter(go, budget_s)
        for _ in range(50):
            if not theirs.wait(SOON_S):
                return False
            done.post()
        return True

    with child(serve):
        mine = Waiter(done, budget_s)
        for _ in range(50):
            go.post()
            assert mine.wait(SOON_S)
    assert not done.try_acquire()


class FakeTime:
    """A semaphore and a clock in one: a post is due at a given time, every look at the clock lets time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due = 0.0
        self.looks = 0
        self.sleeps: list[float] = []

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def try_acquire(self) -> bool:
        self.looks += 1
        return self.now >= self.due

    def acquire(self, timeout_s: float) -> bool:
        self.sleeps.append(timeout_s)
        is_in_time = self.due <= self.now + timeout_s
        self.now = max(self.now, self.due) if is_in_time else self.now + timeout_s
        return is_in_time

    def wait(self, waiter: Waiter, due_in_s: float, timeout_s: float = 1.0) -> bool:
        """One wait for a post that comes after ``due_in_s``."""
        self.looks, self.sleeps = 0, []
        self.due = self.now + due_in_s
        return waiter.wait(timeout_s)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(wake, "perf_counter", time.clock)
    return time


def waiter_on(fake: Any) -> Waiter:
    return Waiter(fake, spin_budget_s=100e-6)


def test_short_waits_are_spun_through(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    for _ in range(20):
        assert fake.wait(waiter, due_in_s=30e-6)
        assert fake.sleeps == []
        assert fake.looks > 1


def test_what_is_there_already_costs_one_look(fake: FakeTime) -> None:
    assert fake.wait(waiter_on(fake), due_in_s=0.0)
    assert (fake.looks, fake.sleeps) == (1, [])


def test_long_waits_are_slept_through_without_spinning(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    for _ in range(20):
        assert fake.wait(waiter, due_in_s=0.01)
    assert (fake.looks, fake.sleeps) == (1, [1.0])


def test_a_spin_ends_soon_and_sleeps(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    start = fake.now
    assert not fake.wait(waiter, due_in_s=10.0, timeout_s=0.5)
    assert fake.sleeps == [0.5]
    assert fake.now - start < 0.5 + 3 * 100e-6


def test_one_long_pause_among_short_waits_is_soon_forgotten(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    for _ in range(20):
        fake.wait(waiter, due_in_s=10e-6)
    fake.wait(waiter, due_in_s=60.0, timeout_s=100.0)
    for _ in range(5):
        fake.wait(waiter, due_in_s=10e-6)
    assert fake.sleeps == []


def test_timeouts_in_a_row_count_as_one_long_wait(fake: FakeTime) -> None:
    """An idle pool looks at its workers every few milliseconds; that must not teach the waiter to spin."""
    waiter = waiter_on(fake)
    for _ in range(20):
        fake.wait(waiter, due_in_s=0.01)
    for _ in range(10):
        assert not fake.wait(waiter, due_in_s=1.0, timeout_s=20e-6)
    assert (fake.looks, fake.sleeps) == (1, [20e-6])
