"""The door of a pool: who may be inside, and who may come in beside whom.

One thread at a time is inside, and a second one is refused. The exception are two that work hand in hand, one that
sends and one that receives: they take turns. So that they can, who receives lets the other in while it waits, and knows
from who sent last whether more may come.

A Ctrl-C may come at any line, and the program may go on after it. So whoever comes in takes the lock in a ``with`` of
its own, ``with gate.knock(), gate:``, between which and its block no interrupt can come. Whatever else is done on the
way in and out may be cut short.

A fork of the process has a copy of the pool, but the envs are its parent's: it would move them behind that one's back.
So in a fork every gate is closed.
"""

from __future__ import annotations

import os
import threading
from threading import current_thread
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, NoReturn, TypeVar
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
        sending: The entrance for who sends: ``with gate.sending.knock(), gate.sending:``.
        receiving: The entrance for who receives.
        inside_s: Seconds that threads have spent inside.
        is_closed: Whether nobody is let in any more.
    """

    __slots__ = (
        "__weakref__",
        "_entered",
        "_guest",
        "_is_wanted",
        "_last_sender",
        "_lock",
        "_news",
        "_num_listening",
        "_what",
        "_why_closed",
        "inside_s",
        "is_closed",
        "receiving",
        "sending",
    )

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._entered = 0.0
        # By which way the one inside has come; None while somebody is in the doorway.
        self._guest: Gate | Entrance | None = None
        self._is_wanted = False
        self._num_listening = 0
        self._last_sender: threading.Thread | None = None
        self.inside_s = 0.0
        self.is_closed = False
        self._why_closed = "is closed"
        self.sending = Entrance(self)
        self.receiving = Entrance(self)
        _gates.add(self)

    def try_enter(self) -> bool:
        """Enter if nobody is inside."""
        return self._lock.acquire(False)

    def leave(self) -> None:
        """Let the next one in."""
        self._lock.release()

    def disown(self) -> None:
        """Let nobody in any more: this is a fork of the process that the pool belongs to."""
        self.is_closed = True
        self._why_closed = f"belongs to process {os.getppid()}, of which this is a fork: make a pool of its own here"

    def knock(self) -> threading.Lock:
        """What to take before coming in.

        Raises:
            ClosedPool: If nobody is let in any more.
            BusyPool: If another thread is inside.
        """
        self.check_open()
        if self._lock.locked():
            self.refuse()
        return self._lock

    def __enter__(self) -> None:
        self.admit(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guest = None
        self.inside_s += perf_counter() - self._entered
        if error is not None and self.is_closed and isinstance(error, FaultError):
            raise ClosedPool(f"{self._what} was closed meanwhile") from error

    def admit(self, way: Gate | Entrance) -> None:
        """Somebody who has the lock comes in."""
        self._guest = way
        self._is_wanted = False
        self._entered = perf_counter()
        self.check_open()  # it may have been closed while it was waited for

    def check_open(self) -> None:
        """See that somebody may be let in.

        Raises:
            ClosedPool: If nobody may.
        """
        if self.is_closed:
            raise ClosedPool(f"{self._what} {self._why_closed}")

    def refuse(self) -> NoReturn:
        """Raise ``BusyPool``."""
        raise BusyPool(f"another thread is inside {self._what}; give each thread its own pool, or take turns")

    def queue(self, partner: Entrance) -> threading.Lock:
        """What to take to come in after the one who has come by the other entrance; anybody else refuses."""
        self.check_open()
        while self._lock.locked() and (guest := self._guest) is not partner:
            if guest is not None:
                self.refuse()
            sleep(0)  # somebody is in the doorway
            self.check_open()
        self._is_wanted = True
        return self._lock

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
                    if not (self._is_wanted or (end is not None and monotonic() >= end)):
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

    def knock(self) -> threading.Lock:
        """What to take before coming in; whoever has come by the other entrance is waited for.

        Raises:
            ClosedPool: If nobody is let in any more.
            BusyPool: If another thread is inside, and has come another way.
        """
        gate = self._gate
        return gate.queue(gate.receiving if self is gate.sending else gate.sending)

    def __enter__(self) -> None:
        self._gate.admit(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.__exit__(kind, error, trace)


def _disown_all() -> None:
    for gate in list(_gates):
        gate.disown()


os.register_at_fork(after_in_child=_disown_all)
