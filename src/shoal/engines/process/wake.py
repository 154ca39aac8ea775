"""Waking another process: semaphores inside shared memory, and a wait that is quick without burning a core.

A POSIX semaphore in the pool's own shared memory has no name and no descriptor, works with every start method,
and holds no lock that a killed process could take with it. Posting one costs 0.2 µs while nobody sleeps on it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from time import perf_counter

SEMAPHORE_BYTES = 64  # sem_t is 32 bytes on 64-bit Linux; a cache line keeps neighbours apart

_SPIN_BUDGET_S = 300e-6
_MEMORY = 0.25  # weight of the newest wait in the running average

# Posting and trying take a fraction of a microsecond, so the GIL is kept; a real wait releases it.
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
        """Start from zero, whatever a process that died with it has left; nobody else may be using it."""
        if _slow.sem_init(self._pointer, 1, 0) != 0:
            raise OSError(ctypes.get_errno(), "sem_init failed")

    def post(self) -> None:
        """Add one, waking a sleeper if there is one."""
        _quick.sem_post(self._pointer)

    def try_acquire(self) -> bool:
        """Take one if there is one."""
        return bool(_quick.sem_trywait(self._pointer) == 0)

    def acquire(self, timeout_s: float) -> bool:
        """Take one, sleeping for at most ``timeout_s`` on the monotonic clock."""
        end_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        end = _Timespec(end_ns // 10**9, end_ns % 10**9)
        while _slow.sem_clockwait(self._pointer, time.CLOCK_MONOTONIC, ctypes.byref(end)) != 0:
            if ctypes.get_errno() != errno.EINTR:
                return False
        return True


class Fence:
    """Between a write and a read of shared memory: keeps the processor from doing the read first.

    Two sides that each write a word and then read the other's could otherwise both read what was there before. A
    semaphore of one's own does it, because its counter is changed in one piece, with everything before it done.
    """

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(SEMAPHORE_BYTES)
        self._semaphore = Semaphore(ctypes.addressof(self._memory), create=True)

    def __call__(self) -> None:
        """Pass it."""
        self._semaphore.post()
        self._semaphore.try_acquire()


class Waiter:
    """Waits on a semaphore, spinning for a moment first when the last waits were short.

    Sleeping costs 5 to 50 µs of wake-up; spinning takes cycles from whoever is meant to answer. So a wait spins
    only while the running average of the last waits says that the answer is due within the spin budget, and it
    yields the core between two looks. An idle or slow counterpart therefore costs no CPU at all.
    """

    def __init__(self, semaphore: Semaphore, spin_budget_s: float = _SPIN_BUDGET_S) -> None:
        self.semaphore = semaphore
        self._budget = spin_budget_s
        self._average = spin_budget_s / 2
        self._waited = 0.0

    def wait(self, timeout_s: float) -> bool:
        """Take one from the semaphore; False if ``timeout_s`` passed first."""
        if self.semaphore.try_acquire():
            self._learn(0.0)
            return True
        start = perf_counter()
        taken = (self._average < self._budget and self._spin(start)) or self.semaphore.acquire(timeout_s)
        self._waited += perf_counter() - start
        if taken:
            self._learn(self._waited)
            self._waited = 0.0
        return taken

    def _spin(self, start: float) -> bool:
        end = start + 2 * self._budget
        try_acquire, pause = self.semaphore.try_acquire, os.sched_yield
        while True:
            # Yield first: whoever is to answer may be queued behind us on this very core.
            pause()
            if try_acquire() or try_acquire():
                return True
            if perf_counter() > end:
                return False

    def _learn(self, waited_s: float) -> None:
        # One long pause (a learner's update, an evaluation) says little about the next wait: cap its weight.
        self._average += _MEMORY * (min(waited_s, 4 * self._budget) - self._average)
