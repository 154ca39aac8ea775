"""Steps envs of a simulator that can do so while its caller does something else (``OverlappingSim``).

A step is begun when it is submitted, and its row is completed when somebody waits for results. Everything else, such as
resets, is done by whoever waits, before results of steps are taken: meanwhile, the simulator goes on stepping.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.native import OverlappingSim

T = TypeVar("T")


class Overlap(Generic[T]):
    """Stands in for a ``Conductor``.

    Args:
        sim: The simulator.
        finish: Completes the rows of envs that have moved.

    Attributes:
        turn: Held by whoever uses the simulator for anything but beginning steps.
    """

    has_results = False  # all that there are were taken together

    def __init__(self, sim: OverlappingSim, finish: Callable[[list[int]], T]) -> None:
        self._sim = sim
        self._finish = finish
        self._jobs: deque[Callable[[], T]] = deque()
        self.turn = threading.Lock()

    def submit(self, job: Callable[[], T]) -> None:
        """Leave a job to whoever waits next."""
        self._jobs.append(job)

    def take(self, timeout_s: float | None, wanted: int) -> T | None:
        """The outcome of the next job, or of as many steps as are wanted; None if there is none in time, or to come."""
        with self.turn:
            if self._jobs:
                return self._jobs.popleft()()
            moved = self._sim.moved(wanted, timeout_s)
            return self._finish(moved) if moved else None

    def come(self) -> None:
        """Do nothing: envs move whether the caller is here or not."""

    leave = come

    def close(self) -> None:
        """Forget what has not begun."""
        self._jobs.clear()
