"""The gate of a pool: which thread may be inside, and which two may take turns.

One thread at a time is inside, and a second one is refused. The exception is a pair that works hand in hand, one thread
that sends and one that receives: they take turns. The receiver lets the sender in while it waits, and knows from who
sent last whether more may come. If nobody but itself has sent anything, another thread may be about to, for a while.

A Ctrl-C may strike at any line, and the program may carry on after it. So a caller takes the lock in a ``with`` of its
own, ``with gate.knock(), gate:``, since no interrupt can come between taking a lock that way and entering the block.
Anything else done on the way in or out may be cut short.

A forked process has a copy of the pool, but the envs are its parent's, and it would move them behind the parent's back.
So every gate is closed in a fork.
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
_TURN_S = 2e-3  # how long a receiver keeps the sender out
_PATIENCE_S = 5.0  # how long a thread that has not sent anything yet is waited for: it need not have that in mind
_OWN_THREADS = "shoal-"
_Dummy = threading._DummyThread
_gates: WeakSet[Gate] = WeakSet()


class Gate:
    """Lets one thread in at a time, nobody once it is closed, and adds up the time spent inside.

    Attributes:
        sending: The entrance for a sender: ``with gate.sending.knock(), gate.sending:``.
        receiving: The entrance for a receiver.
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
        # The way by which the thread inside came in; None while somebody is in the doorway.
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
        """The lock to take before coming in.

        Raises:
            ClosedPool: If another thread is inside, and nobody is let in any more.
            BusyPool: If another thread is inside.
        """
        if self._lock.locked():
            self.check_open()
            self.refuse()
        return self._lock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guest = None
        self.inside_s += perf_counter() - self._entered
        if error is not None and self.is_closed and isinstance(error, FaultError):
            raise ClosedPool(f"{self._what} was closed meanwhile") from error

    def admit(self, way: Entrance | None = None) -> None:
        """Let in the thread that has taken the lock, by one of the entrances or by the gate itself.

        Raises:
            ClosedPool: If nobody is let in any more.
        """
        if self.is_closed:
            self.check_open()
        self._guest = self if way is None else way
        self._is_wanted = False
        self._entered = perf_counter()

    __enter__ = admit

    def check_open(self) -> None:
        """Check that the gate is open.

        Raises:
            ClosedPool: If it is not.
        """
        if self.is_closed:
            raise ClosedPool(f"{self._what} {self._why_closed}")

    def refuse(self) -> NoReturn:
        """Raise ``BusyPool``."""
        raise BusyPool(f"another thread is inside {self._what}; give each thread its own pool, or take turns")

    def queue(self, partner: Entrance) -> threading.Lock:
        """The lock to wait for if the thread inside came by the partner's entrance; if by another way, refuse."""
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
        """Note that something was sent, and wake whoever waits for that."""
        self._last_sender = current_thread()
        if self._num_listening:
            self._news.notify_all()

    @property
    def has_sender(self) -> bool:
        """Whether another thread sent last, and may send again."""
        last = self._last_sender
        return last is not None and last is not current_thread() and last.is_alive()

    def finds_sender(self, timeout: float | None) -> bool:
        """Wait until another thread of the program has sent something, if there is one; for some seconds at most."""
        end = monotonic() + (_PATIENCE_S if timeout is None else min(timeout, _PATIENCE_S))
        while not self.has_sender and _has_other_threads() and (left := end - monotonic()) > 0:
            self._step_out(min(left, _SLICE_S))
        return self.has_sender

    def take_turns(self, receive: Callable[[float], T], is_enough: Callable[[], bool], timeout: float | None) -> T:
        """Receive while another thread sends, letting that one in again and again.

        Args:
            receive: Waits for the given seconds; raises ``RecvTimeout`` if they were too few.
            is_enough: Says whether enough is under way.
            timeout: Seconds to wait in all; None for as long as it takes.

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
        """Step outside until something is sent, or for ``patience_s``."""
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
    """One of the two entrances by which a sender and a receiver take turns; see ``Gate``."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def knock(self) -> threading.Lock:
        """The lock to take before coming in; taking it waits for a thread that came by the other entrance.

        Raises:
            ClosedPool: If nobody is let in any more.
            BusyPool: If another thread is inside, and came in by another way.
        """
        gate = self._gate
        return gate.queue(gate.receiving if self is gate.sending else gate.sending)

    def __enter__(self) -> None:
        self._gate.admit(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.__exit__(kind, error, trace)


def _has_other_threads() -> bool:
    """Whether the program has threads that could use a pool: neither this one nor shoal's own.

    Threads that Python did not start do not count: their dummies stay listed when they have ended.
    """
    me = current_thread()
    others = [thread for thread in threading.enumerate() if thread is not me]
    return any(not (thread.name.startswith(_OWN_THREADS) or isinstance(thread, _Dummy)) for thread in others)


def _disown_all() -> None:
    for gate in list(_gates):
        gate.disown()


os.register_at_fork(after_in_child=_disown_all)
