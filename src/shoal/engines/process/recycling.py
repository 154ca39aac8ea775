"""Replacing workers that hold too much memory, env by env, as one episode ends and the next begins.

    a worker grows above the limit      an heir is started beside it, without envs
    one of its envs begins an episode   the old worker lets it go; the heir builds it, gives it its generator, resets it
    the last env has left               the old worker is ended, and its place is free for the next heir

Between two episodes an env is nothing but its generator, so its rows are those that it would have given anyway. Under
``same_step`` a row has both episodes in it: the old worker leaves out the second (``Slot.defers``), the row is held
back, and the heir's first observation completes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.base import LET_GO, Command, Extra, Request, shares
from shoal.errors import ResourceError, ShoalError
from shoal.machine import resident_bytes
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.engines.process.engine import ProcessEngine

_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class HeldRow:
    """A row that ended an episode but lacks the first observation of the next."""

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
        # The heir's lanes, and which of them each env goes to; the envs on their way, with what they are to do there.
        self._lanes: list[tuple[int, range]] = []
        self._heirs: dict[int, int] = {}
        self._moving: dict[int, tuple[Request, int, int]] = {}
        self._held: dict[int, HeldRow] = {}
        self._has_complained = False
        self._born: dict[int, int] = {}  # how many workers had been replaced when the one in a place was started

    @property
    def is_active(self) -> bool:
        """Whether a worker is being replaced."""
        return self._leaving is not None

    def look(self) -> None:
        """Check whether a worker has grown too large, and start its heir, or another heir if that one has died."""
        self._retire_if_empty()  # an interrupt may have prevented that
        crew, leaving = self._engine.crew, self._leaving
        if leaving is None:
            # One without envs has been replaced already, and an interrupt has kept it alive.
            alive = [w for w in crew.workers if w.index not in crew.lost and self._engine.homes.envs_of(w.index)]
            large = [worker.index for worker in alive if (resident_bytes(worker.pid) or 0) > self._above]
            if not large:
                return
            # The oldest, so that all get their turn even if no worker can stay below the limit.
            leaving = min(large, key=lambda index: self._born.get(index, 0))
        elif self._free not in crew.lost:
            return
        try:
            self._start(leaving)
            self._has_complained = False
        except (ShoalError, OSError):
            if not self._has_complained:  # say so once: it is tried again every second
                _log.warning("worker %d cannot be replaced now", leaving, exc_info=True)
            self._has_complained = True

    def _start(self, leaving: int) -> None:
        engine, place = self._engine, self._free
        if place < len(engine.crew.workers):
            engine.crew.bury(place)  # the worker there may be one that never got to work
        if leaving != self._leaving:
            ids, lanes = engine.homes.envs_of(leaving), engine.homes.lanes_of(place)
            parts = shares(len(ids), min(len(ids), len(lanes)))
            self._lanes = [(lane, range(ids[p[0]], ids[p[-1]] + 1)) for lane, p in zip(lanes, parts, strict=False)]
        engine.homes.give_lanes(place, self._lanes)
        engine.crew.give_lanes(place, self._lanes, predecessor=leaving)
        engine.open_place(place)
        self._heirs = {i: lane for lane, part in self._lanes for i in part}
        self._leaving, self._born[place] = leaving, self.count + 1
        engine.control.leaving[leaving] = True

    def send_off(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request], block: int
    ) -> tuple[list[int], dict[int, Request]]:
        """Start moving the envs that begin an episode with this command; returns the others, with their requests."""
        movers = self._movers(ids, command)
        for i in movers:
            self._begin(i, requests.get(i), block)
        return [i for i in ids if i not in movers], {i: r for i, r in requests.items() if i not in movers}

    def _movers(self, ids: Sequence[int], command: Command) -> set[int]:
        """The envs among these that begin an episode with this command, and are to do so in the heir."""
        engine = self._engine
        if self._leaving is None or command is Command.CALL or not self._has_heir():
            return set()
        here = {i for i in ids if engine.homes.worker_of(i) == self._leaving and i not in engine.gone}
        if command is Command.RESET:
            return here
        return {i for i in here if engine.config.autoreset is Autoreset.NEXT_STEP and self._is_over(i)}

    def _has_heir(self) -> bool:
        """Whether there is a living heir to go to: the death of one may not have been noticed yet."""
        crew = self._engine.crew
        return self._free not in crew.lost and crew.workers[self._free].is_alive()

    def _begin(self, env_id: int, request: Request | None, block: int) -> None:
        """Have the old worker let go of an env."""
        engine, request = self._engine, request or Request()
        if env_id in engine.gone:
            # Its worker was found dead while another env was let go. The engine reports that, or rebuilds the env.
            engine.submit([env_id], Command.RESET, {env_id: request}, block)
            return
        self._moving[env_id] = (request, block, self._heirs[env_id])
        engine.submit([env_id], Command.CALL, {env_id: Request(call=(LET_GO, "", (), {}))}, block)

    def take_home(self, ids: list[int]) -> list[int]:
        """Send envs that were let go, or are about to be, on their way; returns the others, which have rows."""
        return [i for i in ids if not self._is_on_the_way(i)] if self._leaving is not None or self._held else ids

    def _is_on_the_way(self, env_id: int) -> bool:
        engine = self._engine
        if env_id in self._moving or self._lacks_half(env_id):
            engine.arrivals.append(env_id)
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
        """Whether an env has given a row that ends an episode without beginning the next; if so, hold the row back."""
        engine = self._engine
        if (
            engine.config.autoreset is not Autoreset.SAME_STEP
            or engine.homes.worker_of(env_id) != self._leaving
            or env_id in engine.faults
            or env_id in self._held
            or engine.control.command[env_id] != Command.STEP
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
        # The heir's first row overwrites the columns of infos, too.
        last = {name: self._row(env_id, column) for name, column in rows.info.items()}
        last_info = {name: value.copy() if np.ndim(value) else value.item() for name, value in last.items()}
        extra.info = {**last_info, **(extra.info or {})} or None
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
        """Have the heir build and reset an env that was let go, or start moving one whose row was held back."""
        engine = self._engine
        if env_id in self._moving:
            self._settle(env_id)
        elif env_id in self._held:  # else an interrupt has come between
            if self._has_heir():
                self._begin(env_id, None, self._held[env_id].block)
            else:  # nowhere to go: the row is completed where it began
                engine.submit([env_id], Command.RESET, None, self._held[env_id].block)
        if env_id in engine.gone:
            self._held.pop(env_id, None)

    def _settle(self, env_id: int) -> None:
        engine = self._engine
        request, block, heir = self._moving.pop(env_id)
        answer = engine.extras.pop(env_id, None)
        engine.faults.pop(env_id, None)  # there was no env to let go of
        self._rehost(env_id, heir)
        if not self._has_heir():  # noticed now, a dead heir is replaced; later, it would take this env with it
            worker = engine.crew.workers[self._free]
            engine.give_up(worker)
        if request.incarnation is None:
            generator = None if answer is None else answer.value
            request = replace(request, incarnation=engine.incarnations[env_id], generator=generator)
        engine.submit([env_id], Command.RESET, {env_id: replace(request, action=())}, block)
        self._retire_if_empty()

    def note_loss(self, worker: int) -> None:
        """Note that a worker is gone; if it was being replaced, its envs are built by the heir, not by a new worker."""
        engine = self._engine
        for i in engine.homes.envs_of(worker):
            self._held.pop(i, None)
            if self._moving.pop(i, None) is not None:
                engine.extras.pop(i, None)
        if worker == self._leaving:
            try:
                engine.crew.bury(worker)  # a dying worker could still write to what belongs to another by then
            except ShoalError:
                return  # whoever rebuilds its envs tries again, in the same place
            for i in engine.homes.envs_of(worker):
                engine.control.clear_env(i)
                self._rehost(i, self._heirs[i])
            self._retire_if_empty()

    def _rehost(self, env_id: int, lane: int) -> None:
        """Make another lane the home of an env."""
        self._engine.homes.move(env_id, lane)
        self._engine.control.host[env_id] = lane

    def _retire_if_empty(self) -> None:
        engine, leaving = self._engine, self._leaving
        if leaving is None or engine.homes.envs_of(leaving):
            return
        engine.control.leaving[leaving] = False
        self._free, self._leaving = leaving, None
        self.count += 1
        try:
            engine.crew.retire(leaving)
        except ResourceError:  # its place is not given to another worker before it is dead
            _log.warning("worker %d was replaced, and is still there", leaving, exc_info=True)
