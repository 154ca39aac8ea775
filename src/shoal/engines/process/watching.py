"""Watching for workers that died, lanes that are stuck and workers that grow; and who is to blame for a loss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.engines.base import PHASES, Command
from shoal.errors import EnvTimeout, Where, WorkerDied
from shoal.faults import Fault

if TYPE_CHECKING:
    from shoal.engines.process.engine import ProcessEngine
    from shoal.engines.process.launch import WorkerProcess

_LOOK_EVERY_S = 1.0  # how often to look at the memory of workers


class LaneWatch:
    """Watches over the workers of an engine while it waits for them."""

    def __init__(self, engine: ProcessEngine) -> None:
        self._engine = engine
        self._waited_s = [0.0] * len(engine.homes.lanes)
        self._seen = [(0, -1)] * len(engine.homes.lanes)
        self._since_look_s = 0.0

    def look(self, passed_s: float) -> None:
        """Look at all workers; ``passed_s`` seconds have passed since the last time."""
        engine = self._engine
        for worker in engine.crew.workers:
            if worker.index not in engine.crew.lost and not worker.is_alive():
                engine.drain()
                engine.give_up(worker)
        self._since_look_s += passed_s
        if self._since_look_s > _LOOK_EVERY_S:
            self._since_look_s = 0.0
            self._look_at_memory()
        for lane, owed in enumerate(engine.owed):
            if not owed or engine.homes.worker_of_lane[lane] in engine.crew.lost:
                self._waited_s[lane] = 0.0
                continue
            seen = (engine.control.progress[lane], engine.control.running[lane])
            if seen != self._seen[lane]:
                # It moved at some point since the last look: no env is to be given up too early.
                self._seen[lane], self._waited_s[lane] = seen, 0.0
            else:
                self._waited_s[lane] += passed_s
            engine.nudge(lane)
            self._judge(lane)

    def forgive(self, lane: int) -> None:
        """Start a lane's clock anew: a new worker must not inherit the time for which its predecessor hung."""
        self._waited_s[lane] = 0.0

    def _look_at_memory(self) -> None:
        engine = self._engine
        for worker in engine.crew.workers:
            if worker.index not in engine.crew.lost:
                worker.look()
        if engine.recycler is not None:
            engine.recycler.look()

    def _judge(self, lane: int) -> None:
        """Give a lane up if its env has been busy with one command for too long."""
        engine, waited_s = self._engine, self._waited_s[lane]
        env_id = engine.control.running[lane]
        if env_id not in engine.homes.lane_ids[lane]:
            if self._is_kept_waiting(lane):
                return  # the lane that it waits for has a deadline of its own
            env_id = self._next_env(lane)
        command = Command(engine.control.command[env_id])
        limit = engine.config.timeouts.of(command, is_building=env_id in engine.building)
        if limit is None or waited_s <= limit:
            return
        worker = engine.crew.workers[engine.homes.worker_of_lane[lane]]
        stacks = worker.stacks()
        worker.kill()
        why = f"no answer after {waited_s:.1f} s"
        phase = "construct" if env_id in engine.building else PHASES[command]
        own = Fault(Where((env_id,), phase, worker.index, worker.pid), why, stacks, error_class=EnvTimeout)
        engine.lose(worker, f"it hung in env {env_id}: {why}", "", own)

    def _is_kept_waiting(self, lane: int) -> bool:
        """Whether another lane of the same worker is at work, perhaps holding the GIL."""
        homes, running = self._engine.homes, self._engine.control.running
        others = [other for other in homes.lanes_of(homes.worker_of_lane[lane]) if other != lane]
        return any(running[other] in homes.lane_ids[other] and self._waited_s[other] > 0 for other in others)

    def _next_env(self, lane: int) -> int:
        """The env to wait for in a lane that runs none: preferably one that is to be built."""
        engine = self._engine
        ids = engine.homes.lane_ids[lane]
        owed = [i for i in ids if i in engine.out] or ids
        return next((i for i in owed if i in engine.building), owed[0])


def blame(
    engine: ProcessEngine, worker: WorkerProcess, why: str, last_words: str, hung: Fault | None
) -> tuple[Fault, dict[int, Fault]]:
    """The fault of a worker that is gone, and those of its envs.

    The env that hung is to blame, or the one that was at work; if there is no telling, all of them are.
    """
    lanes, env_ids = engine.homes.lanes_of(worker.index), engine.homes.envs_of(worker.index)
    at_work = [i for lane in lanes if (i := engine.control.running[lane]) in engine.homes.lane_ids[lane]]
    culprits = at_work if hung is None else list(hung.where.env_ids)
    where = Where(tuple(env_ids), PHASES[engine.command_owed_by(worker)], worker.index, worker.pid)
    told = f" (env {at_work[0]} was at work)" if len(at_work) == 1 and hung is None else ""
    lost = Fault(where, f"the worker process is gone: {why}{told}", last_words, error_class=WorkerDied)
    has_culprit = len(culprits) == 1
    return lost, {
        i: hung if hung and i in culprits else replace(lost, is_collateral=has_culprit and i not in culprits)
        for i in env_ids
    }
