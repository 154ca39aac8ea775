"""Where faults are dealt with: found in rows, turned into rows or raised, and recorded if asked to."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from shoal.engines.base import Command
from shoal.errors import FaultError
from shoal.faults import Fault, error_of
from shoal.slot import Autoreset
from shoal.traffic import Held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.black_box import FaultFiles
    from shoal.dispatch import Dispatch
    from shoal.nan_watch import NanWatch


class FaultDesk:
    """Deals with the faults of one pool.

    Attributes:
        count: How often an env has failed.
        nan_watch: Looks for NaN; None if nothing does.
    """

    def __init__(self, dispatch: Dispatch, nan_watch: NanWatch | None, files: FaultFiles | None) -> None:
        self.count = 0
        self.nan_watch = nan_watch
        # Weak, because without a reference cycle an abandoned pool is freed at once, and its workers with it.
        self._dispatch: Dispatch = weakref.proxy(dispatch)
        self._engine = dispatch.engine
        self._recovery = dispatch.recovery
        self._files = files
        self._unseen: list[int] = []
        self._taken: Fault | None = None

    def take_unbuilt(self) -> None:
        """Let the recovery decide about envs that could not be built when the pool started."""
        for i in list(self._engine.faults):
            fault = self._engine.faults.pop(i)
            self.count += 1
            self._recovery.take(i, fault, cuts=False, folder=self._record(i, fault))

    def note_rows(self, ids: Sequence[int]) -> None:
        """Note that these rows have arrived."""
        if self.nan_watch is not None:
            self._unseen += ids

    def inspect(self) -> None:
        """Look for NaN in the rows that have arrived since the last look."""
        if not self._unseen or self.nan_watch is None:
            return
        ids, self._unseen = self._unseen, []
        dispatch, block = self._dispatch, self._dispatch.reader.block
        is_cheap = self.nan_watch.engine_tells or len(ids) == dispatch.num_envs
        if is_cheap and not self.nan_watch.is_suspect(block):
            return
        # A failed env has no row, and an env that was called has no new one.
        rows = [i for i in ids if dispatch.traffic.has_landed(i) and i not in self._engine.faults]
        self._engine.faults.update(self.nan_watch.faults(block, rows, dispatch.resetting))

    def inspect_all(self, block: int) -> None:
        """Look for NaN in the rows of the whole pool, some of which are suspect."""
        if self.nan_watch is not None:
            rows = [i for i in range(self._dispatch.num_envs) if i not in self._engine.faults]
            self._engine.faults.update(self.nan_watch.faults(block, rows))

    def recover(self) -> None:
        """Turn the faults of envs that have landed into rows, or have these envs reset again.

        Raises:
            FaultError: If an env has used up its restarts.
        """
        traffic = self._dispatch.traffic
        for i in [i for i in self._engine.faults if traffic.has_landed(i)]:
            fault = self._engine.faults[i]
            if not self._recovery.handles(fault):
                continue
            is_reset = i in self._dispatch.resetting
            try:
                if fault is not self._taken:  # else an interrupt came before it was closed
                    self._recovery.take(i, fault, cuts=not is_reset, folder=self._record(i, fault))
                    self._taken = fault
            except FaultError:
                self._dispatch.ready.note_faults([i], [fault])
                traffic.forget([i])
                self._close([i])
                raise
            self._close([i])
            self._taken = None
            if (is_reset or self._dispatch.autoreset is Autoreset.SAME_STEP) and i not in self._recovery.dropped:
                traffic.take_back(i)
                self._dispatch.sender.send([i], [Held(Command.RESET, (), self._dispatch.resetting.get(i))])

    def raise_for(self, ids: Sequence[int]) -> None:
        """Raise for the envs among ``ids`` that failed; the rows of the others stay to be received."""
        faults = self._engine.faults
        failed = [i for i in ids if i in faults]
        if not failed:
            return
        found = [faults[i] for i in failed]
        self._dispatch.ready.note_faults(failed, found)
        self._dispatch.traffic.forget(failed)
        self._close(failed)
        error = error_of(found)
        for i, fault in zip(failed, found, strict=True):
            if folder := self._record(i, fault):
                error.add_note(f"Do it again: shoal replay {folder}")
        raise error

    def _close(self, ids: Sequence[int]) -> None:
        """Close faults once they are dealt with; before that, an interrupt would let their rows pass as good ones."""
        self.count += sum(not self._engine.faults[i].spares_env for i in ids)
        for i in ids:
            self._engine.extras.pop(i, None)
            del self._engine.faults[i]

    def _record(self, env_id: int, fault: Fault) -> str | None:
        """Record what led to a fault, if there is a place for it; envs that fell with another have no story to tell."""
        if self._files is None or fault.is_collateral:
            return None
        return self._files.save_fault(env_id, fault.as_dict())
