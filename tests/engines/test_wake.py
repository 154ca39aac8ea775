"""Semaphores in shared memory wake other processes, and a waiter looks at its count only while that is worth it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shoal import testing
from shoal.engines.process import wake
from shoal.engines.process.wake import NOBODY_WAITS, SEMAPHORE_BYTES, Fence, Semaphore, Waiter
from shoal.quick import is_compiled, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

compiled = pytest.mark.skipif(not is_compiled, reason="shoal is installed without its compiled part")
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
    assert not semaphore.acquire(0)
    semaphore.post()
    semaphore.post()
    assert [semaphore.acquire(0) for _ in range(3)] == [True, True, False]


def test_neighbours_do_not_disturb_each_other(semaphores: list[Semaphore]) -> None:
    semaphores[1].post()
    assert [semaphore.acquire(0) for semaphore in semaphores] == [False, True, False]


@pytest.mark.parametrize("timeout_s", [0.0, 1e-6, 0.01, -1.0])
def test_a_wait_ends_at_its_timeout(semaphores: list[Semaphore], timeout_s: float) -> None:
    assert not semaphores[0].acquire(timeout_s)
    semaphores[0].post()
    assert semaphores[0].acquire(timeout_s)
    assert not semaphores[0].acquire(timeout_s)


def test_a_second_handle_sees_the_same_semaphore(semaphores: list[Semaphore]) -> None:
    same = Semaphore(semaphores[0]._pointer.value)
    same.post()
    assert semaphores[0].acquire(0)


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
    assert not pong.acquire(0)


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


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A shell without job control has programs in the background ignore Ctrl-C, and Python then installs no handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
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


class Counter:
    """A count in shared memory, a semaphore, and the word that says at which count to post it."""

    def __init__(self, words: memoryview, semaphore: Semaphore, bed: Any) -> None:
        self.words, self.semaphore = words, semaphore
        self.bed = bed  # the memory of the semaphore, for compiled code; None if there is to be none
        self.fence = Fence()
        words[0], words[1] = 0, NOBODY_WAITS

    def waiter(self, budget_s: float) -> Any:
        if self.bed is None:
            return Waiter(self.semaphore, self.count, self.words, 1, budget_s)
        array = np.frombuffer(self.words, np.int64)
        return quick.Waiter(self.bed, array[:1], array[1:], budget_s)

    def count(self) -> int:
        return self.words[0]

    def raise_it(self) -> None:
        self.words[0] += 1
        self.fence()
        if self.words[0] >= self.words[1]:
            self.semaphore.post()


@pytest.fixture(params=["python", pytest.param("compiled", marks=compiled)])
def counters(request: pytest.FixtureRequest, memory: mmap.mmap, semaphores: list[Semaphore]) -> list[Counter]:
    """Three of them, in memory that forked children share."""
    words = memoryview(mmap.mmap(-1, 3 * 16)).cast("q")
    beds = np.frombuffer(memory, np.uint8).reshape(3, SEMAPHORE_BYTES) if request.param == "compiled" else [None] * 3
    return [Counter(words[2 * i : 2 * i + 2], semaphores[i], beds[i]) for i in range(3)]


HOW = pytest.mark.parametrize("budget_s", [0.0, 150e-6], ids=["sleeping", "looking"])


@HOW
def test_a_wait_ends_when_the_count_is_reached(counters: list[Counter], budget_s: float) -> None:
    counter = counters[0]
    waiter = counter.waiter(budget_s)
    assert not waiter.wait(1, 0.001)
    for _ in range(5):
        counter.raise_it()
    assert waiter.wait(1, 0.001)
    assert waiter.wait(5, 0.001)
    assert not waiter.wait(6, 0.001)


def test_who_is_awake_is_not_woken(counters: list[Counter]) -> None:
    counter = counters[0]
    for _ in range(5):
        counter.raise_it()
    assert counter.waiter(0.0).wait(5, 0.001)
    assert not counter.semaphore.acquire(0)


def test_news_right_before_falling_asleep_are_not_slept_through(counters: list[Counter]) -> None:
    waiter = counters[0].waiter(0.0)
    assert waiter.wait(1, SOON_S, lambda: True)
    assert not waiter.wait(1, 0.001, lambda: False)
    assert counters[0].words[1] == NOBODY_WAITS


@HOW
def test_a_waiter_is_woken_from_another_process(counters: list[Counter], budget_s: float) -> None:
    go, done, _ = counters

    def serve() -> bool:
        wait = go.waiter(budget_s).wait
        for turn in range(1, 51):
            while go.count() < turn:
                if not wait(turn, SOON_S):
                    return False
            done.raise_it()
        return True

    with child(serve):
        wait = done.waiter(budget_s).wait
        for turn in range(1, 51):
            go.raise_it()
            while done.count() < turn:
                assert wait(turn, SOON_S)


@HOW
@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupt_ends_a_wait_and_leaves_it_in_order(counters: list[Counter], budget_s: float) -> None:
    parent = os.getpid()
    news, go, _ = counters

    def say_go_and_wait() -> None:
        waiter = news.waiter(budget_s)
        go.raise_it()
        while True:  # a signal that comes right before a sleep is handled after it
            waiter.wait(1, 0.05)

    def interrupt() -> bool:
        return go.waiter(0.0).wait(1, SOON_S) and os.kill(parent, signal.SIGINT) is None

    with child(interrupt), pytest.raises(KeyboardInterrupt):
        say_go_and_wait()
    assert news.words[1] == NOBODY_WAITS


def test_an_error_of_who_looks_for_other_news_ends_the_wait(counters: list[Counter]) -> None:
    def fail() -> bool:
        raise LookupError("as ordered")

    with pytest.raises(LookupError):
        counters[0].waiter(0.0).wait(1, SOON_S, fail)
    assert counters[0].words[1] == NOBODY_WAITS


def test_long_waits_take_no_time_of_the_processor(counters: list[Counter]) -> None:
    waiter = counters[0].waiter(150e-6)
    for _ in range(20):  # which teach it that looking is in vain
        waiter.wait(1, 0.005)
    before = time.process_time()
    assert not waiter.wait(1, 0.3)
    assert time.process_time() - before < 0.03


def test_other_threads_run_while_one_looks_and_sleeps(counters: list[Counter]) -> None:
    raiser = threading.Thread(target=counters[0].raise_it)
    raiser.start()
    while not counters[0].waiter(150e-6).wait(1, SOON_S):
        pass
    raiser.join()


@compiled
def test_compiled_waits_refuse_memory_of_another_kind() -> None:
    bed, words = np.zeros(SEMAPHORE_BYTES, np.uint8), np.zeros(2, np.int64)
    for args in ((bed[:8], words, words[:1]), (bed, words, words), (bed, words.astype(np.int32), words[:1])):
        with pytest.raises((TypeError, ValueError)):
            quick.Waiter(*args, 1e-4)
    with pytest.raises(TypeError):
        quick.Waiter(bed, words, words[:1], 1e-4).wait()


class FakeTime:
    """A count, a semaphore and a clock in one: news are due at a given time, every look at the clock lets time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due = 0.0
        self.looks = 0
        self.sleeps: list[float] = []

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def count(self) -> int:
        self.looks += 1
        return int(self.now >= self.due)

    def acquire(self, timeout_s: float) -> bool:
        self.sleeps.append(timeout_s)
        is_in_time = self.due <= self.now + timeout_s
        self.now = max(self.now, self.due) if is_in_time else self.now + timeout_s
        return is_in_time

    def wait(self, waiter: Waiter, due_in_s: float, timeout_s: float = 1.0, *, is_crowded: bool = False) -> bool:
        """One wait for news that come after ``due_in_s``."""
        self.looks, self.sleeps = 0, []
        self.due = self.now + due_in_s
        return waiter.wait(1, timeout_s, is_crowded=is_crowded)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(wake, "perf_counter", time.clock)
    return time


def waiter_on(fake: Any) -> Waiter:
    return Waiter(fake, fake.count, memoryview(bytearray(8)).cast("q"), budget_s=100e-6)


def test_short_waits_are_looked_through(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    for _ in range(20):
        assert fake.wait(waiter, due_in_s=30e-6)
        assert fake.sleeps == []
        assert fake.looks > 1


def test_what_is_there_already_costs_one_look(fake: FakeTime) -> None:
    assert fake.wait(waiter_on(fake), due_in_s=0.0)
    assert (fake.looks, fake.sleeps) == (1, [])


def test_long_waits_are_slept_through_without_looking(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    for _ in range(20):
        assert fake.wait(waiter, due_in_s=0.01)
    assert (fake.looks, fake.sleeps) == (1, [1.0])


def test_looking_ends_soon_and_sleep_comes(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    start = fake.now
    assert not fake.wait(waiter, due_in_s=10.0, timeout_s=0.5)
    assert fake.sleeps == [0.5]
    assert fake.now - start < 0.5 + 3 * 100e-6


def test_a_core_that_others_need_is_not_kept_busy(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    assert fake.wait(waiter, due_in_s=50e-6, is_crowded=True)
    assert fake.sleeps == [1.0]
    assert fake.looks < 20
    assert fake.wait(waiter, due_in_s=3e-6, is_crowded=True)
    assert fake.sleeps == []


def test_who_loses_its_core_again_and_again_sleeps_instead_of_looking(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, lost = waiter_on(fake), []

    def lose_the_core() -> None:
        fake.now += 3e-3
        lost.append(fake.now)

    monkeypatch.setattr(os, "sched_yield", lose_the_core)
    for _ in range(20_000):  # which take half a second and what is lost
        fake.wait(waiter, due_in_s=30e-6)
    assert len(lost) < 20
    monkeypatch.undo()
    monkeypatch.setattr(wake, "perf_counter", fake.clock)
    fake.now += 10.0
    for _ in range(20):
        fake.wait(waiter, due_in_s=30e-6)
    assert fake.sleeps == []


def test_a_core_that_is_lost_now_and_then_is_no_reason_to_sleep(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, yields, slept = waiter_on(fake), 0, 0

    def lose_the_core_rarely() -> None:
        nonlocal yields
        yields += 1
        fake.now += 3e-3 if yields % 200 == 0 else 0.0

    monkeypatch.setattr(os, "sched_yield", lose_the_core_rarely)
    for _ in range(2_000):
        fake.wait(waiter, due_in_s=30e-6)
        slept += len(fake.sleeps)
    assert yields > 10_000
    assert slept < yields / 50


def test_one_long_pause_among_short_waits_is_soon_forgotten(fake: FakeTime) -> None:
    waiter = waiter_on(fake)
    for _ in range(20):
        fake.wait(waiter, due_in_s=10e-6)
    fake.wait(waiter, due_in_s=60.0, timeout_s=100.0)
    for _ in range(5):
        fake.wait(waiter, due_in_s=10e-6)
    assert fake.sleeps == []


def test_timeouts_in_a_row_count_as_one_long_wait(fake: FakeTime) -> None:
    """An idle pool looks at its workers every few milliseconds; that must not teach the waiter to look for longer."""
    waiter = waiter_on(fake)
    for _ in range(20):
        fake.wait(waiter, due_in_s=0.01)
    for _ in range(10):
        assert not fake.wait(waiter, due_in_s=1.0, timeout_s=20e-6)
    assert (fake.looks, fake.sleeps) == (1, [20e-6])
