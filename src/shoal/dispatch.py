"""What happens inside a pool between a call and its result.

    begin_step, begin_reset   check everything, then hand commands to the engine (or hold them)
    receiver                  waits, hands rows out, sends what waited for them

``Pool`` guards the door; this is the room behind it. Nothing here is thread-safe.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal.engines.base import Command, Engine, Request
from shoal.errors import StateError
from shoal.fault_desk import FaultDesk
from shoal.fault_rows import FaultRows
from shoal.nan_watch import NanWatch
from shoal.readiness import Ids, Readiness, Wishes, check_ids, check_one_each, options_of
from shoal.reading import RowReader
from shoal.receiving import Receiver
from shoal.recovery import Recovery, Restart
from shoal.seeding import Seed, seeds_of
from shoal.sending import Sender
from shoal.slot import Autoreset
from shoal.spec import RawActions
from shoal.traffic import Held, Traffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from shoal.batch import Batch
    from shoal.black_box import FaultFiles


class Dispatch:
    """Sends commands and receives rows.

    Attributes:
        engine: Runs the envs.
        action: The action space as this pool judges it: with or without its bounds.
        autoreset: The boundary rule that the envs run under.
        traffic: Commands under way.
        sender: Hands commands to the engine.
        reader: Copies rows out, and counts them.
        ready: Which envs may be stepped.
        recovery: Decides what becomes of envs that failed.
        desk: Deals with faults.
        box: Keeps the last commands of every env; None if this pool keeps none.
        resetting: Envs that the caller is resetting, and their requests.
        moves_as_one: Whether all actions are arrays, so that the whole pool can step without per-env bookkeeping.
        receiver: Waits for rows and hands them out.
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
        self.action = engine.spec.action if bounded_actions else engine.spec.action.without_bounds()
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
        self.moves_as_one = not self.action.has_objects
        self.ready = Readiness(self.num_envs)
        self.resetting: dict[int, Request | None] = {}
        nan_watch = None if on_nan is None else NanWatch(engine, on_nan)
        self._is_suspect = None if nan_watch is None else nan_watch.is_suspect
        self.desk = FaultDesk(self, nan_watch, fault_files)
        self.receiver = Receiver(
            engine,
            self.sender,
            self.traffic,
            self.reader,
            self.ready,
            self.recovery,
            self.desk,
            self.resetting,
            self._all_ids,
            is_async=is_async,
            leaves_ends=self._leaves_ends,
        )
        self.desk.take_unbuilt()

    def release(self) -> None:
        """Let go of the engine's memory. The counters stay."""
        self._take = self._is_suspect = None
        self.reader.release()
        for user in (self.desk.nan_watch, self.box):
            if user is not None:
                user.release()

    # ------------------------------------------------------------------ sending

    def step_all(self, action: Any) -> Batch:
        """Step every env of an idle pool: what most pools do all day, without the bookkeeping of the general case."""
        step_now, recovery, ready = self._step_now, self.recovery, self.ready
        is_odd = recovery.due or recovery.dropped or action.__class__ is RawActions
        if step_now is None or is_odd or (self._implicit_reset and not ready.all_ready):
            ids = self.begin_step(action, None)
            return self.receiver.receive(ids, len(ids))
        if not ready.all_ready:
            ready.refuse_unready(self._all_ids)
        if self._take is None or not self._take(action):
            self.sender.write_actions(slice(None), self.action.fit_batch(action, self.num_envs))
        reader = self.reader
        if reader.has_blocks:
            reader.next_block()
        engine, receiver = self.engine, self.receiver
        # What an interrupted call has left behind must not pass for this one's.
        engine.collected = []
        if engine.extras:
            engine.extras.clear()
        start = perf_counter()
        try:
            try:
                step_now(reader.block, self._note_step)
            finally:
                receiver.waiting_s += perf_counter() - start
            if self._is_suspect is not None and self._is_suspect(reader.block):
                self.desk.inspect_all(reader.block)
            batch = None
            if engine.faults or len(engine.collected) < self.num_envs:
                self._note_flight()
            else:
                batch = reader.read_all()
        except BaseException:
            self._note_flight()
            self.desk.note_rows(engine.collected)  # they may not have been searched for NaN yet
            receiver.keep(self._all_ids, ())
            raise
        if batch is None:
            return receiver.receive(self._all_ids, self.num_envs)
        if self._leaves_ends and reader.has_ends:
            self.ready.note_ends(slice(None), batch)
        if engine.extras or not reader.is_bare:
            reader.note_given(batch, True)
        return batch

    def _note_flight(self) -> None:
        """Book a step of the whole pool like any other command: envs that are done have landed, the rest are flying."""
        self.traffic.take_off(self._all_ids)
        self.traffic.land(self.engine.collected)  # after an interrupt, both are done once more

    def begin_send(self, action: Any, env_id: Ids) -> list[int]:
        """``begin_step``, but an asynchronous pool skips dropped envs, whose rows would come first every time."""
        self._check_left()
        dropped = self.recovery.dropped
        if not (self._is_async and dropped) or dropped.keys().isdisjoint(ids := self.check_ids(env_id)):
            return self.begin_step(action, env_id)
        rows = [row for row, i in enumerate(ids) if i not in dropped]
        if isinstance(action, RawActions):
            check_one_each("action", action, ids)
            return self._begin_raw([ids[row] for row in rows], RawActions(action[row] for row in rows))
        leaves = self.action.fit_batch(action, len(ids))
        if not rows:
            return []
        return self.begin_step(self.action.unflatten([leaf[rows] for leaf in leaves]), [ids[row] for row in rows])

    def begin_step(self, action: Any, env_id: Ids) -> list[int]:
        """Check actions and start one step per env; returns the ids."""
        self._check_left()
        ids = self.check_ids(env_id)
        if isinstance(action, RawActions):
            return self._begin_raw(ids, action)
        leaves = self.action.fit_batch(action, len(ids), None if env_id is None else ids)
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
        check_one_each("action", actions, ids)
        self.ready.refuse_unready(ids)
        requests = [Request(action=(action,)) for action in actions]
        if not self.traffic.are_idle(ids):  # else the engine refuses all of them, or none
            self._vet(ids, requests)
        self.sender.send(ids, [Held(Command.STEP, (), request) for request in requests])
        return ids

    def _vet(self, ids: list[int], requests: Sequence[Request | None]) -> None:
        """Refuse what cannot be sent to a worker before anything moves."""
        if self.engine.check_requests is not None:
            told = zip(ids, requests, strict=True)
            self.engine.check_requests({i: request for i, request in told if request is not None})

    def _begin_fresh(self, ids: list[int], leaves: list[np.ndarray[Any, Any]]) -> None:
        """Reset the envs that were never reset, whatever their action, and step the others."""
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
        self._check_left()
        ids = self.check_ids(env_id)
        if seed is None:
            # The pool's own seed serves each env until a reset has given a row, even if not all are reset at once.
            seeds = [self._seeds[i] if i in self.ready.unseeded else None for i in ids]
        else:
            seeds = seeds_of(ids, seed, self.num_envs)
        requests = [
            None if own is None and wish is None else Request(seed=own, options=wish)
            for own, wish in zip(seeds, options_of(ids, options), strict=True)
        ]
        if options is not None:
            self._vet(ids, requests)
        self.recovery.note_seeds(ids, seeds)
        self._renew_lost(ids)
        self._abandon(ids)
        if self.recovery.intervenes or not self.traffic.are_idle(ids):
            self.sender.send(ids, [Held(Command.RESET, (), request) for request in requests])
        else:
            self.sender.reset_idle(ids, requests)
        self.ready.note_reset(ids)
        self.resetting.update(zip(ids, requests, strict=True))
        return ids

    def _renew_lost(self, ids: Sequence[int]) -> None:
        """Have envs that are gone for good built anew with their reset, if an error has reported them as lost."""
        for i, is_unbuilt in self.ready.take_lost(ids).items():
            if not is_unbuilt and i not in self.engine.gone:
                continue  # it hangs in a thread, and may come back
            if not self.recovery.rebuilds(i) and i not in self.recovery.dropped:
                self.recovery.renew(i)

    def restart(self, env_id: Ids, seed: Seed) -> list[int]:
        """Start building envs anew, whatever state they are in; returns the ids."""
        ids = self.check_ids(env_id)
        if seed is not None:
            seed = seeds_of(ids, seed, self.num_envs)  # checked before anything moves
        return self.begin_reset(seed, None, self.renew(ids))

    def renew(self, env_id: Ids) -> list[int]:
        """Have envs built anew with their next reset, dropping what they were doing; returns the ids."""
        ids = self.check_ids(env_id)
        self.ready.take_lost(ids)
        self._abandon(ids)
        for i in ids:
            self.recovery.renew(i)
        return ids

    def _check_left(self) -> None:
        """Raise if every env is out."""
        if len(self.recovery.dropped) == self.num_envs:
            raise StateError("every env of the pool has failed and was dropped: restart() brings them back")

    def check_ids(self, env_id: Ids) -> list[int]:
        """Env ids as a list of ints, each in range and given once; None means all."""
        return self._all_ids if env_id is None else check_ids(env_id, self.num_envs)

    def _abandon(self, ids: Sequence[int]) -> None:
        """Wait for what these envs are doing and drop it."""
        if not self.traffic.is_empty:
            self.sender.withdraw(ids)
            self.traffic.abandon(ids)
            self.receiver.settle()
        for i in ids:
            self.resetting.pop(i, None)
        self.receiver.drop_faults(ids)
