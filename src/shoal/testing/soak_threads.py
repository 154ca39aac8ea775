"""The threads beside a soak: one kills workers, one checks that the pool still answers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from shoal.machine import descendants

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_DELAY_S = 0.08  # about how long it takes to notice a death and start the worker's successor


class Killer(threading.Thread):
    """Kills worker processes from outside, each a moment after it was told to, whatever they are doing then.

    Attributes:
        kills: How many it has killed.
    """

    def __init__(self, engine: Any, killed: set[int], seed: int) -> None:
        super().__init__(name="soak-killer", daemon=True)
        self.kills = 0
        self._engine = engine
        self._killed = killed
        self._draw = random.Random(seed)  # noqa: S311
        self._orders: SimpleQueue[bool] = SimpleQueue()

    def order(self) -> None:
        """Have one worker killed soon."""
        self._orders.put(True)

    def dismiss(self) -> None:
        """Tell the thread to end, and wait until it has."""
        self._orders.put(False)
        self.join()

    def run(self) -> None:
        """Kill on order."""
        while self._orders.get():
            time.sleep(self._draw.random() ** 4 * _LONGEST_DELAY_S)
            pid = self._draw.choice(self._engine.pids)
            if pid not in self._killed:
                # It may be gone already, and its pid reused: a handle of one of our own descendants is safe.
                with contextlib.suppress(ProcessLookupError):
                    self._kill(pid)

    def _kill(self, pid: int) -> None:
        handle = os.pidfd_open(pid)
        try:
            if pid in descendants(os.getpid()):
                self._killed.add(pid)  # first, so that whoever sees it dead knows why
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                self.kills += 1
        finally:
            os.close(handle)


class PoolStuck(BaseException):
    """A pool no longer answers. Not an ``Exception``, so that nothing along the way takes it for an env's error."""


class Alarm:
    """Raises ``PoolStuck`` in the thread that made the alarm when a count has not moved for too long.

    No call of a pool waits longer than a fraction of a second at a time, so the exception arrives soon.
    """

    def __init__(self, patience_s: float, count: Callable[[], int]) -> None:
        self._patience_s, self._count = patience_s, count
        self._thread_id = threading.get_ident()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="soak-alarm", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        last, since = self._count(), time.monotonic()
        while not self._is_over.wait(0.5):
            now = self._count()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > self._patience_s:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(PoolStuck))
                return
