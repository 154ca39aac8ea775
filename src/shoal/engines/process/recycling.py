"""Replacing workers that hold too much memory, env by env, where an episode ends and another begins.

    a worker grows above the limit      an heir is started beside it, without envs
    one of its envs begins an episode   the old worker lets it go; the heir builds it, gives it its generator, resets it
    the last env has left               the old worker is ended, and its place is free for the next heir

Between two episodes an env is its generator and nothing else, so the rows are those that it would have given anyway.
Under ``same_step`` a row has both episodes in it: the old worker leaves out the second (``Slot.defers``), the row is
held back, and the heir's first observation completes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.engines.base import LET_GO, Command, Extra, Request, shares
from shoal.errors import ShoalError
from shoal.machine import resident_bytes
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from shoal.engines.process.engine import ProcessEngine

_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class HeldRow:
    """A row that ended an episode and lacks the first observation of the next."""

    block: int
    scalars: tuple[Any, ...]
    extra: Extra


class Recycler:
    """Moves envs from one worker to its heir.

    Attributes:
        count: How many workers have been replaced.
    """

    def __init__(self, engine: ProcessEngine, above_bytes: int, free: int) -> None:
        self.count = 0
        self._engine = engine
        self._above = above_bytes
        self._free = free
        self._leaving: int | None = None
        # To which lane of the heir the envs of each lane go, and who is on the way, with what he is to do there.
        self._heirs: dict[int, int] = {}
        self._moving: dict[int, tuple[Request, int, int]] = {}
        self._held: dict[int, HeldRow] = {}

    @property
    def is_active(self) -> bool:
        """Whether a worker is being replaced."""
        return self._leaving is not None

    def look(self) -> None:
        """See whether a worker has grown too large, and start its heir."""
        crew = self._engine.crew
        if self._leaving is not None:
            return
        for worker in crew.workers:
            if worker.index not in crew.lost and (resident_bytes(worker.pid) or 0) > self._above:
                try:
                    self._start(worker.index)
                except (ShoalError, OSError):
                    _log.warning("worker %d cannot be replaced now", worker.index, exc_info=True)
                return

    def _start(self, leaving: int) -> None:
        engine = self._engine
        old, new = engine.homes.lanes_of(leaving), engine.homes.lanes_of(self._free)
        heirs: dict[int, int] = {}
        homes: list[tuple[int, range]] = []
        for lane, part in zip(new, shares(len(old), min(len(old), len(new))), strict=False):
            mine = [old[k] for k in part]
            homes.append((lane, range(engine.homes.lanes[mine[0]].start, engine.homes.lanes[mine[-1]].stop)))
            heirs.update(dict.fromkeys(mine, lane))
        engine.open_worker(self._free, homes)
        self._leaving, self._heirs = leaving, heirs
        engine.control.leaving[leaving] = True

    def movers(self, ids: Sequence[int], command: Command) -> list[int]:
        """Those among these envs that begin an episode with this command, and do so at the heir's."""
        engine = self._engine
        if self._leaving is None or self._free in engine.crew.lost or command is Command.CALL:
            return []
        here = [i for i in ids if engine.homes.worker_of(i) == self._leaving and not engine.is_gone(i)]
        if command is Command.RESET:
            return here
        return [i for i in here if engine.config.autoreset is Autoreset.NEXT_STEP and self._is_over(i)]

    def begin(self, env_id: int, request: Request | None, block: int) -> None:
        """Have an env let go."""
        heir = self._heirs[self._engine.homes.lane_of[env_id]]
        self._moving[env_id] = (request or Request(), block, heir)
        self._engine.submit([env_id], Command.CALL, {env_id: Request(call=(LET_GO, "", (), {}))}, block)

    def take_home(self, ids: list[int]) -> list[int]:
        """Send those that were let go, or are to be, on their way; returns the others, who have rows."""
        return [i for i in ids if not self._is_on_the_way(i)] if self._leaving is not None or self._held else ids

    def _is_on_the_way(self, env_id: int) -> bool:
        engine = self._engine
        if env_id in self._moving or self._lacks_half(env_id):
            engine.move_later(env_id)
            return True
        held = self._held.pop(env_id, None)
        if held is not None and env_id not in engine.faults:
            for column, value in zip(self._scalars, held.scalars, strict=True):
                column[held.block][env_id] = value
            first = engine.extras.get(env_id) or Extra()
            engine.extras[env_id] = Extra(
                first.info, first.objects, held.extra.info, held.extra.objects, has_final=True
            )
        return False

    def _lacks_half(self, env_id: int) -> bool:
        """Whether an env has given a row that ends an episode and does not begin one; if so, it is held back."""
        engine = self._engine
        if (
            engine.config.autoreset is not Autoreset.SAME_STEP
            or engine.homes.worker_of(env_id) != self._leaving
            or env_id in engine.faults
            or env_id in self._held
            or not self._is_over(env_id)
            or self._row(env_id, engine.rows.first)
        ):
            return False
        rows = engine.rows
        for final, obs in zip(rows.final, rows.obs, strict=True):
            if final is not None and obs is not None:
                final[env_id] = self._row(env_id, obs)
        scalars = tuple(self._row(env_id, column) for column in self._scalars)
        extra = engine.extras.pop(env_id, None) or Extra()
        self._held[env_id] = HeldRow(engine.control.block[env_id], scalars, extra)
        return True

    def _is_over(self, env_id: int) -> bool:
        """Whether the last row of an env ended an episode."""
        rows = self._engine.rows
        return bool(self._row(env_id, rows.terminated) or self._row(env_id, rows.truncated))

    def _row(self, env_id: int, column: np.ndarray[Any, Any]) -> Any:
        return column[self._engine.control.block[env_id]][env_id]

    @property
    def _scalars(self) -> tuple[np.ndarray[Any, Any], ...]:
        rows = self._engine.rows
        return rows.reward, rows.terminated, rows.truncated, rows.elapsed

    def arrive(self, env_id: int) -> None:
        """Have the heir build and reset an env that was let go; have one let go whose row was held back."""
        engine = self._engine
        if env_id not in self._moving:
            self.begin(env_id, None, self._held[env_id].block)
            return
        request, block, heir = self._moving.pop(env_id)
        answer = engine.extras.pop(env_id, None)
        engine.faults.pop(env_id, None)  # it had no body to let go of
        engine.rehost(env_id, heir)
        moved = Request(
            seed=request.seed,
            options=request.options,
            incarnation=engine.incarnation_of(env_id),
            generator=None if answer is None else answer.value,
        )
        engine.submit([env_id], Command.RESET, {env_id: moved}, block)
        self._retire_if_empty()

    def note_loss(self, worker: int) -> None:
        """A worker is gone. The envs of one that was being replaced are built by the heir, not by another like it."""
        engine = self._engine
        for i in engine.homes.envs_of(worker):
            self._moving.pop(i, None)
            self._held.pop(i, None)
        if worker == self._leaving:
            for i in engine.homes.envs_of(worker):
                engine.rehost(i, self._heirs[engine.homes.lane_of[i]])
            self._retire_if_empty()

    def _retire_if_empty(self) -> None:
        if self._leaving is not None and not self._engine.homes.envs_of(self._leaving):
            self._engine.crew.retire(self._leaving)
            self._engine.control.leaving[self._leaving] = False
            self._free, self._leaving = self._leaving, None
            self.count += 1
