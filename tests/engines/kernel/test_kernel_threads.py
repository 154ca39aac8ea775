"""Large batches in slices: the same rows whoever runs them, and nothing of it left when it is over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shoal
from shoal.engines.kernel import threads
from shoal.engines.kernel.threads import SharedRun
from shoal.testing import no_leftovers

pytest.importorskip("numba")

from kernel_kinds import MODES, Drift, assert_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal import Pool
    from shoal.batch import Batch

ALIVE_S = 3.0
"""A wait this long means that something hangs."""


@pytest.fixture
def shared() -> Iterator[Callable[[int], SharedRun]]:
    """Makes SharedRuns that are closed at the end; a hung one fails the test and does not stop it."""
    made: list[SharedRun] = []

    def make(num_threads: int) -> SharedRun:
        made.append(SharedRun(num_threads))
        return made[-1]

    yield make
    for run in made:
        finish(run.close)


def kernel_threads() -> set[threading.Thread]:
    """The threads of all SharedRuns."""
    return {thread for thread in threading.enumerate() if thread.name == "shoal-kernel"}


def finish(*calls: Callable[[], Any]) -> None:
    """Run calls side by side; all must return."""
    workers = [threading.Thread(target=call, daemon=True) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(ALIVE_S)
    assert not any(worker.is_alive() for worker in workers), "a call did not return"


class Clock:
    """Stands in for ``perf_counter``: time passes when a part says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(threads, "perf_counter", clock)
    return clock


class Timed:
    """A part that takes ``alone_s`` as a whole and ``split_s`` in slices, and notes how it was run."""

    def __init__(self, clock: Clock, alone_s: float, split_s: float) -> None:
        self.clock = clock
        self.times = {True: alone_s, False: split_s}
        self.slices: list[tuple[int, int, int]] = []

    def __call__(self, start: int, stop: int, slot: int) -> None:
        self.slices.append((start, stop, slot))
        if slot == 0:
            self.clock.now += self.times[stop == 1000]

    def last_was_split(self) -> bool:
        whole, self.slices = self.slices, []
        return len(whole) > 1


# ---------------------------------------------------------------------- when to share


def decided(run: SharedRun, part: Timed) -> bool:
    """How the batch is run once the trials are over."""
    for _ in range(2 * threads._TRIAL):
        run.run(part, 1000)
    part.slices = []
    run.run(part, 1000)
    return part.last_was_split()


def test_slices_are_kept_when_they_are_faster(shared: Callable[[int], SharedRun], clock: Clock) -> None:
    assert decided(shared(2), Timed(clock, 1e-3, 0.6e-3))


def test_slices_are_given_up_when_they_are_slower(shared: Callable[[int], SharedRun], clock: Clock) -> None:
    assert not decided(shared(2), Timed(clock, 1e-3, 1.2e-3))


def test_short_batches_are_never_sliced_and_start_no_thread(shared: Callable[[int], SharedRun], clock: Clock) -> None:
    part = Timed(clock, 20e-6, 1e-9)
    with no_leftovers(0.0):
        run = shared(2)
        for _ in range(50):
            run.run(part, 1000)
        assert set(part.slices) == {(0, 1000, 0)}


def test_the_question_is_asked_again_now_and_then(shared: Callable[[int], SharedRun], clock: Clock) -> None:
    run, part = shared(2), Timed(clock, 1e-3, 1.2e-3)
    assert not decided(run, part)
    part.times = {True: 1e-3, False: 0.5e-3}
    for _ in range(int(threads._KEPT_S / 1e-3)):
        run.run(part, 1000)
    assert decided(run, part)


def test_one_thread_runs_everything_itself(shared: Callable[[int], SharedRun], clock: Clock) -> None:
    part = Timed(clock, 1.0, 1e-9)
    run = shared(1)
    for _ in range(20):
        run.run(part, 1000)
    assert part.slices == [(0, 1000, 0)] * 20


@pytest.mark.parametrize("num_threads", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 4, 7, 1000])
def test_slices_cover_the_batch_once_and_have_slots_of_their_own(
    num_threads: int, size: int, shared: Callable[[int], SharedRun]
) -> None:
    seen: list[tuple[int, int, int]] = []
    run = shared(num_threads)
    for _ in range(3):
        seen.clear()
        run._run_split(lambda start, stop, slot: seen.append((start, stop, slot)), size)
        rows = [row for start, stop, _ in sorted(seen) for row in range(start, stop)]
        assert rows == list(range(size))
        slots = [slot for _, _, slot in seen]
        assert len(set(slots)) == len(slots)
        assert set(slots) <= set(range(num_threads))


# ---------------------------------------------------------------------- interrupts and the end


def test_an_interrupt_in_the_callers_slice_leaves_nothing_running(shared: Callable[[int], SharedRun]) -> None:
    """A run that is not split must not start while slices of the last one still move the same envs."""
    run, go, ended = shared(2), threading.Event(), threading.Event()

    def part(start: int, stop: int, slot: int) -> None:
        if slot == 0:
            raise KeyboardInterrupt
        go.wait(ALIVE_S)
        ended.set()

    threading.Timer(0.05, go.set).start()
    with pytest.raises(KeyboardInterrupt):
        run._run_split(part, 10)
    overlaps: list[bool] = []
    run.run(lambda start, stop, slot: overlaps.append(not ended.is_set()), 10)
    go.set()
    assert overlaps == [False]
    assert run._owed == 0


def test_a_slice_that_raises_on_another_thread_is_not_silent_and_costs_no_thread(
    shared: Callable[[int], SharedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    run = shared(2)

    def part(start: int, stop: int, slot: int) -> None:
        if slot == 1:
            raise MemoryError("no room for a fault")

    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            run._run_split(part, 10)
        except MemoryError as error:
            raised.append(error)

    finish(attempt)
    done: list[int] = []
    finish(lambda: run._run_split(lambda start, stop, slot: done.append(slot), 10))
    assert sorted(done) == [0, 1]
    assert raised, "the error was lost"


def test_closing_from_another_thread_ends_both(shared: Callable[[int], SharedRun]) -> None:
    """``Pool.close`` may be called while another thread steps."""
    run, running, go = shared(2), threading.Event(), threading.Event()

    def part(start: int, stop: int, slot: int) -> None:
        if slot == 1:
            running.set()
            go.wait(ALIVE_S)

    stepping = threading.Thread(target=lambda: run._run_split(part, 10), daemon=True)
    stepping.start()
    assert running.wait(ALIVE_S)
    closing = threading.Thread(target=run.close, daemon=True)
    closing.start()
    # Both wait for the one slice now, or will in a moment.
    closing.join(0.05)
    go.set()
    for thread in (stepping, closing):
        thread.join(ALIVE_S)
    hung = [name for name, thread in (("step", stepping), ("close", closing)) if thread.is_alive()]
    for _ in hung:
        run._done.put(None)
    assert hung == []


def test_close_ends_the_threads_and_may_be_called_twice() -> None:
    before = kernel_threads()
    with no_leftovers(0.0):
        run = SharedRun(3)
        run._run_split(lambda start, stop, slot: None, 10)
        assert len(kernel_threads() - before) == 2
        run.close()
        run.close()


# ---------------------------------------------------------------------- rows


def columns(batch: Batch) -> list[Any]:
    """A batch as arrays alone: comparing a thousand rows one by one takes long."""
    flags = [batch.terminated, batch.truncated, batch.elapsed_step, batch.first]
    finals = [(row, obs, info["lap"]) for row, (obs, info) in batch.finals.items()]
    return [batch.env_id, batch.obs, batch.reward, *flags, dict(batch.fields), finals]


@pytest.mark.parametrize("autoreset", MODES)
def test_rows_do_not_depend_on_the_number_of_threads(autoreset: str, make_pool: Callable[..., Pool]) -> None:
    runs: list[Any] = []
    for num_workers in (1, 2, 3):
        pool = make_pool(Drift, 1001, engine="kernel", num_workers=num_workers, autoreset=autoreset)
        assert pool.stats().num_workers == num_workers
        if num_workers > 1:
            pool.engine._threads.run = pool.engine._threads._run_split  # type: ignore[attr-defined]
        told = [columns(pool.reset(seed=5))]
        for turn in range(10):
            told.append(columns(batch := pool.step((np.arange(1001) + turn) % 3 - 1)))
            over = np.flatnonzero(batch.terminated | batch.truncated)
            if autoreset == "disabled" and len(over):
                told.append(columns(pool.reset(env_id=over)))
        runs.append((told, pool.stats().episodes))
    assert_same(runs[1], runs[0])
    assert_same(runs[2], runs[0])
    assert runs[0][1] > 500


def test_parts_of_a_large_pool_have_the_rows_of_a_small_one(make_pool: Callable[..., Pool]) -> None:
    """300 of 600 envs in any order, in slices, against 300 envs in one go."""
    ids = np.random.default_rng(1).permutation(600)[:300]
    large = make_pool(Drift, 600, engine="kernel", num_workers=2)
    large.engine._threads.run = large.engine._threads._run_split  # type: ignore[attr-defined]
    small = make_pool(Drift, 300, engine="kernel", num_workers=1)
    large.reset(seed=0)
    seeds = [int(i) + 50 for i in ids]
    batches = [[pool.reset(seed=seeds, env_id=own)] for pool, own in ((large, ids), (small, np.arange(300)))]
    for turn in range(6):
        actions = np.full(300, turn % 3 - 1)
        batches[0].append(large.step(actions, env_id=ids))
        batches[1].append(small.step(actions))
    for one, other in zip(*batches, strict=True):
        np.testing.assert_array_equal(one.env_id, ids)
        for name in ("obs", "reward", "terminated", "truncated", "elapsed_step", "first"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_a_pool_decides_by_measuring_its_own_batches(make_pool: Callable[..., Pool], clock: Clock) -> None:
    """The clock stands still here, so every batch is short and no thread starts."""
    before = kernel_threads()
    pool = make_pool(Drift, 1000, engine="kernel", num_workers=3)
    pool.reset(seed=1)
    for _ in range(20):
        pool.step(np.zeros(1000, np.int64))
    assert kernel_threads() == before


def test_closing_a_pool_ends_its_threads() -> None:
    before = kernel_threads()
    with no_leftovers(0.0), shoal.make_pool(Drift, 1000, engine="kernel", num_workers=3) as pool:
        pool.engine._threads.run = pool.engine._threads._run_split  # type: ignore[attr-defined]
        pool.reset(seed=1)
        pool.step(np.zeros(1000, np.int64))
        assert len(kernel_threads() - before) == 2
