"""The door of a pool: who may be inside, and who may come in beside whom.

One thread at a time is inside, and a second one is refused. The exception are two that work hand in hand, one that
sends and one that receives: they take turns. So that they can, who receives lets the other in while it waits, and knows
from who sent last whether more may come.

A fork of the process has a copy of the pool, but the envs are its parent's: it would move them behind that one's back.
So in a fork every gate is closed.
"""

from __future__ import annotations

import os
import threading
from threading import current_thread
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from shoal.errors import BusyPool, ClosedPool, FaultError, RecvTimeout

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")

_SLICE_S = 0.1
_TURN_S = 2e-3  # for how long who receives keeps out who sends
_gates: WeakSet[Gate] = WeakSet()


class Gate:
    """Lets one thread in at a time, nobody once it is closed, and adds up the time spent inside.

    Attributes:
        sending: The entrance for who sends: ``with gate.sending:``.
        receiving: The entrance for who receives.
        inside_s: Seconds that threads have spent inside.
        is_closed: Whether nobody is let in any more.
    """

    __slots__ = (
        "__weakref__",
        "_acquire",
        "_entered",
        "_guest",
        "_last_sender",
        "_news",
        "_num_listening",
        "_num_queued",
        "_release",
        "_what",
        "_why_closed",
        "inside_s",
        "is_closed",
        "receiving",
        "sending",
    )

    def __init__(self, what: str) -> None:
        self._what = what
        lock = threading.Lock()
        # The two methods themselves: this is passed through on every call.
        self._acquire, self._release = lock.acquire, lock.release
        self._news = threading.Condition(lock)
        self._entered = 0.0
        # By which way the one inside has come. None also while somebody is in the doorway.
        self._guest: Gate | Entrance | None = None
        self._num_queued = self._num_listening = 0
        self._last_sender: threading.Thread | None = None
        self.inside_s = 0.0
        self.is_closed = False
        self._why_closed = "is closed"
        self.sending = Entrance(self)
        self.receiving = Entrance(self)
        _gates.add(self)

    def try_enter(self) -> bool:
        """Enter if nobody is inside."""
        return self._acquire(False)

    def leave(self) -> None:
        """Let the next one in."""
        self._release()

    def disown(self) -> None:
        """Let nobody in any more: this is a fork of the process that the pool belongs to."""
        self.is_closed = True
        self._why_closed = f"belongs to process {os.getppid()}, of which this is a fork: make a pool of its own here"

    def __enter__(self) -> None:
        if self.is_closed:
            raise ClosedPool(f"{self._what} {self._why_closed}")
        if not self._acquire(False):
            self._refuse()
        self._guest = self
        self._entered = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guest = None
        self.inside_s += perf_counter() - self._entered
        self._release()
        if error is not None and self.is_closed and isinstance(error, FaultError):
            raise ClosedPool(f"{self._what} was closed meanwhile") from error

    def enter_by(self, entrance: Entrance) -> None:
        """Enter beside the one who has come by the other entrance: after it."""
        if self.is_closed:
            raise ClosedPool(f"{self._what} {self._why_closed}")
        if not self._acquire(False):
            self._queue(self.receiving if entrance is self.sending else self.sending)
        self._guest = entrance
        self._entered = perf_counter()

    def _queue(self, partner: Entrance) -> None:
        self._num_queued += 1
        try:
            while not self._acquire(timeout=_SLICE_S if self._guest is partner else 0):
                if self.is_closed:
                    raise ClosedPool(f"{self._what} {self._why_closed}")
                if self._guest is None:
                    sleep(0)  # somebody is in the doorway
                elif self._guest is not partner:
                    self._refuse()
        finally:
            self._num_queued -= 1

    def _refuse(self) -> None:
        raise BusyPool(f"another thread is inside {self._what}; give each thread its own pool, or take turns")

    # ------------------------------------------------------------------ one sends, another receives

    def note_send(self) -> None:
        """Something was sent: who waits for that is told."""
        self._last_sender = current_thread()
        if self._num_listening:
            self._news.notify_all()

    @property
    def has_sender(self) -> bool:
        """Whether the last who sent is another thread, which may send again."""
        last = self._last_sender
        return last is not None and last is not current_thread() and last.is_alive()

    def take_turns(self, receive: Callable[[float], T], is_enough: Callable[[], bool], timeout: float | None) -> T:
        """Receive while another thread sends, which is let in again and again.

        Args:
            receive: Waits for so many seconds; raises ``RecvTimeout`` if that was too short.
            is_enough: Says whether enough is under way.
            timeout: For how long, in all.

        Raises:
            RecvTimeout: If it took longer.
            ClosedPool: If the pool is closed meanwhile.
        """
        end = None if timeout is None else monotonic() + timeout
        while True:
            if is_enough() or not self.has_sender:
                try:
                    return receive(_TURN_S if end is None else min(_TURN_S, max(0.0, end - monotonic())))
                except RecvTimeout:
                    if not (self._num_queued or (end is not None and monotonic() >= end)):
                        continue
            left = _SLICE_S if end is None else min(_SLICE_S, end - monotonic())
            if left <= 0:
                raise RecvTimeout(f"recv: no batch after {timeout} s; nothing is lost, recv again")
            self._step_out(left)

    def _step_out(self, patience_s: float) -> None:
        """Be away until something is sent, or for so long."""
        way, self._guest = self._guest, None
        self._num_listening += 1
        try:
            self._news.wait(patience_s)
        finally:
            self._num_listening -= 1
            self._guest = way
        if self.is_closed:
            raise ClosedPool(f"{self._what} was closed meanwhile")


class Entrance:
    """One of two ways in that lie side by side; see ``Gate``."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.enter_by(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.__exit__(kind, error, trace)


def _disown_all() -> None:
    for gate in list(_gates):
        gate.disown()


os.register_at_fork(after_in_child=_disown_all)
