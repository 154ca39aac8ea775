"""Sharing a large batch between threads, when that has proved to be faster.

Compiled loops run without the GIL, so slices of a batch can run side by side. Handing a slice over takes longer
than a small batch takes to run, and whether it pays depends on the env, the machine and what else runs on it; so
it is tried and timed, with the caller's own batches, and tried again now and then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter

from shoal.engines.base import shares

Slice = Callable[[int, int, int], None]

_WORTH_TRYING_S = 100e-6  # several times a hand-over between Python threads
_TRIAL = 6  # runs of each form before the faster one is kept ...
_KEPT_S = 1.0  # ... for about this long


class SharedRun:
    """Runs ``part(start, stop, slot)`` over a batch: in the caller's thread, or in slices on several threads.

    Attributes:
        num_threads: How many threads there may be, the caller's included.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._jobs: SimpleQueue[tuple[Slice, int, int, int] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._owed = 0
        self._size = 0
        self._trials: list[tuple[bool, float]] = []
        self._splits = False
        self._runs_left = 0

    def run(self, part: Slice, size: int) -> None:
        """Run the whole batch."""
        if self._owed:
            # An interrupt has left slices of the last batch running, and they move the same envs.
            with self._lock:
                self._settle()
        if self.num_threads == 1:
            part(0, size, 0)
            return
        if self._runs_left <= 0 or size != self._size:
            self._try(part, size)
            return
        self._runs_left -= 1
        if self._splits:
            self._run_split(part, size)
        else:
            part(0, size, 0)

    def _try(self, part: Slice, size: int) -> None:
        if size != self._size:
            self._size, self._trials = size, []
        split = len(self._trials) % 2 == 1
        start = perf_counter()
        if split:
            self._run_split(part, size)
        else:
            part(0, size, 0)
        self._trials.append((split, perf_counter() - start))
        alone = min(seconds for was_split, seconds in self._trials if not was_split)
        if alone < _WORTH_TRYING_S:
            self._decide(False, alone)
        elif len(self._trials) == 2 * _TRIAL:
            together = min(seconds for was_split, seconds in self._trials if was_split)
            self._decide(together < alone, min(together, alone))

    def _decide(self, splits: bool, run_s: float) -> None:
        self._splits, self._trials = splits, []
        self._runs_left = int(_KEPT_S / max(run_s, 1e-6))

    def _run_split(self, part: Slice, size: int) -> None:
        # Closing has to wait for its turn: it would take the answers that are awaited here.
        with self._lock:
            self._settle()
            if not self._threads:
                self._start()
            mine, *others = (share for share in shares(size, self.num_threads) if share)
            for slot, share in enumerate(others, 1):
                self._owed += 1
                self._jobs.put((part, share.start, share.stop, slot))
            part(mine.start, mine.stop, 0)
            errors = self._settle()
        if errors:
            raise errors[0]

    def _settle(self) -> list[BaseException]:
        """Wait for all slices; returns what they have raised."""
        errors = []
        while self._owed:
            error = self._done.get()
            self._owed -= 1
            if error is not None:
                errors.append(error)
        return errors

    def _start(self) -> None:
        self._threads = [
            threading.Thread(target=_serve, args=(self._jobs, self._done), name="shoal-kernel", daemon=True)
            for _ in range(self.num_threads - 1)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            self._settle()
            for _ in self._threads:
                self._jobs.put(None)
            for thread in self._threads:
                thread.join()
            self._threads = []


def _serve(jobs: SimpleQueue[tuple[Slice, int, int, int] | None], done: SimpleQueue[BaseException | None]) -> None:
    while (job := jobs.get()) is not None:
        part, start, stop, slot = job
        error: BaseException | None = None
        try:
            part(start, stop, slot)
        except BaseException as raised:  # whatever it is, it belongs to the caller
            error = raised
        done.put(error)
