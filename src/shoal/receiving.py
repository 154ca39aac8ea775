"""Waiting for rows, and handing them out.

Handing out has two halves, so that an interrupt in between costs nothing: first everything is read and nothing changed,
then it is noted that the rows are the caller's. What the first half has read is read again if it is interrupted, and
what the second half leaves undone is done by the next call.
"""

from __future__ import annotations

from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from shoal.errors import NothingInFlight, RecvTimeout, StateError
from shoal.readiness import Ids, Readiness, check_ids

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shoal.batch import Batch
    from shoal.engines.base import Engine, Request
    from shoal.fault_desk import FaultDesk
    from shoal.reading import RowReader
    from shoal.recovery import Recovery
    from shoal.sending import Sender
    from shoal.traffic import Traffic

_ABSENT: Any = object()


class Receiver:
    """Waits for the engine and hands out rows; like ``Dispatch``, it serves one thread at a time.

    Args:
        engine: Runs the envs.
        sender: Hands commands to the engine.
        traffic: Commands under way.
        reader: Copies rows out.
        ready: Which envs may be stepped.
        recovery: Decides what becomes of envs that failed.
        desk: Deals with faults.
        resetting: Envs that the caller is resetting, and their requests.
        all_ids: The ids of all envs; a group that is this very list is read as a whole.
        is_async: Whether rows are handed out as they land, or those of one send together.
        leaves_ends: Whether envs may be left at the end of an episode, to be reset by the caller.

    Attributes:
        resets: Rows handed out that answered an explicit reset.
        waiting_s: Time spent waiting for the engine.
        given: The last rows handed out, as long as not all is noted that goes with that.
    """

    def __init__(
        self,
        engine: Engine,
        sender: Sender,
        traffic: Traffic,
        reader: RowReader,
        ready: Readiness,
        recovery: Recovery,
        desk: FaultDesk,
        resetting: dict[int, Request | None],
        all_ids: list[int],
        *,
        is_async: bool,
        leaves_ends: bool,
    ) -> None:
        self._engine = engine
        self._sender = sender
        self._traffic = traffic
        self._reader = reader
        self._ready = ready
        self._recovery = recovery
        self._desk = desk
        self._resetting = resetting
        self._is_async = is_async
        self._leaves_ends = leaves_ends
        self._all_ids = all_ids
        self.given: tuple[list[int], Batch] | None = None
        self.resets = 0
        self.waiting_s = 0.0

    def settle(self) -> None:
        """Bring to an end what an interrupt has left half done, and wait for commands whose results nobody wants."""
        self._take_note()
        while self._traffic.void:
            void = set(self._traffic.void)
            self.collect(1, None)
            self.drop_faults(void - self._traffic.void)

    def drop_faults(self, ids: Collection[int]) -> None:
        """Forget the faults of these envs."""
        if self._ready.faulted or self._engine.faults or self._engine.extras:
            self._ready.forgive(ids)
            self.drop_outcomes(ids)

    def drop_outcomes(self, ids: Collection[int]) -> None:
        """Forget what the engine holds for these envs besides their rows; those that failed earlier stay failed."""
        for i in ids:
            self._engine.extras.pop(i, None)
            if fault := self._engine.faults.pop(i, None):
                self._ready.note_loss(fault)

    def next_group(self) -> list[int] | None:
        """The envs whose rows a synchronous pool hands out next; None for an asynchronous one: it takes what lands."""
        if self._is_async:
            self._traffic.groups.clear()
            return None
        # An interrupted send leaves rows under way that belong to no group yet.
        return self._traffic.groups.popleft() if self._traffic.groups else self._traffic.busy()

    def receive(
        self,
        group: list[int] | None,
        full: int,
        least: int | None = None,
        timeout: float | None = None,
        max_wait: float | None = None,
    ) -> Batch:
        """Wait for rows of ``group`` and hand them out; what is not handed out stays for the next ``recv``."""
        ids: list[int] = []
        try:
            ids = self._await(group, full, full if least is None else least, timeout, max_wait)[:full]
            if self._engine.faults:
                self._desk.raise_for(ids)
        except BaseException:
            self.keep(group, ())
            raise
        if group is not None:
            if len(ids) == len(group):
                return self._hand_out(group)
            self.keep(group, ids)
        return self._hand_out(ids)

    def receive_ready(self, among: Ids, least: int, most: int | None, timeout: float | None) -> Batch:
        """Hand out rows of some envs in order of arrival: at least ``least``, and whatever else is ready."""
        traffic = self._traffic
        everyone = self._all_ids
        busy = [i for i in (everyone if among is None else check_ids(among, len(everyone))) if traffic.is_busy(i)]
        if len(busy) < max(1, least):
            raise NothingInFlight(f"{least} rows are wanted, and {len(busy)} of these envs are under way")
        full = len(busy) if most is None else min(most, len(busy))
        traffic.groups.clear()  # this caller has no use for the order of sends
        if least < full and traffic.num_flying:
            self.collect(1, 0.0)
        self._await(busy, full, least, timeout, None)
        wanted = set(busy)
        ids = [i for i in traffic.landed() if i in wanted][:full]
        if self._engine.faults:
            self._desk.raise_for(ids)
        return self._hand_out(ids)

    def keep(self, group: list[int] | None, handed_out: Sequence[int]) -> None:
        """Put back the part of a group that was not handed out."""
        if group is not None:
            rest = [i for i in group if i not in handed_out and self._traffic.is_busy(i)]
            if rest:
                self._traffic.groups.appendleft(rest)

    def _await(
        self, group: list[int] | None, full: int, least: int, timeout: float | None, max_wait: float | None
    ) -> list[int]:
        """Ids that have landed: ``full`` of them, or at least ``least`` when patience runs out."""
        start = monotonic()
        end = None if timeout is None else start + timeout
        patience = start + (max_wait or 0.0) if least < full else None
        has_looked = False  # even a caller without patience gets what is ready
        while True:
            self._desk.inspect()
            if self._engine.faults and self._recovery.is_on:
                self._desk.recover()
            landed = self._traffic.landed(group)
            now = monotonic()
            impatient = patience is not None and now >= patience
            if len(landed) >= full or (impatient and len(landed) >= least):
                return landed
            if end is not None and now >= end and has_looked:
                raise RecvTimeout(f"recv: {len(landed)} of {full} rows after {timeout} s; nothing is lost, recv again")
            has_looked = True
            limits = [max(0.0, t - now) for t in (end, None if impatient else patience) if t is not None]
            wanted = (least if impatient else full) - len(landed)
            if group is not None and self._traffic.num_flying > len(group) - len(landed):
                wanted = 1  # others are flying too: check after each row, as it may be one of the group's
            self.collect(max(1, min(wanted, self._traffic.num_flying)), min(limits) if limits else None)

    def collect(self, at_least: int, timeout_s: float | None) -> None:
        """Wait for the engine, and book what it has finished."""
        start = perf_counter()
        if self._sender.has_delayed:
            at_least, timeout_s = self._sender.launch_due(at_least, timeout_s)
        self._engine.collected = []
        try:
            self._engine.collect(at_least, timeout_s)
        finally:
            # Even if interrupted: what the engine had finished by then is finished.
            self._traffic.land(self._engine.collected)
            waited_s = perf_counter() - start
            self.waiting_s += waited_s
            self._desk.note_rows(self._engine.collected)
        # An engine returns early and empty-handed only if it has nothing to wait for.
        is_early = timeout_s is None or waited_s < timeout_s / 2
        if is_early and at_least and not self._engine.collected and not self._traffic.cancel_void():
            self._traffic.cancel_all()
            raise StateError("an interrupt has lost commands that were under way: reset() the envs to go on")

    def _hand_out(self, ids: list[int]) -> Batch:
        batch = self._reader.read_all() if ids is self._all_ids else self._reader.read(ids)
        self.given = (ids, batch)
        follow_up = self._traffic.hand_out(ids)
        self._take_note()
        if follow_up:
            self._sender.send([i for i, _ in follow_up], [held for _, held in follow_up])
        return batch

    def _take_note(self) -> None:
        """Note that rows are the caller's now, unless an interrupt came before they were handed out."""
        if self.given is None:
            return
        ids, batch = self.given
        if ids and not self._traffic.has_landed(ids[0]):
            if self._leaves_ends:
                self._ready.note_ends(ids, batch)
                self._ready.excuse(self._recovery.dropped)
            if self._resetting:
                self.resets += sum(self._resetting.pop(i, _ABSENT) is not _ABSENT for i in ids)
            if self._ready.unseeded:
                self._ready.unseeded.difference_update(ids)
            self._reader.note_given(batch, ids is self._all_ids)
        self.given = None


def enough_of(full: int, min_batch: int | None, max_wait: float | None) -> int:
    """How many rows of a full batch a caller is content with once its patience has run out."""
    return full if min_batch is None and max_wait is None else max(1, min(full, min_batch or 1))
