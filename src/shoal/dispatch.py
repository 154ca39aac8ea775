"""What happens inside a pool between a call and its result.

    begin_step, begin_reset   check everything, then hand commands to the engine (or hold them)
    receive                   wait, hand rows out, send what waited for them

``Pool`` guards the door; this is the room behind it. Nothing here is safe for two threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.base import Command, Engine, Request
from shoal.errors import ActionError, NothingInFlight, RecvTimeout, StateError
from shoal.fault_desk import FaultDesk
from shoal.fault_rows import FaultRows
from shoal.nan_watch import NanWatch
from shoal.readiness import Readiness, check_ids, options_of
from shoal.reading import RowReader
from shoal.recovery import Recovery, Restart
from shoal.seeding import Seed, seeds_of
from shoal.sending import Sender
from shoal.slot import Autoreset
from shoal.spec import RawActions
from shoal.traffic import Held, Traffic

if TYPE_CHECKING:
    from collections.abc import Collection

    from shoal.batch import Batch
    from shoal.black_box import FaultFiles

_ABSENT: Any = object()
Ids = Sequence[int] | np.ndarray[Any, Any] | None
Options = dict[str, Any] | None
Wishes = Options | Sequence[Options]


class Dispatch:
    """Sends commands and receives rows.

    Attributes:
        engine: Runs the envs.
        autoreset: The boundary rule they run under.
        traffic: Commands under way.
        sender: Hands commands to the engine.
        reader: Copies rows out, and counts them.
        ready: Which envs may be stepped.
        recovery: What becomes of envs that failed.
        desk: Deals with faults.
        box: Keeps the last commands of every env, if it can.
        resetting: Envs that the caller is resetting, and how.
        moves_as_one: Whether all actions are arrays, so that the whole pool can step without per-env bookkeeping.
        resets: Rows handed out that answered an explicit reset.
        waiting_s: Time spent waiting for the engine.
    """

    def __init__(
        self,
        engine: Engine,
        autoreset: Autoreset,
        seeds: list[int | None],
        is_async: bool,
        *,
        copy: bool,
        bounded_actions: bool = True,
        implicit_reset: bool = False,
        on_fault: str | Restart = "raise",
        on_nan: str | None = None,
        fault_files: FaultFiles | None = None,
    ) -> None:
        self.engine = engine
        self.box = None if fault_files is None else fault_files.box
        self._action = engine.spec.action if bounded_actions else engine.spec.action.without_bounds()
        self._implicit_reset = implicit_reset
        self._step_now = engine.step_now
        self._note_step = None if self.box is None else self.box.note_step_of_all
        self._take = engine.take
        self.autoreset = autoreset
        # Whether envs may be left at the end of an episode, to be reset by the caller.
        self._leaves_ends = autoreset is Autoreset.DISABLED or (
            autoreset is Autoreset.SAME_STEP and engine.config.quick_reset_s is not None
        )
        self._is_async = is_async
        self._seeds = seeds
        self.num_envs = len(seeds)
        self._all_ids = list(range(self.num_envs))
        self.traffic = Traffic(self.num_envs)
        self.recovery = Recovery(on_fault, seeds, spares=on_nan == "truncate")
        fault_rows = FaultRows(engine.rows.layout, self.recovery) if self.recovery.is_on else None
        self.reader = RowReader(engine, copy=copy, fault_rows=fault_rows)
        self.sender = Sender(engine, self.traffic, self.reader, self.recovery, self.box)
        self.moves_as_one = not self._action.has_objects
        self.ready = Readiness(self.num_envs)
        self.resetting: dict[int, Request | None] = {}
        self.resets = 0
        self.waiting_s = 0.0
        nan_watch = None if on_nan is None else NanWatch(engine, on_nan)
        self._is_suspect = None if nan_watch is None else nan_watch.is_suspect
        self.desk = FaultDesk(self, nan_watch, fault_files)
        self.desk.take_unbuilt()

    def release(self) -> None:
        """Let go of the engine's memory. The counters stay."""
        self._take = None
        self.reader.release()
        for user in (self.desk.nan_watch, self.box):
            if user is not None:
                user.release()

    # ------------------------------------------------------------------ sending

    def step_all(self, action: Any) -> Batch:
        """Step every env of an idle pool: what most pools do all day, without the bookkeeping of the general case."""
        is_plain = not self.recovery.intervenes and action.__class__ is not RawActions
        step_now = self._step_now
        if not is_plain or step_now is None or (self._implicit_reset and not self.ready.all_ready):
            ids = self.begin_step(action, None)
            return self.receive(ids, len(ids))
        if not self.ready.all_ready:
            self.ready.refuse_unready(self._all_ids)
        if not (self._take is not None and self._take(action)):
            self.sender.write_actions(slice(None), self._action.fit_batch(action, self.num_envs))
        reader = self.reader
        reader.next_block()
        start = perf_counter()
        self.engine.collected = []  # whoever is interrupted must not find what the last call has left
        try:
            step_now(reader.block, self._note_step)
        except BaseException:
            self.waiting_s += perf_counter() - start
            self._note_flight()
            self.desk.note_rows(self.engine.collected)  # nobody has looked for NaN in them
            self._keep(self._all_ids, ())
            raise
        self.waiting_s += perf_counter() - start
        if self._is_suspect is not None and self._is_suspect(reader.block):
            self.desk.inspect_all(reader.block)
        if self.engine.faults or len(self.engine.collected) < self.num_envs:
            self._note_flight()
            return self.receive(self._all_ids, self.num_envs)
        batch = reader.read_all()
        if self._leaves_ends:
            self.ready.note_ends(slice(None), batch)
        return batch

    def _note_flight(self) -> None:
        """Make a step of the whole pool a command like any other: who has moved has landed, the rest is under way."""
        self.traffic.take_off(self._all_ids)
        self.traffic.land(self.engine.collected)

    def begin_send(self, action: Any, env_id: Ids) -> list[int]:
        """``begin_step`` for a caller who takes rows as they come: dropped envs would be the first, every time."""
        dropped = self.recovery.dropped
        if not (self._is_async and dropped) or dropped.keys().isdisjoint(ids := self.check_ids(env_id)):
            return self.begin_step(action, env_id)
        rows = [row for row, i in enumerate(ids) if i not in dropped]
        if isinstance(action, RawActions):
            return self._begin_raw([ids[row] for row in rows], RawActions(action[row] for row in rows))
        leaves = self._action.fit_batch(action, len(ids))
        if not rows:
            return []
        return self.begin_step(self._action.unflatten([leaf[rows] for leaf in leaves]), [ids[row] for row in rows])

    def begin_step(self, action: Any, env_id: Ids) -> list[int]:
        """Check actions and start one step per env; returns the ids."""
        ids = self.check_ids(env_id)
        if isinstance(action, RawActions):
            return self._begin_raw(ids, action)
        leaves = self._action.fit_batch(action, len(ids), None if env_id is None else ids)
        if self._implicit_reset and not self.ready.all_ready and self.ready.fresh_N[ids].any():
            self._begin_fresh(ids, leaves)
            return ids
        self.ready.refuse_unready(ids)
        if not self.moves_as_one or self.recovery.intervenes or not self.traffic.are_idle(ids):
            self.sender.send(ids, [Held(Command.STEP, [leaf[row] for leaf in leaves]) for row in range(len(ids))])
        elif ids is self._all_ids:
            self.sender.step_all(ids, leaves)
        else:
            self.sender.step_idle(ids, leaves)
        return ids

    def _begin_raw(self, ids: list[int], actions: RawActions) -> list[int]:
        if len(actions) != len(ids):
            raise ActionError(f"action: expected {len(ids)} values, one per env, got {len(actions)}")
        self.ready.refuse_unready(ids)
        self.sender.send(ids, [Held(Command.STEP, (), Request(action=(action,))) for action in actions])
        return ids

    def _begin_fresh(self, ids: list[int], leaves: list[np.ndarray[Any, Any]]) -> None:
        """Reset the envs that never were, whatever their action, and step the others."""
        fresh = [i for i in ids if self.ready.fresh_N[i]]
        self.ready.refuse_unready([i for i in ids if not self.ready.fresh_N[i]])
        commands = [
            Held(Command.RESET, (), Request(seed=self._seeds[i]))
            if self.ready.fresh_N[i]
            else Held(Command.STEP, [leaf[row] for leaf in leaves])
            for row, i in enumerate(ids)
        ]
        self.sender.send(ids, commands)
        self.ready.note_reset(fresh)

    def begin_reset(self, seed: Seed, options: Wishes, env_id: Ids) -> list[int]:
        """Start resetting envs, dropping what they were doing; returns the ids."""
        ids = self.check_ids(env_id)
        if seed is None:
            # The pool's own seed serves the first reset of each env, also when that comes in parts.
            seeds = [self._seeds[i] if self.ready.fresh_N[i] else None for i in ids]
        else:
            seeds = seeds_of(ids, seed, self.num_envs)
            self.recovery.note_seeds(ids, seeds)
        wishes = options_of(ids, options)
        self._renew_lost(ids)
        self._abandon(ids)
        requests = [
            None if own is None and wish is None else Request(seed=own, options=wish)
            for own, wish in zip(seeds, wishes, strict=True)
        ]
        if self.recovery.intervenes or not self.traffic.are_idle(ids):
            self.sender.send(ids, [Held(Command.RESET, (), request) for request in requests])
        else:
            self.sender.reset_idle(ids, requests)
        self.ready.note_reset(ids)
        self.resetting.update(zip(ids, requests, strict=True))
        return ids

    def _renew_lost(self, ids: Sequence[int]) -> None:
        """Have envs of which nothing is left built anew with their reset, if somebody was told that they are lost."""
        for i, is_unbuilt in self.ready.take_lost(ids).items():
            if not is_unbuilt and i not in self.engine.gone:
                continue  # it hangs in a thread, and may come back
            if not self.recovery.rebuilds(i) and i not in self.recovery.dropped:
                self.recovery.renew(i)

    def restart(self, env_id: Ids, seed: Seed) -> list[int]:
        """Start building envs anew, whatever state they are in; returns the ids."""
        return self.begin_reset(seed, None, self.renew(env_id))

    def renew(self, env_id: Ids) -> list[int]:
        """Have envs built anew with their next reset, dropping what they were doing; returns the ids."""
        ids = self.check_ids(env_id)
        self.ready.take_lost(ids)
        self._abandon(ids)
        for i in ids:
            self.recovery.renew(i)
        return ids

    def check_ids(self, env_id: Ids) -> list[int]:
        """Env ids as a list of ints, each in range and given once; None means all."""
        return self._all_ids if env_id is None else check_ids(env_id, self.num_envs)

    def _abandon(self, ids: Sequence[int]) -> None:
        """Wait for what these envs are doing and drop it."""
        if not self.traffic.is_empty:
            self.sender.withdraw(ids)
            self.traffic.abandon(ids)
            self.settle()
        for i in ids:
            self.resetting.pop(i, None)
        self.drop_faults(ids)

    def settle(self) -> None:
        """Wait until the engine is done with commands whose results nobody wants."""
        while self.traffic.void:
            void = set(self.traffic.void)
            self.collect(1, None)
            self.drop_faults(void - self.traffic.void)

    def drop_faults(self, ids: Collection[int]) -> None:
        """Forget what these envs have done wrong."""
        if self.ready.faulted or self.engine.faults or self.engine.extras:
            self.ready.forgive(ids)
            self.drop_outcomes(ids)

    def drop_outcomes(self, ids: Collection[int]) -> None:
        """Forget what the engine has of these envs beside their rows; who had failed before has failed still."""
        for i in ids:
            if (fault := self.engine.faults.pop(i, None)) is not None:
                self.ready.note_loss(fault)
            self.engine.extras.pop(i, None)

    # ------------------------------------------------------------------ receiving

    def next_group(self) -> list[int] | None:
        """What a synchronous pool hands out next; None for an asynchronous pool, which hands out what lands."""
        if self._is_async:
            self.traffic.groups.clear()
            return None
        # An interrupted send leaves rows under way that belong to no group yet.
        return self.traffic.groups.popleft() if self.traffic.groups else self.traffic.busy()

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
            if self.engine.faults:
                self.desk.raise_for(ids)
        except BaseException:
            self._keep(group, ())
            raise
        if group is not None:
            if len(ids) == len(group):
                return self._hand_out(group)
            self._keep(group, ids)
        return self._hand_out(ids)

    def receive_ready(self, among: Ids, least: int, most: int | None, timeout: float | None) -> Batch:
        """Hand out rows of some envs in the order in which they came: ``least`` of them, and what else is ready."""
        traffic = self.traffic
        busy = traffic.busy() if among is None else [i for i in self.check_ids(among) if traffic.is_busy(i)]
        if len(busy) < max(1, least):
            raise NothingInFlight(f"{least} rows are wanted, and {len(busy)} of these envs are under way")
        full = len(busy) if most is None else min(most, len(busy))
        traffic.groups.clear()  # this caller has no use for the order of sends
        if least < full and traffic.num_flying:
            self.collect(1, 0.0)
        self._await(busy, full, least, timeout, None)
        wanted = set(busy)
        ids = [i for i in traffic.landed() if i in wanted][:full]
        if self.engine.faults:
            self.desk.raise_for(ids)
        return self._hand_out(ids)

    def _keep(self, group: list[int] | None, handed_out: Sequence[int]) -> None:
        """Put back the part of a group that its reader has not got."""
        if group is not None:
            rest = [i for i in group if i not in handed_out and self.traffic.is_busy(i)]
            if rest:
                self.traffic.groups.appendleft(rest)

    def _await(
        self, group: list[int] | None, full: int, least: int, timeout: float | None, max_wait: float | None
    ) -> list[int]:
        """Ids that have landed: ``full`` of them, or at least ``least`` when patience runs out."""
        start = monotonic()
        end = None if timeout is None else start + timeout
        patience = start + (max_wait or 0.0) if least < full else None
        has_looked = False  # even a caller without patience gets what is ready
        while True:
            self.desk.inspect()
            if self.engine.faults and self.recovery.is_on:
                self.desk.recover()
            landed = self.traffic.landed(group)
            now = monotonic()
            impatient = patience is not None and now >= patience
            if len(landed) >= full or (impatient and len(landed) >= least):
                return landed
            if end is not None and now >= end and has_looked:
                raise RecvTimeout(f"recv: {len(landed)} of {full} rows after {timeout} s; nothing is lost, recv again")
            has_looked = True
            limits = [max(0.0, t - now) for t in (end, None if impatient else patience) if t is not None]
            wanted = (least if impatient else full) - len(landed)
            if group is not None and self.traffic.num_flying > len(group) - len(landed):
                wanted = 1  # others are under way too: look again after each row that could be one of the group's own
            self.collect(max(1, min(wanted, self.traffic.num_flying)), min(limits) if limits else None)

    def collect(self, at_least: int, timeout_s: float | None) -> None:
        """Wait for the engine."""
        start = perf_counter()
        if self.sender.has_delayed:
            at_least, timeout_s = self.sender.launch_due(at_least, timeout_s)
        self.engine.collected = []
        try:
            self.engine.collect(at_least, timeout_s)
        finally:
            # Also when interrupted: what the engine had finished by then is finished.
            self.traffic.land(self.engine.collected)
            waited_s = perf_counter() - start
            self.waiting_s += waited_s
            self.desk.note_rows(self.engine.collected)
        # An engine that has something to wait for waits.
        is_early = timeout_s is None or waited_s < timeout_s / 2
        if is_early and at_least and not self.engine.collected and not self.traffic.cancel_void():
            self.traffic.cancel_all()
            raise StateError("an interrupt has lost commands that were under way: reset() the envs to go on")

    def _hand_out(self, ids: list[int]) -> Batch:
        batch = self.reader.read_all() if ids is self._all_ids else self.reader.read(ids)
        if self._leaves_ends:
            self.ready.note_ends(slice(None) if ids is self._all_ids else ids, batch)
            self.ready.excuse(self.recovery.dropped)
        if self.resetting:
            self.resets += sum(self.resetting.pop(i, _ABSENT) is not _ABSENT for i in ids)
        follow_up = self.traffic.hand_out(ids)
        if follow_up:
            self.sender.send([i for i, _ in follow_up], [held for _, held in follow_up])
        return batch
