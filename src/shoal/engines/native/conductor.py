"""One job after another on a simulator, in a thread of its own or in that of whoever waits for them.

A simulator takes one call at a time, and uses its own threads for it. So jobs are in a queue, and whoever comes first
runs the next one: the conductor, if there is one, as soon as it is submitted; else the caller, when the result is
waited for. With a conductor, a program has its own thread to itself while envs move.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")
Job = Callable[[], T]


class Conductor(Generic[T]):
    """Runs jobs in order, and keeps their results until they are taken.

    Args:
        has_thread: Whether jobs start by themselves, beside the caller.

    Attributes:
        turn: Held by whoever uses the simulator.
    """

    def __init__(self, *, has_thread: bool) -> None:
        self.turn = threading.Lock()
        self._jobs: deque[Job[T]] = deque()
        self._results: deque[T] = deque()
        self._news = threading.Condition()
        self._wake: SimpleQueue[bool] | None = SimpleQueue() if has_thread else None
        self._thread: threading.Thread | None = None

    def submit(self, job: Job[T]) -> None:
        """Put a job at the end of the queue."""
        self._jobs.append(job)
        if self._wake is None:
            return
        if self._thread is None:
            # A pool that is dropped without being closed ends the thread too, which must not keep it alive.
            weakref.finalize(self, self._wake.put, False)
            self._thread = threading.Thread(
                target=_conduct, args=(weakref.ref(self), self._wake), name="shoal-native", daemon=True
            )
            self._thread.start()
        self._wake.put(True)

    @property
    def has_results(self) -> bool:
        """Whether there is something to take at once."""
        return bool(self._results)

    def run_next(self) -> None:
        """Run the next job, when it is its turn; nothing happens if another was quicker."""
        try:
            with self.turn:
                self._run()
        finally:
            # Also when there was nothing to do: whoever has found the turn taken waits for this.
            with self._news:
                self._news.notify_all()

    def take(self, timeout_s: float | None) -> T | None:
        """The next result, or None if there is none in time, or none to come. Helps if nobody is at work."""
        end = None if timeout_s is None else monotonic() + timeout_s
        while not self._results:
            if self.turn.acquire(blocking=False):
                try:
                    if not self._run():
                        break
                finally:
                    self.turn.release()
                continue
            with self._news:
                left = None if end is None else max(0.0, end - monotonic())
                # The other one may have been done before we began to wait.
                if not self._results and self.turn.locked() and not self._news.wait(left) and left is not None:
                    break
        return self._results.popleft() if self._results else None

    def _run(self) -> bool:
        try:
            job = self._jobs.popleft()
        except IndexError:
            return False
        self._results.append(job())
        return True

    def close(self) -> None:
        """Forget what has not begun, wait for what has, and end the thread."""
        self._jobs.clear()
        if self._thread is not None and self._wake is not None:
            self._wake.put(False)
            self._thread.join()
            self._thread = None


def _conduct(conductor: weakref.ref[Conductor[T]], wake: SimpleQueue[bool]) -> None:
    while wake.get():
        alive = conductor()
        if alive is None:
            return
        alive.run_next()
        del alive
