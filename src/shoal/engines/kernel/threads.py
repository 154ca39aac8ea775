"""Sharing a large batch between threads, when that has proved to be faster.

Compiled loops run without the GIL, so slices of a batch can run side by side. Whether that pays depends on the env, the
machine, and what the program does between two batches. So both ways are tried with the caller's own batches, timed
from one batch to the next, and tried again now and then.

A helper that has done its slice watches its bell for about as long as a batch takes (``bells``), and then sleeps. An
idle pool costs nothing.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.engines.base import shares
from shoal.engines.kernel.bells import DONE, IDS, POSTED, START, STOP, TABLE, new_bells
from shoal.engines.kernel.loading import own_function
from shoal.machine import pin_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Array = np.ndarray[Any, Any]

_WORTH_TRYING_S = 20e-6  # many times a hand-over between threads that are awake
_CLEARLY = 0.95  # what counts as faster
_TRIAL = 5  # batches in a row in one way, the first of which is not timed ...
_TURNS = 4  # ... and how often the two ways take turns
_KEPT_S = 0.02  # for how long the faster way is kept at first; each time it wins again, for twice as long
_LONGEST_S = 1.0
_LOOKS = 400_000  # how often a helper looks at its bell before it sleeps: 100 to 200 µs
_PATIENCE = 4_000_000  # how often the caller looks before it lets others have the core


class Work(Protocol):
    """What there is to share: the step of all envs of an engine."""

    def run_slice(self, table: _Array, ids: _Array, start: int, stop: int, slot: int) -> None:
        """Step ``ids[start:stop]``; an env that raises gets a fault."""

    def keep_fault(self, error: Exception, ids: _Array, slot: int) -> int:
        """Keep the fault of the env at which a slice has stopped; returns where to continue."""

    def serving(self, bell: _Array, slot: int, looks: int) -> Callable[[], Any]:
        """The compiled call in which a helper watches its bell and steps slices."""


class SharedRun:
    """Steps batches: in the caller's thread, or in slices on several threads.

    Args:
        work: What there is to share.
        num_threads: How many threads there may be, the caller's included.
        cpus: CPUs for the other threads, assigned in turn; where its own thread runs is the caller's business.

    Attributes:
        num_threads: How many threads there may be, the caller's included.
    """

    def __init__(self, work: Work, num_threads: int, cpus: Sequence[int] | None = None) -> None:
        self.num_threads = num_threads
        self._cpus = cpus
        self._work = work
        self._helpers: list[Helper] = []
        self._bells = new_bells(num_threads - 1)
        self._lock = threading.Lock()
        self._size = 0
        self._choice = Choice()

    def run(self, table: _Array, ids: _Array) -> None:
        """Step all of ``ids``."""
        size = len(ids)
        if size != self._size:
            self._size, self._choice = size, Choice()
        if self.num_threads > 1 and self._choice.is_split():
            self._run_split(table, ids)
            return
        self.settle()
        self._work.run_slice(table, ids, 0, size, 0)
        self._choice.note_run()

    def settle(self) -> None:
        """Wait for slices that an interrupt has left running: they step the same envs."""
        if self._helpers:
            with self._lock:
                self._settle()

    @property
    def splits(self) -> bool:
        """Whether batches are being shared."""
        return self._choice.splits

    def _run_split(self, table: _Array, ids: _Array) -> None:
        # Closing has to wait its turn: a helper that is told to end does no more slices.
        with self._lock:
            self._settle()
            if not self._helpers:
                self._start()
            for helper in self._helpers:
                helper.error = None  # may be left over from a batch that was interrupted
            mine, *others = shares(len(ids), self.num_threads)
            for helper, share in zip(self._helpers, others, strict=True):
                helper.post(table, ids, share)
            self._work.run_slice(table, ids, mine.start, mine.stop, 0)
            self._settle()
            errors = [helper.error for helper in self._helpers if helper.error is not None]
        if errors:
            raise errors[0]

    def _start(self) -> None:
        self._await_done = own_function("await_done").bind(self._bells.ctypes.data, len(self._bells), _PATIENCE)
        started: list[Helper] = []
        # A pool that is dropped without being closed ends its helpers too.
        weakref.finalize(self, _end, started)
        try:
            for slot, bell in enumerate(self._bells, 1):
                started.append(Helper(self._work, bell, slot, self._cpus))
        except BaseException:
            _end(started)
            raise
        self._helpers = started

    def _settle(self) -> None:
        while self._helpers and not self._await_done():
            sleep(0)

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            self._settle()
            _end(self._helpers)
            self._helpers = []


def _end(helpers: list[Helper]) -> None:
    while helpers:
        helpers.pop().end()


class Choice:
    """Finds out whether to split batches, from the time between one batch and the next."""

    def __init__(self) -> None:
        self.splits = False
        self._left = 0
        self._tried = 0
        self._started = 0.0
        self._best = [float("inf"), float("inf")]
        self._kept_s = _KEPT_S

    def is_split(self) -> bool:
        """Whether to split the batch that is about to start."""
        if self._left:
            self._left -= 1
            return self.splits
        now = perf_counter()
        turn, place = divmod(self._tried, _TRIAL)
        if place > 1 or (place == 0 and turn):
            # The batch before this one ran in the same way as the one before it, unless it was the first of its turn.
            last = (self._tried - 1) // _TRIAL % 2
            self._best[last] = min(self._best[last], now - self._started)
        self._started = now
        if turn == _TURNS:
            self._decide(self._best[1] < _CLEARLY * self._best[0])
            return self.splits
        self._tried += 1
        return turn % 2 == 1

    def note_run(self) -> None:
        """Note that a batch has run in one thread; if that was quick, splitting is not worth trying."""
        if not self._left and self._started and perf_counter() - self._started < _WORTH_TRYING_S:
            self._best[0] = min(self._best[0], _WORTH_TRYING_S)
            self._decide(False)

    def _decide(self, splits: bool) -> None:
        self._kept_s = min(2 * self._kept_s, _LONGEST_S) if splits == self.splits else _KEPT_S
        self._left = int(self._kept_s / max(min(self._best), 1e-6)) + 1
        self.splits, self._tried, self._started = splits, 0, 0.0
        self._best = [float("inf"), float("inf")]


class Helper:
    """A thread that steps slices."""

    def __init__(self, work: Work, bell: _Array, slot: int, cpus: Sequence[int] | None = None) -> None:
        self.error: BaseException | None = None
        self._work = weakref.ref(work)  # the thread must not keep the engine alive
        self._serve = work.serving(bell, slot, _LOOKS)
        self._bell = bell
        self._slot = slot
        self._cpus = cpus
        self._job: tuple[_Array, _Array] | None = None
        self._share = range(0)
        self._is_asleep = False
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="shoal-kernel", daemon=True)
        self._thread.start()

    def post(self, table: _Array, ids: _Array, share: range) -> None:
        """Give the helper a slice, and wake it if it sleeps."""
        bell, job = self._bell, self._job
        if job is None or job[0] is not table or job[1] is not ids or share != self._share:
            # An interrupt in the next lines must not leave the bell and the job in disagreement unnoticed.
            self._job = None
            bell[TABLE], bell[IDS] = table.ctypes.data, ids.ctypes.data
            bell[START], bell[STOP] = share.start, share.stop
            self._job, self._share = (table, ids), share
        bell[POSTED] += 1
        # The GIL makes this and the last lines of ``_live`` take turns, so no slice is left to a sleeping helper.
        if self._is_asleep:
            self._is_asleep = False
            self._wake.put(True)

    def _live(self) -> None:
        pin_thread(self._cpus, self._slot)
        bell = self._bell
        while True:
            try:
                self._serve()
            except Exception as error:
                self._go_on(error)
                continue
            self._is_asleep = True
            if bell[POSTED] != bell[DONE]:
                self._is_asleep = False
            elif not self._wake.get():
                return

    def _go_on(self, error: Exception) -> None:
        """Finish a slice in which an env has raised; whatever goes wrong here belongs to the caller."""
        try:
            work, job = self._work(), self._job
            if work is not None and job is not None:
                table, ids = job
                rest = work.keep_fault(error, ids, self._slot)
                work.run_slice(table, ids, rest, self._share.stop, self._slot)
        except BaseException as raised:
            self.error = raised
        self._bell[DONE] = self._bell[POSTED]

    def end(self) -> None:
        """End the thread, which must be idle."""
        self._wake.put(False)
        self._thread.join()
