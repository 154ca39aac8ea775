"""What happens inside a pool between a call and its result.

    begin_step, begin_reset   check everything, then hand commands to the engine (or hold them)
    receive                   wait, hand rows out, send what waited for them
    ask                       call into envs

``Pool`` guards the door; this is the room behind it. Nothing here is safe for two threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.base import Call, Command, Engine, Request
from shoal.errors import RecvTimeout, ShoalError, StateError
from shoal.faults import error_of
from shoal.readiness import Readiness, check_ids
from shoal.reading import RowReader
from shoal.seeding import Seed, seeds_of
from shoal.slot import Autoreset
from shoal.snapshot import Snapshot, check_snapshot, snapshots
from shoal.traffic import Held, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.batch import Batch

Ids = Sequence[int] | np.ndarray[Any, Any] | None
Options = dict[str, Any] | None


class Dispatch:
    """Sends commands and receives rows.

    Attributes:
        traffic: Commands under way.
        reader: Copies rows out, and counts them.
        ready: Which envs may be stepped.
        moves_as_one: Whether all actions are arrays, so that the whole pool can step without per-env bookkeeping.
        resets: Rows handed out that answered an explicit reset.
        faults: Envs that failed.
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
    ) -> None:
        self._engine = engine
        self._action = engine.spec.action if bounded_actions else engine.spec.action.without_bounds()
        self._implicit_reset = implicit_reset
        self._step_now = engine.step_now
        self._take = engine.take
        self._autoreset = autoreset
        self._is_async = is_async
        self._seeds = seeds
        self._num_envs = len(seeds)
        self._all_ids = list(range(self._num_envs))
        self.traffic = Traffic(self._num_envs)
        self.reader = RowReader(engine, copy=copy)
        self.moves_as_one = not self._action.has_objects
        self.ready = Readiness(self._num_envs)
        self._resetting: set[int] = set()
        self.resets = 0
        self.faults = 0
        self.waiting_s = 0.0

    # ------------------------------------------------------------------ sending

    def step_all(self, action: Any) -> Batch:
        """Step every env of an idle pool: what most pools do all day, without the bookkeeping of the general case."""
        if self._implicit_reset and not self.ready.all_ready:
            ids = self.begin_step(action, None)
            return self.receive(ids, len(ids))
        if self._step_now is not None:
            return self._step_at_once(action, self._step_now)
        leaves = self._action.fit_batch(action, self._num_envs)
        try:
            self._launch_all(leaves)
            self._collect(self._num_envs, None)
            if self._engine.faults:
                self._raise_faults(self._all_ids)
        except BaseException:
            self._keep(self._all_ids, ())
            raise
        return self._hand_out(self._all_ids)

    def _step_at_once(self, action: Any, step_now: Callable[[int], None]) -> Batch:
        if not self.ready.all_ready:
            self.ready.refuse_unready(self._all_ids)
        if not (self._take is not None and self._take(action)):
            self._write_actions(slice(None), self._action.fit_batch(action, self._num_envs))
        reader = self.reader
        reader.next_block()
        start = perf_counter()
        try:
            step_now(reader.block)
        except BaseException:
            self._keep_all()
            raise
        self.waiting_s += perf_counter() - start
        if self._engine.faults:
            self._keep_all()
            self._raise_faults(self._all_ids)
        batch = reader.read_all()
        if self._autoreset is Autoreset.DISABLED:
            self.ready.note_ends(slice(None), batch)
        return batch

    def _keep_all(self) -> None:
        """Make a step of the whole pool a command like any other: who has moved has landed, the rest is under way."""
        self.traffic.take_off(self._all_ids)
        self.traffic.land(self._engine.collected)
        self._keep(self._all_ids, ())

    def _launch_all(self, leaves: list[np.ndarray[Any, Any]]) -> None:
        self.ready.refuse_unready(self._all_ids)
        self.reader.next_block()
        self._write_actions(slice(None), leaves)
        self._submit(self._all_ids, Command.STEP, None)

    def begin_step(self, action: Any, env_id: Ids) -> list[int]:
        """Check actions and start one step per env; returns the ids."""
        ids = self.check_ids(env_id)
        leaves = self._action.fit_batch(action, len(ids))
        if self._implicit_reset and not self.ready.all_ready and self.ready.fresh_N[ids].any():
            self._begin_fresh(ids, leaves)
        elif ids is self._all_ids and self.moves_as_one and self.traffic.is_empty:
            self._launch_all(leaves)
        else:
            self.ready.refuse_unready(ids)
            if self.moves_as_one and self.traffic.are_idle(ids):
                self._launch_idle(ids, leaves)
            else:
                self._launch(ids, [Held(Command.STEP, [leaf[row] for leaf in leaves]) for row in range(len(ids))])
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
        self._launch(ids, commands)
        self.ready.note_reset(fresh)

    def _launch_idle(self, ids: list[int], leaves: list[np.ndarray[Any, Any]]) -> None:
        """Submit one step for each of these envs, none of which is busy."""
        if not self.traffic.num_flying:
            self.reader.next_block(keep_rows=True)
        self._write_actions(ids, leaves)
        self._submit(ids, Command.STEP, None)

    def _write_actions(self, rows: list[int] | slice, leaves: list[np.ndarray[Any, Any]]) -> None:
        for column, leaf in zip(self._engine.rows.action, leaves, strict=True):
            column[rows] = leaf  # type: ignore[index]

    def begin_reset(self, seed: Seed, options: Options, env_id: Ids) -> list[int]:
        """Start resetting envs, dropping what they were doing; returns the ids."""
        ids = self.check_ids(env_id)
        if seed is None:
            # The pool's own seed serves the first reset of each env, also when that comes in parts.
            seeds = [self._seeds[i] if self.ready.fresh_N[i] else None for i in ids]
        else:
            seeds = seeds_of(ids, seed, self._num_envs)
        self._abandon(ids)
        requests = [None if s is None and options is None else Request(seed=s, options=options) for s in seeds]
        self._launch(ids, [Held(Command.RESET, (), request) for request in requests])
        self.ready.note_reset(ids)
        self._resetting.update(ids)
        return ids

    def _launch(self, ids: Sequence[int], commands: Sequence[Held]) -> None:
        """Submit what can go now, hold what has to wait for its env."""
        if not self.traffic.num_flying:
            self.reader.next_block(keep_rows=True)
        now: dict[Command, list[int]] = {}
        requests: dict[int, Request] = {}
        for i, held in zip(ids, commands, strict=True):
            if self.traffic.is_busy(i):
                self.traffic.hold(i, held)
                continue
            objects = self._write_action(i, held)
            if held.request is not None:
                requests[i] = held.request
            elif objects:
                requests[i] = Request(action=objects)
            now.setdefault(held.command, []).append(i)
        for command, part in now.items():
            self._submit(part, command, {i: requests[i] for i in part if i in requests} or None)

    def _write_action(self, env_id: int, held: Held) -> tuple[Any, ...]:
        objects = []
        for column, value in zip(self._engine.rows.action, held.leaves, strict=False):
            if column is None:
                objects.append(value)
            else:
                column[env_id] = value
        return tuple(objects)

    def _submit(self, ids: list[int], command: Command, requests: dict[int, Request] | None) -> None:
        self.traffic.take_off(ids)
        try:
            self._engine.submit(ids, command, requests, self.reader.block)
        except ShoalError:
            self.traffic.cancel(ids)
            raise

    def check_ids(self, env_id: Ids) -> list[int]:
        """Env ids as a list of ints, each in range and given once; None means all."""
        return self._all_ids if env_id is None else check_ids(env_id, self._num_envs)

    def _abandon(self, ids: Sequence[int]) -> None:
        """Wait for what these envs are doing and drop it."""
        if not self.traffic.is_empty:
            self.traffic.abandon(ids)
            self.settle()
        self._resetting.difference_update(ids)
        self._drop_faults(ids)

    def settle(self) -> None:
        """Wait until the engine is done with commands whose results nobody wants."""
        while self.traffic.void:
            void = set(self.traffic.void)
            self._collect(1, None)
            self._drop_faults(void - self.traffic.void)

    def _drop_faults(self, ids: Iterable[int]) -> None:
        if self.ready.faulted or self._engine.faults or self._engine.extras:
            ids = list(ids)
            self.ready.forgive(ids)
            for i in ids:
                self._engine.faults.pop(i, None)
                self._engine.extras.pop(i, None)

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
            if self._engine.faults:
                self._raise_faults(ids)
        except BaseException:
            self._keep(group, ())
            raise
        if group is not None:
            if len(ids) == len(group):
                return self._hand_out(group)
            self._keep(group, ids)
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
            landed = self.traffic.landed(group)
            now = monotonic()
            impatient = patience is not None and now >= patience
            if len(landed) >= full or (impatient and len(landed) >= least):
                return landed
            if end is not None and now >= end and has_looked:
                raise RecvTimeout(f"recv: {len(landed)} of {full} rows after {timeout} s; nothing is lost, recv again")
            has_looked = True
            limits = [max(0.0, t - now) for t in (end, None if impatient else patience) if t is not None]
            # A group may share the engine with others, so look again after each row that could be one of its own.
            wanted = 1 if impatient or group is not None else full - len(landed)
            self._collect(max(1, min(wanted, self.traffic.num_flying)), min(limits) if limits else None)

    def _collect(self, at_least: int, timeout_s: float | None) -> None:
        start = perf_counter()
        try:
            self._engine.collect(at_least, timeout_s)
        finally:
            # Also when interrupted: what the engine had finished by then is finished.
            self.traffic.land(self._engine.collected)
            self.waiting_s += perf_counter() - start
        if timeout_s is None and not self._engine.collected:
            self.traffic.cancel_all()
            raise StateError("an interrupt has lost commands that were under way: reset() the envs to go on")

    def _raise_faults(self, ids: Sequence[int]) -> None:
        """Raise for the envs among ``ids`` that failed; the rows of the others stay to be received."""
        faults = self._engine.faults
        failed = [i for i in ids if i in faults]
        if not failed:
            return
        found = [faults.pop(i) for i in failed]
        self.ready.note_faults(failed, found)
        self.faults += len(failed)
        self.traffic.forget(failed)
        raise error_of(found)

    def _hand_out(self, ids: list[int]) -> Batch:
        batch = self.reader.read_all() if ids is self._all_ids else self.reader.read(ids)
        if self._autoreset is Autoreset.DISABLED:
            self.ready.note_ends(ids, batch)
        if self._resetting:
            self.resets += len(self._resetting.intersection(ids))
            self._resetting.difference_update(ids)
        follow_up = self.traffic.hand_out(ids)
        if follow_up:
            self._launch([i for i, _ in follow_up], [held for _, held in follow_up])
        return batch

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, env_id: Ids) -> Snapshot:
        """Everything that idle envs are."""
        ids = self._refuse_busy(self.check_ids(env_id))
        self.ready.refuse_unready([i for i in ids if self.ready.fresh_N[i] or i in self.ready.faulted])
        return Snapshot(self._engine.spec.id, snapshots(self._engine).snapshot(ids, self.reader.block))

    def restore(self, snapshot: Snapshot, env_id: Ids) -> None:
        """Make idle envs what others were."""
        ids = self._refuse_busy(self.check_ids(env_id))
        engine = snapshots(self._engine)
        check_snapshot(snapshot, self._engine.spec.id, len(ids), engine.snapshot(ids[:1], self.reader.block))
        self.reader.next_block(keep_rows=True)
        engine.restore(ids, self.reader.block, snapshot.arrays)
        self._drop_faults(ids)
        self.ready.note_reset(ids)
        if self._autoreset is Autoreset.DISABLED:
            self.ready.note_ends(ids, self.reader.latest(ids))

    def _refuse_busy(self, ids: list[int]) -> list[int]:
        if busy := [i for i in ids if self.traffic.is_busy(i)]:
            raise StateError(f"envs {busy} are under way: recv() their rows first")
        return ids

    # ------------------------------------------------------------------ calls

    def ask(self, calls: dict[int, Call]) -> tuple[Any, ...]:
        """Call into idle envs and return the answers, in the order of the ids."""
        ids = self._refuse_busy(list(calls))
        try:
            self._submit(ids, Command.CALL, {i: Request(call=call) for i, call in calls.items()})
            while len(self.traffic.landed(ids)) < len(ids):
                self._collect(1, None)
        except BaseException:
            self.traffic.abandon(ids)
            self._drop_faults(ids)
            raise
        self._raise_call_faults(ids)
        self.traffic.hand_out(ids)
        return tuple(self._engine.extras.pop(i).value for i in ids)

    def _raise_call_faults(self, ids: Sequence[int]) -> None:
        faults = [self._engine.faults.pop(i) for i in ids if i in self._engine.faults]
        if faults:
            self.faults += len(faults)
            for i in ids:
                self._engine.extras.pop(i, None)
            self.traffic.forget(ids)
            raise faults[0].to_error()
