"""Runs one job after another on a simulator, in a thread of its own or in that of whoever waits for a result.

A simulator takes one call at a time, and uses its own threads for it. So jobs are in a queue, and whoever comes first
runs the next one: the conductor, if there is one and it was called, or the caller, when it waits for the result.

With a conductor, a program has its own thread to itself while envs move. But two Python threads that take turns cost
each other some 200 µs per job, more than a small job itself. So the conductor is called only if jobs take clearly
longer than that, and so does what the caller does between two waits: a loop with a policy in it is helped, and one
that does nothing else is not held up.

A simulator is quicker with many envs at once. So if a caller waits for one job while others are in the queue, those
that can be joined become one: a loop that sends half of the envs while the other half is still to be stepped has all
of them stepped together, and finds the second half ready.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Job = Callable[[], T]

_LONG_S = 600e-6  # half of it is what a caller loses with the conductor in its way; the rest is what it may gain
_PATIENCE_S = 5.0  # for the job that runs when the program ends
_MEMORY = 0.25  # weight of the newest job, or of a shorter absence, in the running average ...
_DOUBT = 0.1  # ... and of a longer absence: one pause says little, and others may have held the caller up


class Conductor(Generic[T]):
    """Runs jobs in order, and keeps their results until they are taken.

    Args:
        has_thread: Whether jobs may start on their own, in a thread beside the caller's.
        join: Makes one job of two consecutive ones; returns None if they are to be done one by one.

    Attributes:
        turn: Held by whoever uses the simulator.
    """

    def __init__(self, *, has_thread: bool, join: Callable[[Any, Any], Job[T] | None] | None = None) -> None:
        self._join = join
        self.turn = threading.Lock()
        self._jobs: list[Job[T]] = []
        self._results: deque[T] = deque()
        # Two counts, so that each has one writer: whoever submits, and whoever has the turn.
        self._submitted = self._finished = 0
        self._news = threading.Condition()
        self._wake: SimpleQueue[bool] | None = SimpleQueue() if has_thread else None
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()
        # How long the caller is away, and how long jobs take; both count as long until they are known.
        self._absence_s = self._job_s = 4 * _LONG_S
        self._left_at: float | None = None

    def submit(self, job: Job[T]) -> None:
        """Put a job at the end of the queue."""
        self._jobs.append(job)
        self._submitted += 1
        self._call_thread_if_it_pays()

    @property
    def has_results(self) -> bool:
        """Whether there is something to take at once."""
        return bool(self._results)

    def run_all(self) -> None:
        """Run jobs until there are none left, or the conductor is to end."""
        while self._jobs and not self._is_ending.is_set():
            with self.turn:
                self._run()
            with self._news:
                self._news.notify_all()

    def take(self, timeout_s: float | None, wanted: int = 1) -> T | None:
        """The next result, or None if there is none in time, or none to come; however many envs it is for.

        A caller without a timeout helps if nobody is at work. If there is no thread, every caller does.
        """
        if timeout_s is None or self._wake is None:
            self._help()
        else:
            self._call_thread()
            self._await(monotonic() + timeout_s)
        return self._results.popleft() if self._results else None

    def come(self) -> None:
        """Note that the caller is here, and will take results."""
        if self._left_at is not None:
            change_s = min(monotonic() - self._left_at, 4 * _LONG_S) - self._absence_s
            self._absence_s += (_DOUBT if change_s > 0 else _MEMORY) * change_s

    def leave(self) -> None:
        """Note that the caller leaves with what it has got; what is left to do may be done meanwhile."""
        self._left_at = monotonic()
        self._call_thread_if_it_pays()

    def close(self) -> None:
        """Forget what has not begun, wait for what has, and end the thread."""
        self._jobs.clear()
        if self._thread is not None and self._wake is not None:
            self._wake.put(False)
            self._thread.join()
            self._thread = None
        self._submitted = self._finished

    def _call_thread_if_it_pays(self) -> None:
        if min(self._absence_s, self._job_s) > _LONG_S:
            self._call_thread()

    def _call_thread(self) -> None:
        if self._wake is None or not self._jobs:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=_conduct, args=(weakref.ref(self), self._wake), name="shoal-native", daemon=True
            )
            # A pool that is dropped without being closed also ends the thread, which must not keep it alive. So does a
            # program that ends: a simulator whose memory goes while it is at work would crash the program.
            weakref.finalize(self, _end, self._is_ending, self._wake, self._thread)
            self._thread.start()
        self._wake.put(True)

    def _help(self) -> None:
        """Do the next job with all that can be joined to it, or wait for the one that another thread is doing."""
        if not self._results:
            with self.turn:
                if not self._results:
                    self._run(joins=True)

    def _await(self, end: float) -> None:
        """Wait until there is a result, or none can come, or time is up."""
        with self._news:
            while not self._results and self._submitted > self._finished and (left := end - monotonic()) > 0:
                self._news.wait(left)

    def _run(self, *, joins: bool = False) -> None:
        jobs = self._jobs.copy()  # closing the pool clears the queue
        if not jobs:
            return
        job, count = jobs[0], 1
        while joins and self._join and count < len(jobs) and (both := self._join(job, jobs[count])) is not None:
            job, count = both, count + 1
        began = monotonic()
        del self._jobs[:count]  # in one go, and right before they are done: an interrupt must not lose any
        self._results.append(job())
        self._finished += count
        self._job_s += _MEMORY * (min((monotonic() - began) / count, 4 * _LONG_S) - self._job_s)


def _end(is_ending: threading.Event, wake: SimpleQueue[bool], thread: threading.Thread) -> None:
    is_ending.set()
    wake.put(False)
    if thread is not threading.current_thread() and thread.is_alive():
        thread.join(_PATIENCE_S)


def _conduct(conductor: weakref.ref[Conductor[T]], wake: SimpleQueue[bool]) -> None:
    while wake.get():
        alive = conductor()
        if alive is None:
            return
        alive.run_all()
        del alive
