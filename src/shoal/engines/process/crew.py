"""The workers of one process engine: start them together, learn what they built, end them for certain."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.arrays import Arena
from shoal.engines.base import AwakeTime, EngineConfig
from shoal.engines.lane import common_spec, spared
from shoal.engines.process import shipping
from shoal.engines.process.launch import WorkerProcess, start_method
from shoal.engines.process.stderr import StderrRelay
from shoal.engines.process.wire import Frame, Kind, WireError
from shoal.engines.process.worker import Boot, SharedFd
from shoal.errors import ClosedPool, ResourceError, Where
from shoal.faults import Fault
from shoal.seeding import entropy

if TYPE_CHECKING:
    from shoal.engines.process.control import Control, Plan
    from shoal.spec import EnvSpec

_SLICE_S = 0.05
_DYING_S = 5.0


@dataclass
class Construction:
    """How far a worker has come with building its envs."""

    worker: WorkerProcess
    built: set[int] = field(default_factory=set)
    waited_s: float = 0.0

    def lost(self, why: str, stacks: str = "") -> Fault:
        """The fault of a worker that will not finish."""
        left = [i for i in self.worker.env_ids if i not in self.built]
        # Envs are built in order, so the first one missing is the one that did it.
        ids = tuple(left[:1]) or self.worker.env_ids
        return Fault(Where(ids, "construct", self.worker.index, self.worker.pid), why, stacks)


class Crew:
    """All workers of a pool. It outlives the engine object just long enough to close them.

    Attributes:
        workers: The worker processes, in order.
        lost: Workers that are gone, with the fault that says why.
        memory_fd: The file behind the shared memory.
    """

    def __init__(self, config: EngineConfig, lanes: tuple[range, ...], worker_of_lane: list[int]) -> None:
        self.config = config
        self.method = start_method(config.start_method)
        self.workers: list[WorkerProcess] = []
        self.lost: dict[int, Fault] = {}
        self.relay = StderrRelay()
        self._generations = [0] * (max(worker_of_lane) + 1)
        # A worker's generators follow the pool's seed, so that envs which use them repeat with it.
        self._entropy = config.seed if config.seed is not None else entropy()
        self.memory_fd = Arena.open_file()
        self._control: Control | None = None
        self._specs: dict[int, EnvSpec] = {}
        self._closing = threading.Lock()
        self._is_closed = False
        self._owner_pid = os.getpid()
        self._shares: list[list[tuple[int, range]]] = [[] for _ in range(max(worker_of_lane) + 1)]
        for lane, worker in enumerate(worker_of_lane):
            self._shares[worker].append((lane, lanes[lane]))

    def start(self) -> dict[int, Fault]:
        """Start all workers and wait until each has built its envs; returns those that the pool starts without.

        Raises:
            EnvConstructError: Naming every env that could not be built.
        """
        for index in range(len(self._shares)):
            self.workers.append(WorkerProcess(self._boot(index), self.method, self.relay))
        return spared(self.config, self._await_ready())

    def _boot(self, index: int) -> Boot:
        lanes, nothing = self._shares[index], SharedFd(-1)
        factories = [self.config.factories[i] for _, ids in lanes for i in ids]
        return Boot(
            worker=index,
            config=replace(self.config, factories=()),
            factories=shipping.pack_factories(factories),
            lanes=tuple(lanes),
            memory=SharedFd(self.memory_fd),
            channel=nothing,
            lifeline=nothing,
            stacks=nothing,
            stderr=nothing,
            entropy=self._entropy,
            generation=self._generations[index],
        )

    def replace(self, index: int, plan: Plan, rounds: int) -> None:
        """Start a worker without envs in the place of one that is gone.

        Raises:
            ShoalError: If the machine does not give another process, or the pool is being closed.
        """
        with self._closing:
            if self._is_closed:
                raise ClosedPool("the pool is closed")
            self._generations[index] += 1
            self.workers[index] = worker = WorkerProcess(self._boot(index), self.method, self.relay)
        del self.lost[index]
        self._attach(worker, plan, rounds)

    def bury(self, index: int) -> None:
        """See that a worker is dead before another gets its memory."""
        worker = self.workers[index]
        worker.kill()
        if not worker.join(_DYING_S):
            raise ResourceError(f"worker {worker.index} (pid {worker.pid}) cannot be killed: it hangs in the kernel")
        worker.release()

    def _await_ready(self) -> list[Fault]:
        """Wait until every worker has built its envs or failed, all under one clock; returns what failed."""
        pending = {worker: Construction(worker) for worker in self.workers}
        clock, faults = AwakeTime(2 * _SLICE_S), []
        while pending:
            connection.wait([worker.channel.socket for worker in pending], _SLICE_S)
            passed_s = clock.lap()
            for worker, construction in list(pending.items()):
                outcome = self._hear(construction, passed_s)
                if outcome is not None:
                    del pending[worker]
                    faults += outcome
        return faults

    def _hear(self, construction: Construction, passed_s: float) -> list[Fault] | None:
        """What one worker has to say by now: None if it is still at it, else the faults of its envs."""
        worker, limit = construction.worker, self.config.timeouts.construct
        construction.waited_s += passed_s
        try:
            while frame := worker.channel.receive(0):
                if frame.kind is not Kind.BUILT:
                    return self._take_ready(frame)
                construction.built.add(frame.env_id)
                construction.waited_s = 0.0
            self.check(worker)
        except WireError:
            return self._lose(construction, f"the worker process is gone: {worker.how_it_ended()}", worker.last_words())
        if limit is not None and construction.waited_s > limit:
            return self._lose(construction, f"no answer after {construction.waited_s:.1f} s", worker.stacks())
        return None

    def _lose(self, construction: Construction, why: str, evidence: str) -> list[Fault]:
        """The faults of a worker that will not finish: of the env that did it, and of those that fell with it."""
        fault = construction.lost(why, evidence)
        construction.worker.kill()
        self.lost[construction.worker.index] = fault
        others = tuple(i for i in construction.worker.env_ids if i not in fault.where.env_ids)
        if not others or not self.config.spares_failed_builds:
            return [fault]
        return [fault, replace(fault, where=replace(fault.where, env_ids=others), is_collateral=True)]

    def _take_ready(self, frame: Frame) -> list[Fault]:
        kinds, index, faults = shipping.unpickle_value(frame.payload)
        self._specs.update({env_id: kinds[place] for env_id, place in index.items()})
        return [self.unpack_fault(fault) for fault in faults]

    @staticmethod
    def unpack_fault(portable: tuple[Fault, bytes]) -> Fault:
        """A fault with its exception, if that came along."""
        fault, cause = portable
        try:
            return replace(fault, cause=shipping.unpickle_value(cause)) if cause else fault
        except Exception:  # a class that only the worker can import: its text is all there is
            return fault

    def specs(self) -> EnvSpec:
        """The spec that all envs share."""
        worker_of = {i: worker.index for worker in self.workers for i in worker.env_ids}
        return common_spec(self._specs, worker_of.get)

    def attach(self, control: Control, plan: Plan) -> None:
        """Tell every worker where things are in the shared memory."""
        self._control = control
        for worker in self.workers:
            if worker.index not in self.lost:
                self._attach(worker, plan, 0)

    def _attach(self, worker: WorkerProcess, plan: Plan, rounds: int) -> None:
        payload = shipping.pickle_value((plan, rounds), "the plan")
        worker.channel.send(Kind.ATTACH, -1, payload, lambda: self.check(worker))

    def check(self, worker: WorkerProcess) -> None:
        """Raise ``WireError`` if the worker is gone."""
        if not worker.is_alive():
            raise WireError(0, f"worker {worker.index} is gone: {worker.how_it_ended()}")

    def close(self) -> None:
        """Ask every worker to stop, wait for at most the close deadline, kill what is left, and leave nothing."""
        with self._closing:
            # A process forked from ours has a copy of this object, and no say over our workers.
            if self._is_closed or os.getpid() != self._owner_pid:
                return
            self._is_closed = True
            self._ask_to_stop()
            end = monotonic() + self.config.timeouts.close
            for worker in self.workers:
                if not worker.join(max(0.0, end - monotonic())):
                    worker.kill()
                    worker.join(5.0)
                worker.release()
            self.relay.close()
            os.close(self.memory_fd)
            self._control = None

    def _ask_to_stop(self) -> None:
        control: Any = self._control
        if control is None:
            # Workers that were never attached wait for a frame: closing the channel ends them.
            for worker in self.workers:
                worker.kill()
            return
        control.stop[0] = 1
        for semaphore in control.go:
            semaphore.post()
