"""Talking to single envs of an idle pool: calls, attributes, snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from shoal.engines.base import Call, Command, Request
from shoal.errors import StateError
from shoal.faults import fault_from
from shoal.slot import Autoreset
from shoal.snapshot import OneByOne, Snapshot, TakesSnapshots, Whole, check_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.dispatch import Dispatch
    from shoal.readiness import Ids


class Asking:
    """What a pool does with envs besides resets and steps; like ``Dispatch``, it serves one thread at a time."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._engine = dispatch.engine

    def ask(self, calls: dict[int, Call]) -> tuple[Any, ...]:
        """Call into idle envs and return the answers, in the order of the ids."""
        dispatch, traffic = self._dispatch, self._dispatch.traffic
        ids = self._refuse_dropped(self._refuse_busy(list(calls)))
        try:
            dispatch.sender.submit(ids, Command.CALL, {i: self._request(i, call) for i, call in calls.items()})
            self._note_built(ids)
            while len(traffic.landed(ids)) < len(ids):
                dispatch.receiver.collect(1, None)
            self._raise_faults(ids)
            answers = tuple(self._engine.extras.pop(i).value for i in ids)
            traffic.hand_out(ids)
        except BaseException:
            traffic.abandon(ids)
            dispatch.receiver.drop_outcomes(ids)
            raise
        return answers

    def _request(self, env_id: int, call: Call) -> Request:
        """The request for a call; an env due to be built anew is built for the call, and still owes its reset."""
        recovery = self._dispatch.recovery
        reset = recovery.due[env_id][0] if env_id in recovery.due else Request()
        return Request(call=call, incarnation=reset.incarnation)

    def _note_built(self, ids: Sequence[int]) -> None:
        due = self._dispatch.recovery.due
        for i in ids:
            if i in due:
                reset, not_before = due[i]
                due[i] = (Request(seed=reset.seed), not_before)

    def _raise_faults(self, ids: Sequence[int]) -> None:
        faults = [self._engine.faults[i] for i in ids if i in self._engine.faults]
        if faults:
            self._dispatch.desk.count += len(faults)
            raise faults[0].to_error()

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, env_id: Ids) -> Snapshot:
        """The complete state of idle envs."""
        dispatch = self._dispatch
        ids = self._refuse_dropped(self._refuse_busy(dispatch.check_ids(env_id)))
        ready = dispatch.ready
        ready.refuse_unready([i for i in ids if ready.fresh_N[i] or i in ready.faulted])
        if due := [i for i in ids if i in dispatch.recovery.due]:
            raise StateError(f"envs {due} failed and wait for a reset: step or reset them first")
        return Snapshot(self._engine.spec.id, self._snapshots().snapshot(ids, dispatch.reader.block))

    def restore(self, snapshot: Snapshot, env_id: Ids) -> None:
        """Put idle envs into the states of others."""
        dispatch = self._dispatch
        ids = self._refuse_dropped(self._refuse_busy(dispatch.check_ids(env_id)))
        own = self._snapshots()
        check_snapshot(snapshot, self._engine.spec.id, len(ids), own.like(ids, dispatch.reader.block))
        if not dispatch.traffic.num_flying:  # commands under way write to this block
            dispatch.reader.next_block(keep_rows=True)
        try:
            own.restore(ids, dispatch.reader.block, snapshot.arrays)
        except StateError:
            raise  # they cannot be put into any state, and were not
        except BaseException as error:
            # Some envs may have been restored already, while the rows are still the old ones.
            summary = f"restore: {error}".splitlines()[0]
            fault = replace(fault_from(error, env_id=ids[0], phase="call"), summary=summary)
            dispatch.ready.note_faults(ids, [fault] * len(ids))
            raise
        dispatch.receiver.drop_faults(ids)
        dispatch.recovery.forgive(ids)
        if dispatch.box is not None:
            dispatch.box.note_restore(ids)
        dispatch.ready.note_reset(ids)
        dispatch.ready.unseeded.difference_update(ids)
        dispatch.reader.note_restore(ids)
        # Elsewhere, the step that ended an episode would have begun the next one, or the caller.
        if dispatch.autoreset is not Autoreset.NEXT_STEP:
            dispatch.ready.note_ends(ids, dispatch.reader.latest(ids))

    def _snapshots(self) -> Whole | OneByOne:
        """How this engine takes snapshots: if it holds its envs as arrays, it copies them; if not, envs are asked."""
        engine = self._engine
        if hasattr(engine, "snapshot"):
            return Whole(cast("TakesSnapshots", engine))
        return OneByOne(engine.rows, self.ask, self._dispatch.reader.objects)

    def _refuse_busy(self, ids: list[int]) -> list[int]:
        if busy := [i for i in ids if self._dispatch.traffic.is_busy(i)]:
            raise StateError(f"envs {busy} are under way: recv() their rows first")
        return ids

    def _refuse_dropped(self, ids: list[int]) -> list[int]:
        if out := [i for i in ids if i in self._dispatch.recovery.dropped]:
            raise StateError(f"envs {out} failed and were dropped: restart() brings them back")
        return ids
