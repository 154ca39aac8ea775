"""Large batches in slices: the same rows whoever runs them, and nothing of it left when it is over."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("numba")

from kernel_kinds import LASTING, MODES, Cell, Drift, assert_same

import shoal
from shoal.engines.kernel import shelf, threads
from shoal.engines.kernel.bells import DONE, IDS, POSTED, START, STOP, TABLE
from shoal.engines.kernel.threads import Choice, Helper, SharedRun
from shoal.errors import EnvStepError
from shoal.testing import no_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal import Pool
    from shoal.batch import Batch

ALIVE_S = 5.0
"""A wait this long means that something hangs."""

CORES = sorted(os.sched_getaffinity(0))
TABLE_OF_NONE = np.zeros(3, np.uint64)
TRIAL = threads._TRIAL * threads._TURNS


def ids_of(size: int) -> np.ndarray[Any, Any]:
    return np.arange(size, dtype=np.int32)


def kernel_threads() -> set[threading.Thread]:
    """The threads of all SharedRuns."""
    return {thread for thread in threading.enumerate() if thread.name == "shoal-kernel"}


def until(is_so: Callable[[], bool]) -> bool:
    """Wait for something that other threads do; False if it takes too long."""
    deadline = time.monotonic() + ALIVE_S
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-4)
    return True


def finish(*calls: Callable[[], Any]) -> None:
    """Run calls side by side; all must return."""
    workers = [threading.Thread(target=call, daemon=True) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(ALIVE_S)
    assert not any(worker.is_alive() for worker in workers), "a call did not return"


def finish_batches(run: SharedRun, *calls: Callable[[], Any]) -> None:
    """The same for calls of a pool's own; one that hangs fails here, and not again when its pool is closed."""
    try:
        finish(*calls)
    except AssertionError:
        run._bells[:, DONE] = run._bells[:, POSTED]
        raise


class Fake:
    """Work that is a Python function of (start, stop, slot); helpers speak the language of bells in Python."""

    def __init__(self, part: Callable[[int, int, int], None]) -> None:
        self.part = part
        self.faults: list[tuple[Exception, int]] = []
        self.heard: list[tuple[int, ...]] = []

    def run_slice(self, table: Any, ids: Any, start: int, stop: int, slot: int) -> None:
        self.part(start, stop, slot)

    def keep_fault(self, error: Exception, ids: Any, slot: int) -> int:
        """The first env of a slice is the one that fails here."""
        self.faults.append((error, slot))
        (place,) = error.args
        return place + 1

    def serving(self, bell: Any, slot: int, looks: int) -> Callable[[], None]:
        return partial(self._serve, bell, slot, looks)

    def _serve(self, bell: Any, slot: int, looks: int) -> None:
        left = looks
        while left >= 0:
            posted = int(bell[POSTED])
            if posted == bell[DONE]:
                left -= 1
                continue
            self.heard.append(tuple(int(bell[word]) for word in (TABLE, IDS)))
            self.part(int(bell[START]), int(bell[STOP]), slot)
            bell[DONE] = posted
            left = looks


class Always(Choice):
    """Splits whatever the clock says."""

    def is_split(self) -> bool:
        return True


class Never(Choice):
    """Does not split whatever the clock says."""

    def is_split(self) -> bool:
        return False


@pytest.fixture
def split_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "Choice", Always)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SharedRun]]:
    """Makes SharedRuns of Fakes that are closed at the end; a hung one fails the test and does not stop it."""
    made: list[SharedRun] = []
    # Python looks slowly, and whoever looks in compiled code looks at a core that Python could have.
    monkeypatch.setattr(threads, "_LOOKS", 20)
    monkeypatch.setattr(threads, "_PATIENCE", 2000)

    def make(work: Any, num_threads: int) -> SharedRun:
        made.append(SharedRun(work, num_threads))
        return made[-1]

    yield make
    for run in made:
        finish(run.close)


class Clock:
    """Stands in for ``perf_counter``: time passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(threads, "perf_counter", clock)
    # One length for all answers, unless a test is about just that.
    monkeypatch.setattr(threads, "_KEPT_S", 1.0)
    monkeypatch.setattr(threads, "_LONGEST_S", 1.0)
    return clock


# ---------------------------------------------------------------------- when to share


class Program:
    """A program whose batches take ``alone_s`` or ``split_s``, and which does other things for ``between_s``."""

    def __init__(self, clock: Clock, alone_s: float, split_s: float, between_s: float = 0.0) -> None:
        self.clock = clock
        self.alone_s, self.split_s, self.between_s = alone_s, split_s, between_s

    def batches(self, choice: Choice, count: int) -> list[bool]:
        """How so many batches in a row are run."""
        ways = []
        for _ in range(count):
            split = choice.is_split()
            self.clock.now += self.split_s if split else self.alone_s
            if not split:
                choice.note_run()
            self.clock.now += self.between_s
            ways.append(split)
        return ways


@pytest.mark.parametrize(
    ("split_ms", "kept"), [(0.3, True), (0.6, True), (0.94, True), (0.96, False), (1.0, False), (1.2, False)]
)
def test_slices_are_kept_when_they_are_clearly_faster(split_ms: float, kept: bool, clock: Clock) -> None:
    program, choice = Program(clock, 1e-3, split_ms * 1e-3), Choice()
    program.batches(choice, TRIAL)
    assert program.batches(choice, 500) == [kept] * 500
    assert choice.splits is kept


def test_a_trial_takes_turns_and_begins_alone(clock: Clock) -> None:
    ways = Program(clock, 1e-3, 0.5e-3).batches(Choice(), TRIAL)
    turn = threads._TRIAL
    assert ways == [False] * turn + [True] * turn + [False] * turn + [True] * turn


def test_nothing_is_said_to_be_split_before_it_is_decided(clock: Clock) -> None:
    program, choice = Program(clock, 1e-3, 0.5e-3), Choice()
    for _ in range(TRIAL):
        assert choice.splits is False
        program.batches(choice, 1)
    program.batches(choice, 1)
    assert choice.splits is True


@pytest.mark.parametrize(("between_s", "kept"), [(0.0, True), (1e-3, True), (20e-3, False)])
def test_it_is_the_whole_cycle_that_has_to_be_shorter(between_s: float, kept: bool, clock: Clock) -> None:
    program, choice = Program(clock, 1e-3, 0.5e-3, between_s), Choice()
    program.batches(choice, TRIAL)
    assert program.batches(choice, 1) == [kept]


def test_what_helpers_take_away_from_the_program_counts(clock: Clock) -> None:
    """Batches become faster, and the program between them slower by more."""
    choice = Choice()
    for _ in range(TRIAL + 1):
        split = choice.is_split()
        clock.now += 0.5e-3 if split else 1e-3
        if not split:
            choice.note_run()
        clock.now += 1.6e-3 if split else 1e-3
    assert choice.splits is False


@pytest.mark.parametrize("odd", [0.1e-3, 50e-3])
def test_the_first_batch_of_a_turn_does_not_count(odd: float, clock: Clock) -> None:
    program, choice = Program(clock, 1e-3, 1.2e-3), Choice()
    for turn in range(threads._TURNS):
        program.split_s = odd
        program.batches(choice, 1)
        program.split_s = 1.2e-3
        program.batches(choice, threads._TRIAL - 1)
        assert turn % 2 == 0 or not choice.splits
    assert program.batches(choice, 1) == [False]


@pytest.mark.parametrize("split_ms", [0.6, 1.4])
@pytest.mark.parametrize("place", range(TRIAL))
def test_a_pause_during_the_trial_does_not_matter(place: int, split_ms: float, clock: Clock) -> None:
    program, choice = Program(clock, 1e-3, split_ms * 1e-3), Choice()
    program.batches(choice, place)
    program.between_s = 3.0
    program.batches(choice, 1)
    program.between_s = 0.0
    program.batches(choice, TRIAL - place - 1)
    assert program.batches(choice, 1) == [split_ms < 1.0]


@pytest.mark.parametrize("between_s", [0.0, 1e-5, 1e-2])
def test_short_batches_are_never_split(between_s: float, clock: Clock) -> None:
    program = Program(clock, 0.9 * threads._WORTH_TRYING_S, 1e-9, between_s)
    # So many that the question comes up more than once.
    assert not any(program.batches(Choice(), int(2.5 * threads._KEPT_S / threads._WORTH_TRYING_S)))


def test_batches_that_are_hardly_long_enough_are_tried(clock: Clock) -> None:
    assert any(Program(clock, 1.1 * threads._WORTH_TRYING_S, 1e-9).batches(Choice(), TRIAL))


@pytest.mark.parametrize("was_split", [False, True])
def test_the_question_is_asked_again_now_and_then(was_split: bool, clock: Clock) -> None:
    slow, fast = 1.2e-3, 0.5e-3
    program, choice = Program(clock, 1e-3, fast if was_split else slow), Choice()
    program.batches(choice, TRIAL)
    assert program.batches(choice, 1) == [was_split]
    program.split_s = slow if was_split else fast
    decided, asked_anew = clock.now, False
    while not asked_anew and clock.now < decided + 10 * threads._KEPT_S:
        asked_anew = program.batches(choice, 1) != [was_split]
    kept_s = clock.now - decided
    # What has become slower is kept for as many batches, not for as long; and a trial begins alone.
    assert threads._KEPT_S * 0.9 < kept_s < threads._KEPT_S * (slow / fast) * 1.1
    program.batches(choice, TRIAL)
    assert program.batches(choice, 100) == [not was_split] * 100


def test_the_answer_is_kept_for_about_as_long_as_it_says(clock: Clock) -> None:
    program, choice = Program(clock, 2e-3, 1e-3), Choice()
    program.batches(choice, TRIAL)
    ways = program.batches(choice, 2000)
    first_alone = ways.index(False)
    assert first_alone * 1e-3 == pytest.approx(threads._KEPT_S, rel=0.01)
    assert ways[first_alone : first_alone + threads._TRIAL + 1] == [False] * threads._TRIAL + [True]


def test_an_answer_that_is_given_again_is_kept_for_longer(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_KEPT_S", 0.02)
    program, choice = Program(clock, 2e-3, 1e-3), Choice()
    lengths, was_split = [], False
    for is_split in program.batches(choice, 5000):
        if is_split and was_split:
            lengths[-1] += 1
        elif is_split:
            lengths.append(1)
        was_split = is_split
    kept = [length for length in lengths if length > threads._TRIAL]
    # The first answer is a change of mind; each later one is kept for twice as long, up to the longest.
    # The last turn of the trial, which is split too, comes on top.
    extra = [length - wanted for length, wanted in zip(kept, [20, 40, 80, 160, 320, 640, 1000], strict=False)]
    assert len(extra) == 7
    assert all(0 <= batches <= threads._TRIAL + 1 for batches in extra), kept


class Timed(Fake):
    """Takes ``alone_s`` as a whole and ``split_s`` in slices, and notes how it was run."""

    def __init__(self, clock: Clock, alone_s: float, split_s: float) -> None:
        super().__init__(self._note)
        self.clock = clock
        self.alone_s, self.split_s = alone_s, split_s
        self.size = 1000
        self.slices: list[tuple[int, int, int]] = []

    def _note(self, start: int, stop: int, slot: int) -> None:
        self.slices.append((start, stop, slot))
        if slot == 0:
            self.clock.now += self.alone_s if stop == self.size else self.split_s

    def ways(self, run: SharedRun, size: int, count: int) -> list[bool]:
        """How so many batches of this size are run."""
        self.size, ids, ways = size, ids_of(size), []
        for _ in range(count):
            self.slices = []
            run.run(TABLE_OF_NONE, ids)
            ways.append(len(self.slices) > 1)
        return ways


@pytest.mark.parametrize("split_ms", [0.6, 1.2])
def test_batches_are_run_as_was_decided(split_ms: float, shared: Callable[..., SharedRun], clock: Clock) -> None:
    work = Timed(clock, 1e-3, split_ms * 1e-3)
    run = shared(work, 3)
    assert sum(work.ways(run, 1000, TRIAL)) == TRIAL // 2
    assert work.ways(run, 1000, 20) == [split_ms < 1.0] * 20
    assert run.splits is (split_ms < 1.0)


def test_short_batches_start_no_thread(shared: Callable[..., SharedRun], clock: Clock) -> None:
    work = Timed(clock, 0.9 * threads._WORTH_TRYING_S, 1e-9)
    with no_leftovers(0.0):
        run = shared(work, 3)
        assert not any(work.ways(run, 1000, 100))
        assert run._helpers == []
        assert not run.splits


def test_another_size_starts_anew(shared: Callable[..., SharedRun], clock: Clock) -> None:
    work = Timed(clock, 1e-3, 0.6e-3)
    run = shared(work, 2)
    trial = work.ways(run, 1000, TRIAL)
    assert work.ways(run, 1000, 5) == [True] * 5
    work.split_s = 1.5e-3
    assert work.ways(run, 500, TRIAL) == trial
    assert work.ways(run, 500, 5) == [False] * 5
    work.split_s = 0.6e-3
    assert work.ways(run, 1000, TRIAL) == trial
    assert work.ways(run, 1000, 5) == [True] * 5


def test_one_thread_runs_everything_itself(shared: Callable[..., SharedRun], clock: Clock) -> None:
    work = Timed(clock, 1.0, 1e-9)
    run = shared(work, 1)
    with no_leftovers(0.0):
        assert work.ways(run, 1000, 2 * TRIAL) == [False] * 2 * TRIAL
    assert work.slices == [(0, 1000, 0)]


# ---------------------------------------------------------------------- slices


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_slices_cover_the_batch_once_and_have_slots_of_their_own(
    num_threads: int, shared: Callable[..., SharedRun]
) -> None:
    seen: list[tuple[int, int, int]] = []
    run = shared(Fake(lambda start, stop, slot: seen.append((start, stop, slot))), num_threads)
    for size in (1, 2, 4, 7, 1000):
        ids = ids_of(size)
        for _ in range(3):
            seen.clear()
            run.run(TABLE_OF_NONE, ids)
            rows = [row for start, stop, _ in sorted(seen) for row in range(start, stop)]
            assert rows == list(range(size))
            slots = [slot for _, _, slot in seen]
            assert len(set(slots)) == len(slots)
            assert set(slots) <= set(range(num_threads))
            sizes = [stop - start for start, stop, _ in seen]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.usefixtures("split_always")
def test_helpers_are_told_of_other_tables_and_ids(shared: Callable[..., SharedRun]) -> None:
    """Also of those of the same size: a pool has several tables, and any ids may be stepped."""
    work = Fake(lambda start, stop, slot: None)
    run = shared(work, 2)
    tables, several = [TABLE_OF_NONE, TABLE_OF_NONE.copy()], [ids_of(10), ids_of(10), ids_of(12)]
    for turn in range(12):
        table, ids = tables[turn // 4 % 2], several[turn % 3]
        run.run(table, ids)
        assert work.heard[-1] == (table.ctypes.data, ids.ctypes.data)
    assert len(work.heard) == 12


@pytest.mark.usefixtures("split_always")
def test_ids_live_for_as_long_as_a_helper_may_read_them(shared: Callable[..., SharedRun]) -> None:
    work = Fake(lambda start, stop, slot: None)
    run = shared(work, 2)
    for _ in range(50):
        run.run(TABLE_OF_NONE, ids_of(300))
        # The bell points at them still, so that memory must not be anybody else's.
        assert run._helpers[0]._job[1].ctypes.data == work.heard[-1][1]


# ---------------------------------------------------------------------- sleeping and waking


@pytest.mark.usefixtures("split_always")
def test_a_helper_that_sleeps_is_woken(shared: Callable[..., SharedRun]) -> None:
    slots: list[int] = []
    run = shared(Fake(lambda start, stop, slot: slots.append(slot)), 3)
    ids = ids_of(9)
    for _ in range(5):
        slots.clear()
        finish(lambda: run.run(TABLE_OF_NONE, ids))
        assert sorted(slots) == [0, 1, 2]
        assert until(lambda: all(helper._is_asleep for helper in run._helpers))


@pytest.mark.usefixtures("split_always")
def test_helpers_of_an_idle_pool_sleep(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 600, engine="kernel", num_workers=3)
    pool.reset(seed=1)
    for _ in range(3):
        pool.step(np.zeros(600, np.int64))
        helpers = pool.engine._threads._helpers
        assert len(helpers) == 2
        assert until(lambda: all(helper._is_asleep for helper in helpers))  # noqa: B023
        if sys.platform == "linux":
            assert until(lambda: all(state_of(helper._thread) == "S" for helper in helpers))  # noqa: B023
            used = [cpu_s(helper._thread) for helper in helpers]
            until_later = time.monotonic() + 0.02
            assert until(lambda: time.monotonic() > until_later)  # noqa: B023
            assert [cpu_s(helper._thread) for helper in helpers] == used


def state_of(thread: threading.Thread) -> str:
    """What the kernel says a thread does: R runs, S sleeps."""
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]


def cpu_s(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize(
    ("looks", "most"), [(400_000, 20_000), (2000, 5000), (0, 5000)], ids=["awake", "nodding off", "asleep"]
)
def test_no_batch_is_lost_in_a_rush(
    looks: int, most: int, make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each env counts its steps; helpers that fall asleep at once do so between any two lines of a post."""
    monkeypatch.setattr(threads, "_LOOKS", looks)
    monkeypatch.setattr(threads, "_PATIENCE", 20_000)
    pool = make_pool(Drift, 257, engine="kernel", num_workers=2, env_kwargs=LASTING)
    pool.reset(seed=1)
    engine: Any = pool.engine
    table = engine._tables[0]
    engine._threads.run(table, engine._all_N)  # compiles
    deadline, count = time.monotonic() + 1.0, 1

    def rush() -> None:
        nonlocal count
        # One core hands over thousands of times more slowly than two, and has made its point before.
        while count < most and (count % 50 or time.monotonic() < deadline):
            engine._threads.run(table, engine._all_N)
            count += 1

    finish_batches(engine._threads, rush)
    assert count >= 50
    assert set(engine._steps.tolist()) == {count}
    assert engine.faults == {}


@pytest.mark.usefixtures("split_always")
def test_threads_that_share_a_pool_lose_no_batch(make_pool: Callable[..., Pool]) -> None:
    """Not that a pool lets them; but batches take turns whoever asks."""
    pool = make_pool(Drift, 257, engine="kernel", num_workers=2, env_kwargs=LASTING)
    pool.reset(seed=1)
    engine: Any = pool.engine

    def some() -> None:
        for _ in range(100):
            engine._threads.run(engine._tables[0], engine._all_N)

    engine._threads.run(engine._tables[0], engine._all_N)  # compiles
    finish_batches(engine._threads, some, some)
    assert set(engine._steps.tolist()) == {201}


# ---------------------------------------------------------------------- errors


@pytest.mark.usefixtures("split_always")
def test_a_helper_goes_on_behind_an_env_that_raises(shared: Callable[..., SharedRun]) -> None:
    seen: list[tuple[int, int, int]] = []
    bad = {10, 11, 29}

    def part(start: int, stop: int, slot: int) -> None:
        if start in bad:
            bad.remove(start)
            raise ValueError(start)
        seen.append((start, stop, slot))

    class Work(Fake):
        """Goes on behind faults as the engine does."""

        def run_slice(self, table: Any, ids: Any, start: int, stop: int, slot: int) -> None:
            while start < stop:
                try:
                    self.part(start, stop, slot)
                    return
                except ValueError as error:
                    start = self.keep_fault(error, ids, slot)

    work = Work(part)
    run = shared(work, 3)
    finish(lambda: run.run(TABLE_OF_NONE, ids_of(30)))
    assert sorted(seen) == [(0, 10, 0), (12, 20, 1), (20, 30, 2)]
    assert [(error.args, slot) for error, slot in work.faults] == [((10,), 1), ((11,), 1)]
    seen.clear()
    finish(lambda: run.run(TABLE_OF_NONE, ids_of(30)))
    assert sorted(seen) == [(0, 10, 0), (10, 20, 1), (20, 30, 2)]


class Failing(Fake):
    """Slices of these slots raise, and so does what should keep their faults."""

    def __init__(self, *slots: int) -> None:
        self.failing = set(slots)
        self.seen: list[int] = []
        super().__init__(self._note)

    def _note(self, start: int, stop: int, slot: int) -> None:
        if slot in self.failing:
            raise ValueError(start)
        self.seen.append(slot)

    def keep_fault(self, error: Exception, ids: Any, slot: int) -> int:
        raise MemoryError(f"no room for a fault in slot {slot}")


def raised_by(call: Callable[[], Any]) -> list[BaseException]:
    """What a call raises; it must return."""
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    finish(attempt)
    return errors


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("failing", [1, 2])
def test_an_error_of_a_helper_reaches_the_caller_and_costs_no_thread(
    failing: int, shared: Callable[..., SharedRun]
) -> None:
    work = Failing()
    run, ids = shared(work, 3), ids_of(30)
    run.run(TABLE_OF_NONE, ids)
    before = kernel_threads()
    for _ in range(3):
        work.failing = {failing}
        (error,) = raised_by(lambda: run.run(TABLE_OF_NONE, ids))
        assert isinstance(error, MemoryError)
        assert str(error) == f"no room for a fault in slot {failing}"
        work.failing, work.seen = set(), []
        assert raised_by(lambda: run.run(TABLE_OF_NONE, ids)) == []
        assert sorted(work.seen) == [0, 1, 2]
    assert kernel_threads() == before


@pytest.mark.usefixtures("split_always")
def test_errors_of_one_batch_are_not_raised_by_the_next(shared: Callable[..., SharedRun]) -> None:
    work = Failing(1, 2)
    run, ids = shared(work, 3), ids_of(30)
    assert len(raised_by(lambda: run.run(TABLE_OF_NONE, ids))) == 1
    work.failing = set()
    assert raised_by(lambda: run.run(TABLE_OF_NONE, ids)) == []
    assert sorted(work.seen) == [0, 0, 1, 2]


@pytest.mark.usefixtures("split_always")
def test_errors_of_an_interrupted_batch_are_not_raised_by_the_next(shared: Callable[..., SharedRun]) -> None:
    work = Failing(1)
    run, ids = shared(work, 2), ids_of(30)
    calm = work.part

    def interrupted(start: int, stop: int, slot: int) -> None:
        if slot == 0:
            raise KeyboardInterrupt
        calm(start, stop, slot)

    work.part = interrupted
    assert [type(error) for error in raised_by(lambda: run.run(TABLE_OF_NONE, ids))] == [KeyboardInterrupt]
    finish(run.settle)
    work.part, work.failing = calm, set()
    assert raised_by(lambda: run.run(TABLE_OF_NONE, ids)) == []
    assert sorted(work.seen) == [0, 1]


@pytest.mark.usefixtures("split_always")
def test_a_cache_that_fails_when_helpers_start_costs_no_batch(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of helpers is compiled when it is first needed; the disk may be full by then."""
    pool = make_pool(Cell, 300, engine="kernel", num_workers=2)
    pool.reset(seed=1)

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shelf, "find", lambda name: None)
    monkeypatch.setattr(shelf.tempfile, "mkstemp", full)
    assert len(pool.step(np.zeros((300, 2), np.float32))) == 300


@pytest.mark.usefixtures("split_always")
def test_a_thread_that_cannot_be_started_leaves_no_other_behind(
    shared: Callable[..., SharedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers that nobody knows of would go on to answer the bells of those that are started next."""
    started: list[Helper] = []
    is_short = True

    class Scarce(Helper):
        def __init__(self, *args: Any) -> None:
            if is_short and started:
                raise RuntimeError("can't start new thread")
            super().__init__(*args)
            started.append(self)

    monkeypatch.setattr(threads, "Helper", Scarce)
    seen: list[int] = []
    run = shared(Fake(lambda start, stop, slot: seen.append(slot)), 3)
    # Whether the batch runs without helpers is another question.
    raised_by(lambda: run.run(TABLE_OF_NONE, ids_of(30)))
    run.close()
    left = [helper for helper in started if helper._thread.is_alive()]
    for helper in left:
        helper.end()
    assert left == []
    is_short = False
    seen.clear()
    assert raised_by(lambda: run.run(TABLE_OF_NONE, ids_of(30))) == []
    assert sorted(seen) == [0, 1, 2]


# ---------------------------------------------------------------------- interrupts


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("then", ["run alone", "run split", "settle", "close"])
def test_an_interrupt_in_the_callers_slice_leaves_nothing_running(
    then: str, shared: Callable[..., SharedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing must begin while slices of the last batch still move the same envs."""
    running, go, seen = threading.Event(), threading.Event(), []

    def part(start: int, stop: int, slot: int) -> None:
        if slot == 0:
            raise KeyboardInterrupt
        running.set()
        go.wait(ALIVE_S)
        seen.append("the last batch")

    work = Fake(part)
    run, ids = shared(work, 2), ids_of(10)
    with pytest.raises(KeyboardInterrupt):
        run.run(TABLE_OF_NONE, ids)
    assert running.wait(ALIVE_S)
    work.part = lambda start, stop, slot: seen.append(str(slot))
    # Whoever waits gets impatient, and then the slice goes on.
    monkeypatch.setattr(threads, "sleep", lambda _: go.set())
    if then == "run alone":
        run._choice = Never()
    {"settle": run.settle, "close": run.close}.get(then, lambda: run.run(TABLE_OF_NONE, ids))()
    go.set()
    assert seen[0] == "the last batch"
    assert sorted(seen[1:]) == {"run alone": ["0"], "run split": ["0", "1"]}.get(then, [])


class Interrupting(np.ndarray[Any, Any]):
    """Ids at whose address somebody presses a key."""

    @property
    def ctypes(self) -> Any:
        raise KeyboardInterrupt


@pytest.mark.usefixtures("split_always")
def test_an_interrupt_while_a_helper_is_told_does_not_mix_two_batches(shared: Callable[..., SharedRun]) -> None:
    work = Fake(lambda start, stop, slot: None)
    run, ids, other = shared(work, 2), ids_of(10), TABLE_OF_NONE.copy()
    run.run(TABLE_OF_NONE, ids)
    with pytest.raises(KeyboardInterrupt):
        run.run(other, ids_of(10).view(Interrupting))
    run.run(TABLE_OF_NONE, ids)
    assert work.heard == [(TABLE_OF_NONE.ctypes.data, ids.ctypes.data)] * 2


@pytest.mark.usefixtures("split_always")
def test_a_pool_can_be_used_after_an_interrupt(make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    pool, fresh = (make_pool(Drift, 600, engine="kernel", num_workers=3, env_kwargs=LASTING) for _ in range(2))
    engine: Any = pool.engine
    pool.reset(seed=1)
    start = pool.snapshot()
    actions = np.zeros(600, np.int64)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_slice", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.step(actions)
    pool.reset(seed=1)
    pool.set_attr("lap", 1)
    fresh.reset(seed=1)
    pool.restore(start)
    for _ in range(3):
        assert_same(columns(pool.step(actions)), columns(fresh.step(actions)))


# ---------------------------------------------------------------------- the end


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("busy", [0, 1])
def test_closing_from_another_thread_ends_both(busy: int, shared: Callable[..., SharedRun]) -> None:
    """``Pool.close`` may be called while another thread steps."""
    running, go, seen = threading.Event(), threading.Event(), []

    def part(start: int, stop: int, slot: int) -> None:
        if slot == busy:
            running.set()
            go.wait(ALIVE_S)
        seen.append(slot)

    before = kernel_threads()
    run = shared(Fake(part), 2)
    stepping = threading.Thread(target=lambda: run.run(TABLE_OF_NONE, ids_of(10)), daemon=True)
    stepping.start()
    assert running.wait(ALIVE_S)
    closing = threading.Thread(target=run.close, daemon=True)
    closing.start()
    # Both wait for the one slice now, or will in a moment.
    closing.join(0.05)
    assert closing.is_alive()
    go.set()
    for thread in (stepping, closing):
        thread.join(ALIVE_S)
    assert [name for name, thread in (("step", stepping), ("close", closing)) if thread.is_alive()] == []
    assert sorted(seen) == [0, 1]
    assert kernel_threads() == before


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("are_asleep", [False, True])
def test_close_ends_the_threads_and_may_be_called_twice(
    are_asleep: bool, shared: Callable[..., SharedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernel_threads()
    with no_leftovers(0.0):
        run = shared(Fake(lambda start, stop, slot: None), 3)
        if not are_asleep:
            monkeypatch.setattr(threads, "_LOOKS", 20_000)
        run.run(TABLE_OF_NONE, ids_of(10))
        mine = kernel_threads() - before
        assert len(mine) == 2
        assert all(thread.daemon for thread in mine), "a program that closes nothing must still end"
        if are_asleep:
            assert until(lambda: all(helper._is_asleep for helper in run._helpers))
        finish(run.close)
        assert not any(thread.is_alive() for thread in mine)
        finish(run.close, run.close)


def test_what_never_ran_can_be_closed_and_settled(shared: Callable[..., SharedRun]) -> None:
    run = shared(Fake(lambda start, stop, slot: None), 3)
    finish(run.settle)
    finish(run.close)
    finish(run.settle)


@pytest.mark.usefixtures("split_always")
def test_closing_a_pool_ends_its_threads() -> None:
    before = kernel_threads()
    with no_leftovers(0.0), shoal.make_pool(Drift, 1000, engine="kernel", num_workers=3) as pool:
        pool.reset(seed=1)
        assert kernel_threads() == before
        pool.step(np.zeros(1000, np.int64))
        assert len(kernel_threads() - before) == 2
        pool.close()
        assert kernel_threads() == before


@pytest.mark.usefixtures("split_always")
def test_pools_side_by_side_have_threads_of_their_own() -> None:
    before = kernel_threads()
    with (
        no_leftovers(0.0),
        shoal.make_pool(Drift, 300, engine="kernel", num_workers=2) as one,
        shoal.make_pool(Drift, 300, engine="kernel", num_workers=2) as other,
    ):
        for pool in (one, other):
            pool.reset(seed=1)
            pool.step(np.zeros(300, np.int64))
        assert len(kernel_threads() - before) == 2
        one.close()
        assert len(kernel_threads() - before) == 1
        assert len(other.step(np.zeros(300, np.int64))) == 300


# ---------------------------------------------------------------------- rows


def columns(batch: Batch) -> list[Any]:
    """A batch as arrays alone: comparing a thousand rows one by one takes long."""
    flags = [batch.terminated, batch.truncated, batch.elapsed_step, batch.first]
    finals = [(row, obs, info["lap"]) for row, (obs, info) in batch.finals.items()]
    return [batch.env_id, batch.obs, batch.reward, *flags, dict(batch.fields), finals]


def play(pool: Pool, num_steps: int) -> list[Any]:
    """A seeded run, as columns; envs that are over are reset where nobody else does it."""
    told = [columns(pool.reset(seed=5))]
    for turn in range(num_steps):
        told.append(columns(batch := pool.step((np.arange(pool.num_envs) + turn) % 3 - 1)))
        over = np.flatnonzero(batch.terminated | batch.truncated)
        if pool.autoreset == "disabled" and len(over):
            told.append(columns(pool.reset(env_id=over)))
    return told


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("autoreset", MODES)
def test_rows_do_not_depend_on_the_number_of_threads(autoreset: str, make_pool: Callable[..., Pool]) -> None:
    runs: list[Any] = []
    for num_workers in (1, 2, 3):
        pool = make_pool(Drift, 1001, engine="kernel", num_workers=num_workers, autoreset=autoreset)
        assert pool.stats().num_workers == num_workers
        told = play(pool, 10)
        assert len(pool.engine._threads._helpers) == num_workers - 1  # type: ignore[attr-defined]
        runs.append((told, pool.stats().episodes))
    assert_same(runs[1], runs[0])
    assert_same(runs[2], runs[0])
    assert runs[0][1] > 500


@pytest.mark.parametrize("autoreset", MODES)
def test_rows_do_not_depend_on_when_batches_are_split(
    autoreset: str, make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sometimes(Choice):
        """Changes its mind every other batch."""

        batches = 0

        def is_split(self) -> bool:
            self.batches += 1
            return self.batches // 2 % 2 == 1

    monkeypatch.setattr(threads, "Choice", Sometimes)
    alone, shared = (make_pool(Drift, 300, engine="kernel", num_workers=n, autoreset=autoreset) for n in (1, 2))
    assert_same(play(shared, 12), play(alone, 12))
    assert shared.stats().episodes == alone.stats().episodes


@pytest.mark.usefixtures("split_always")
def test_parts_of_a_large_pool_have_the_rows_of_a_small_one(make_pool: Callable[..., Pool]) -> None:
    """300 of 600 envs in any order, in slices, against 300 envs in one go."""
    ids = np.random.default_rng(1).permutation(600)[:300]
    large = make_pool(Drift, 600, engine="kernel", num_workers=2)
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


@pytest.mark.slow
@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("autoreset", MODES)
def test_faults_in_several_slices_are_those_of_one_thread(autoreset: str, make_pool: Callable[..., Pool]) -> None:
    """Also at both ends of slices, and in envs that follow one another."""
    failing = [0, 199, 200, 299, 300, 301, 399, 400, 500, 599]
    others = sorted(set(range(600)) - set(failing))
    runs: list[Any] = []
    for num_workers in (1, 2, 3):
        # Nothing is drawn for an end before the second step, so all reach it.
        kwargs = {**LASTING, "length": 4}
        pool = make_pool(Drift, 600, engine="kernel", num_workers=num_workers, autoreset=autoreset, env_kwargs=kwargs)
        pool.set_attr("fail_at", 2, env_id=failing)
        actions = np.arange(600) % 3 - 1
        told = [columns(pool.reset(seed=7)), columns(pool.step(actions))]
        with pytest.raises(EnvStepError, match="step failed in env 0, step 1, seed 7: ") as caught:
            pool.step(actions)
        notes = caught.value.__notes__
        for i in failing[1:]:
            assert any(f"Also: step failed in env {i}, step 1, seed {7 + i}: ValueError" in note for note in notes)
        batch = pool.recv()
        assert batch.env_id.tolist() == others
        assert set(batch.elapsed_step.tolist()) == {2}
        told.append(columns(batch))
        assert pool.stats().faults == len(failing)
        pool.set_attr("fail_at", -1)
        told.append(columns(pool.reset(env_id=failing)))
        before = kernel_threads()
        told += [columns(pool.step(actions)) for _ in range(2)]
        assert told[-1][5][failing].tolist() == [2] * len(failing)
        assert kernel_threads() == before
        runs.append((told, str(caught.value), notes))
    assert_same(runs[1], runs[0])
    assert_same(runs[2], runs[0])


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_batch_in_which_everything_fails_ends(num_workers: int, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 300, engine="kernel", num_workers=num_workers, env_kwargs=LASTING)
    pool.set_attr("fail_at", 1)
    pool.reset(seed=1)
    with pytest.raises(EnvStepError):
        pool.step(np.zeros(300, np.int64))
    assert pool.stats().faults == 300
    pool.set_attr("fail_at", -1)
    pool.reset(seed=1)
    assert set(pool.step(np.zeros(300, np.int64)).elapsed_step.tolist()) == {1}


def test_a_pool_decides_by_measuring_its_own_batches(make_pool: Callable[..., Pool], clock: Clock) -> None:
    """The clock stands still here, so every batch is short and no thread starts."""
    before = kernel_threads()
    pool = make_pool(Drift, 1000, engine="kernel", num_workers=3)
    pool.reset(seed=1)
    for _ in range(2 * TRIAL):
        pool.step(np.zeros(1000, np.int64))
    assert kernel_threads() == before
    assert not pool.engine._threads.splits  # type: ignore[attr-defined]


@pytest.mark.usefixtures("split_always")
@pytest.mark.parametrize(("num_envs", "num_threads"), [(256, 0), (257, 1)])
def test_small_pools_are_never_split(num_envs: int, num_threads: int, make_pool: Callable[..., Pool]) -> None:
    before = kernel_threads()
    pool = make_pool(Drift, num_envs, engine="kernel", num_workers=2)
    pool.reset(seed=1)
    pool.step(np.zeros(num_envs, np.int64))
    pool.step(np.zeros(256, np.int64), env_id=np.arange(256))
    assert len(kernel_threads() - before) == num_threads


def test_helpers_run_where_they_are_told_and_the_caller_where_it_was() -> None:
    seen: dict[int, set[int]] = {}
    run = SharedRun(Fake(lambda start, stop, slot: seen.update({slot: os.sched_getaffinity(0)})), 3, CORES[:1])
    run._run_split(TABLE_OF_NONE, ids_of(9))
    run.close()
    assert seen == {0: set(CORES), 1: {CORES[0]}, 2: {CORES[0]}}
