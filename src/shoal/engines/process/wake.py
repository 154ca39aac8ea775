"""Waking another process: counts in shared memory, and a wait for them that is quick without burning a core.

    the side with news   raises a count · fence · posts the semaphore if the count has reached what the other side wants
    the side that waits  looks at the count for a while · says what it wants · fence · looks again · sleeps

Looking at a word takes 0.1 µs, posting or trying a semaphore 0.2 µs; so while both sides are quick, no semaphore is
touched. A POSIX semaphore in the pool's own shared memory has no name and no descriptor, works with every start method,
and holds no lock that a killed process could take with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal.arrays import words
from shoal.quick import quick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

SEMAPHORE_BYTES = 64  # sem_t is 32 bytes on 64-bit Linux; a cache line keeps neighbours apart

NOBODY_WAITS = 2**62

_SPIN_BUDGET_S = 300e-6
_FEW_LOOKS = 8  # a few microseconds; but with a worker on the same core, one look lasts until that worker yields
_STOLEN_S = 1e-3  # a yield that takes longer has given the core to a program that does not yield
_TOO_OFTEN = 12  # thefts count 4 each, and every wait without one takes 1 back
_REST_S = (0.1, 3.2)  # how long not to look: at first, and at most
_MEMORY = 0.25  # weight of the newest wait in the running average

# Whether reads may overtake reads, and writes other writes; x86 processors only let reads overtake writes.
REORDERS = os.uname().machine not in ("x86_64", "amd64", "i386", "i686")

# Posting takes a fraction of a microsecond, so the GIL is kept; a real wait releases it.
_quick = ctypes.PyDLL(None)
_slow = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Semaphore:
    """A counting semaphore at an address in shared memory."""

    def __init__(self, address: int, *, create: bool = False) -> None:
        self._pointer = ctypes.c_void_p(address)
        if create:
            self.clear()

    def clear(self) -> None:
        """Start from zero, whatever a process that died using it left behind; nobody else may be using it now."""
        if _slow.sem_init(self._pointer, 1, 0) != 0:
            raise OSError(ctypes.get_errno(), "sem_init failed")

    def post(self) -> None:
        """Add one, waking a sleeper if there is one."""
        _quick.sem_post(self._pointer)

    def acquire(self, timeout_s: float) -> bool:
        """Take one, sleeping for at most ``timeout_s`` on the monotonic clock."""
        end_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        end = _Timespec(end_ns // 10**9, end_ns % 10**9)
        while _slow.sem_clockwait(self._pointer, time.CLOCK_MONOTONIC, ctypes.byref(end)) != 0:
            if ctypes.get_errno() != errno.EINTR:
                return False
        return True


class Fence:
    """A memory fence: keeps the processor from making later accesses to shared memory before earlier ones.

    Two sides that each write a word and then read the other's could otherwise both read what was there before. A
    private lock will do: releasing it and taking it again happen in order, and after everything that came before.
    """

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._release, self._acquire = lock.release, lock.acquire

    def __call__(self) -> None:
        """Pass the fence."""
        try:
            self._release()
        except RuntimeError:  # an interrupt came between the two last time
            self._acquire(False)
            self._release()
        self._acquire(False)


class Waiter:
    """Waits for a count to be reached, looking at it for a moment first if recent waits were short.

    Waking from sleep costs 5 to 50 µs; looking takes cycles from whoever is meant to answer. So a wait looks only
    while the running average of recent waits says that the answer is due within the budget, and it yields the core
    between two looks. An idle or slow counterpart therefore costs no CPU at all.

    Next to programs that use every core, a yield costs a whole time slice (milliseconds), whereas a sleeper that is
    woken goes ahead of them. So a waiter that keeps losing its core that way stops looking for a while, then retries.

    Args:
        semaphore: Where to sleep.
        count: Reads the count, which only grows.
        wanted: The word ``wanted[place]`` tells the other side at which count to wake this one.
        place: The index into ``wanted``.
        budget_s: How long an answer may be waited for without sleeping.
    """

    def __init__(
        self,
        semaphore: Semaphore,
        count: Callable[[], int],
        wanted: memoryview,
        place: int = 0,
        budget_s: float = _SPIN_BUDGET_S,
    ) -> None:
        self._semaphore = semaphore
        self._count = count
        self._wanted = wanted
        self._place = place
        self._budget = budget_s
        self._longest = 4 * budget_s
        self._average = budget_s / 2
        self._waited = 0.0
        self._thefts = 0
        self._rest_s, self._rests_until = _REST_S[0], 0.0
        self._fence = Fence()

    def wait(
        self, goal: int, timeout_s: float, look: Callable[[], bool] | None = None, is_crowded: bool = False
    ) -> bool:
        """Wait until the count has reached ``goal``; False if ``timeout_s`` passed first.

        On rare occasions it returns True too early, for news that was seen before.

        Args:
            goal: The count.
            timeout_s: How long to wait.
            look: Asked right before falling asleep whether there is other news; whatever comes later wakes the sleeper.
            is_crowded: Whether the processes that raise the count need every core. They may then all be queued on
                another core while looking keeps this one busy; once it is idle, the system moves one of them here,
                where it stays. So a count that stands still is looked at only a few times.
        """
        start = perf_counter()
        seen = 0.0
        if self._average < self._budget and start >= self._rests_until:
            seen = self._spin(goal, start, _FEW_LOOKS if is_crowded else -1)
        is_due = seen > 0.0 or self._sleep(goal, timeout_s, look)
        self._waited += (seen or perf_counter()) - start
        if is_due:
            # One long pause (a learner's update, an evaluation) says little about the next wait: cap its weight.
            self._average += _MEMORY * (min(self._waited, self._longest) - self._average)
            self._waited = 0.0
        return is_due

    def _spin(self, goal: int, start: float, looks: int) -> float:
        """Look at the count, again and again; returns when the goal was seen, or 0 if it is not worth looking on."""
        end = start + 2 * self._budget
        count, pause = self._count, os.sched_yield
        first = now = count()
        then = start
        while now < goal:
            # Yield first: whoever is to answer may be queued behind us on this very core.
            pause()
            now = count()
            looks -= 1
            before, then = then, perf_counter()
            if then - before > _STOLEN_S:
                self._note_theft(then)
            if then > end or (looks == 0 and now == first):
                return 0.0
        if self._thefts:
            self._thefts -= 1
        else:
            self._rest_s = _REST_S[0]
        if REORDERS:
            self._fence()  # what was written before the count was raised must be read after it
        return then

    def _note_theft(self, now: float) -> None:
        """Somebody else had the core. Once means nothing: a virtual machine loses its core now and then."""
        self._thefts = min(self._thefts + 4, _TOO_OFTEN + 4)
        if self._thefts > _TOO_OFTEN:
            self._rests_until = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, _REST_S[1])

    def _sleep(self, goal: int, timeout_s: float, look: Callable[[], bool] | None) -> bool:
        self._wanted[self._place] = goal
        self._fence()
        try:
            return self._count() >= goal or (look is not None and look()) or self._semaphore.acquire(timeout_s)
        finally:
            # No fence needed: a counterpart that has not seen this yet wakes us once in vain.
            self._wanted[self._place] = NOBODY_WAITS


def waiter_of(
    columns: Mapping[str, np.ndarray[Any, Any]], bed: str, counts: str, wanted: str, place: int | None
) -> Any:
    """A ``Waiter``, compiled if that can be, for columns of shared memory.

    Args:
        columns: The shared memory.
        bed: The column with the semaphore.
        counts: The column whose sum is the count.
        wanted: The column that tells the other side.
        place: Which item of each is concerned; None for all that there is.
    """
    part = slice(None) if place is None else slice(place, place + 1)
    if quick is not None:
        return quick.Waiter(
            columns[bed][part].reshape(-1), columns[counts][part], columns[wanted][part], _SPIN_BUDGET_S
        )
    items = words(columns[counts][part])
    count = partial(sum, items) if place is None else partial(items.__getitem__, 0)
    semaphore = Semaphore(columns[bed][part].ctypes.data)
    return Waiter(semaphore, count, words(columns[wanted][part]))
