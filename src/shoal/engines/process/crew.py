"""The workers of one process engine: start them together, learn what they built, end them for certain."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from dataclasses import dataclass, field, replace
from io import FileIO
from multiprocessing import connection
from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.arrays import Arena
from shoal.engines.base import AwakeTime, EngineConfig
from shoal.engines.process import shipping
from shoal.engines.process.descriptors import FDS_PER_WORKER, FDS_TO_START, fds_for, require_descriptors
from shoal.engines.process.launch import WorkerProcess, require_workers, start_method
from shoal.engines.process.notes import unpack_fault
from shoal.engines.process.stderr import StderrRelay
from shoal.engines.process.wire import Frame, FrameError, Kind, WireError
from shoal.engines.process.worker import Boot, SharedFd
from shoal.engines.starting import common_spec, spared
from shoal.errors import ClosedPool, EnvTimeout, FaultError, ResourceError, Where, WorkerDied
from shoal.faults import Fault
from shoal.machine import usable_cores
from shoal.seeding import entropy
from shoal.spec import EnvSpec
from shoal.streams import keep_streams_taken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.engines.process.control import Control, Plan

_SLICE_S = 0.05
_DYING_S = 5.0
_CROWD = 2  # more workers per core than this deserve a warning
_has_warned = False


def check_alive(worker: WorkerProcess) -> None:
    """Raise ``WireError`` if a worker is gone."""
    if not worker.is_alive():
        raise WireError(0, "the worker process is gone")


class Patience:
    """Called while waiting for a worker: raises if it is gone, or has kept us waiting for too long."""

    def __init__(self, worker: WorkerProcess, limit_s: float | None) -> None:
        self._worker = worker
        self._limit_s = limit_s
        self._waited_s = 0.0
        self._clock = AwakeTime(2 * _SLICE_S)

    def __call__(self) -> None:
        """Check on the worker.

        Raises:
            WireError: If the worker is gone.
            FrameError: If it has been silent for too long.
        """
        check_alive(self._worker)
        self._waited_s += self._clock.lap()
        if self._limit_s is not None and self._waited_s > self._limit_s:
            raise FrameError(0, f"it stopped in the middle of a message for {self._waited_s:.1f} s")


@dataclass
class Construction:
    """How far a worker has come with building its envs."""

    worker: WorkerProcess
    built: set[int] = field(default_factory=set)
    waited_s: float = 0.0

    def lost(self, why: str, evidence: str, kind: type[FaultError]) -> Fault:
        """The fault of a worker that will not finish."""
        left = [i for i in self.worker.env_ids if i not in self.built]
        # Envs are built in order, so the first one missing is the one that did it.
        ids = tuple(left[:1]) or self.worker.env_ids
        fault = Fault(Where(ids, "construct", self.worker.index, self.worker.pid), why, evidence)
        # An env could not be built, because its worker died or hung.
        return replace(fault, cause=replace(fault, error_class=kind).to_error())


class Crew:
    """All workers of a pool. It outlives the engine object just long enough to close them.

    Attributes:
        workers: The worker processes, in order.
        lost: Workers that are gone, with the fault that says why.
        memory_fd: The file behind the shared memory.
    """

    def __init__(self, config: EngineConfig, lanes_of_worker: list[list[tuple[int, range]]]) -> None:
        self.config = config
        require_workers()
        self.method = start_method(config.start_method)
        self.workers: list[WorkerProcess] = []
        self.lost: dict[int, Fault] = {}
        self._faults: list[Fault] = []
        self._shares = lanes_of_worker
        self._generations = [0] * len(lanes_of_worker)
        # A worker that replaces another, while the rest go on, also takes over its CPU, not one of theirs.
        self._seats = list(range(len(lanes_of_worker)))
        # A worker's generators are derived from the pool's seed, so that envs which use them are reproducible too.
        self._entropy = config.seed if config.seed is not None else entropy()
        self._control: Control | None = None
        self._specs: dict[int, EnvSpec] = {}
        # Reentrant, because a signal handler may close the pool in the middle of anything that this thread does.
        self._closing = threading.RLock()
        self._is_closed = self._has_ended = False
        self._owner_pid = os.getpid()
        self._open()

    def _open(self) -> None:
        workers = len(self._shares)
        require_descriptors(fds_for(workers), f"{workers} worker{'s' * (workers != 1)}")
        with contextlib.ExitStack() as undo:
            try:
                keep_streams_taken()
                self.memory_fd = Arena.open_file()
                # A file object closes in one go, and knows whether it is closed.
                self._memory = undo.enter_context(FileIO(self.memory_fd, "r+b"))
                self.relay = StderrRelay()
            except (OSError, RuntimeError) as error:
                raise ResourceError(f"no pool can be started here ({error})") from error
            undo.pop_all()

    def count_in(self, specs: dict[int, EnvSpec], faults: list[Fault]) -> None:
        """Judge envs that were built elsewhere together with those of the workers."""
        self._specs.update(specs)
        self._faults += faults

    def start(self) -> None:
        """Start all workers and wait until each has built its envs, or failed to.

        Raises:
            EnvConstructError: Naming every env that could not be built.
        """
        _warn_of_crowd(len(self._shares) if self.config.num_workers else 1)
        for index in range(len(self._shares)):
            self.workers.append(WorkerProcess(self._boot(index), self.method, self.relay))
        self._faults += self._await_ready()
        spared(self.config, self._faults)

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
            seat=self._seats[index],
        )

    def bury(self, index: int) -> None:
        """Make sure that a worker is dead before another gets its memory.

        Raises:
            ShoalError: If it cannot be killed, or the pool is being closed.
        """
        with self._at_work():
            worker = self.workers[index]
            worker.kill()
            if not worker.join(_DYING_S):
                told = f"worker {worker.index} (pid {worker.pid}) cannot be killed: it hangs in the kernel"
                raise ResourceError(told)
            worker.release()

    def replace(self, index: int, plan: Plan, rounds: int) -> None:
        """Start a worker without envs in the place of one that was buried.

        Raises:
            ShoalError: If there can be no new one now. The place is then free, and it can be tried again.
        """
        with self._at_work():
            require_descriptors(FDS_PER_WORKER + FDS_TO_START, "another worker")
            self._generations[index] += 1
            worker = WorkerProcess(self._boot(index), self.method, self.relay)
            self.workers[index : index + 1] = [worker]
            if self._is_closed:  # by a signal handler, while the worker was started
                self._end([worker])
                raise ClosedPool("the pool is closed")
        try:
            self._attach(worker, plan, rounds)
        except WireError as error:
            told = f"the worker process that was to take its place is gone: {worker.end_after(error)}"
            raise ResourceError(f"{told}\n{worker.last_words()}".rstrip()) from error
        # Only now: until it has been told where to work, it is as good as lost.
        self.lost.pop(index, None)

    def give_lanes(self, index: int, lanes: list[tuple[int, range]], predecessor: int) -> None:
        """Set which lanes the next worker in a place gets, and whose CPU; a place after the last one is created."""
        self._generations += [0] * (index + 1 - len(self._generations))
        self._shares[index : index + 1] = [lanes]
        self._seats[index : index + 1] = [self._seats[predecessor]]

    def retire(self, index: int) -> None:
        """End a worker that has no envs any more; its place is free."""
        worker = self.workers[index]
        where = Where((), "close", index, worker.pid)
        self.lost[index] = Fault(where, "it was replaced", error_class=WorkerDied)
        self.bury(index)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Keep another thread from closing the pool meanwhile."""
        with self._closing:
            if self._is_closed:
                raise ClosedPool("the pool is closed")
            yield

    def _await_ready(self) -> list[Fault]:
        """Wait, on one clock, until every worker has got as far as it was told to, or failed; returns the faults."""
        pending = {worker: Construction(worker) for worker in self._sound_workers()}
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
        """What one worker has to say by now: None if it is still busy, else the faults of its envs."""
        worker, limit = construction.worker, self.config.timeouts.construct
        construction.waited_s += passed_s
        try:
            while frame := worker.channel.receive(0):
                if frame.kind is Kind.READY:
                    return self._take_ready(worker, frame)
                if frame.kind is not Kind.BUILT:
                    raise FrameError(0, f"a {frame.kind.name} frame from a worker that is not ready")
                construction.built.add(frame.env_id)
                construction.waited_s = 0.0
            check_alive(worker)
        except WireError as error:
            return self._lose(construction, f"the worker process is gone: {worker.end_after(error)}", WorkerDied)
        if limit is not None and construction.waited_s > limit:
            return self._lose(construction, f"no answer after {construction.waited_s:.1f} s", EnvTimeout)
        return None

    def _lose(self, construction: Construction, why: str, kind: type[FaultError]) -> list[Fault]:
        """The faults of a worker that will not finish: of the env to blame, and of those that went down with it."""
        worker = construction.worker
        fault = construction.lost(why, worker.stacks() if kind is EnvTimeout else worker.last_words(), kind)
        worker.kill()
        self.lost[worker.index] = fault
        others = tuple(i for i in worker.env_ids if i not in fault.where.env_ids)
        if not others or not self.config.spares_failed_builds:
            return [fault]
        return [fault, replace(fault, where=replace(fault.where, env_ids=others), is_collateral=True)]

    def _take_ready(self, worker: WorkerProcess, frame: Frame) -> list[Fault]:
        """What a worker reports: first about its envs, and later that it has found its memory."""
        try:
            kinds, index, packed, is_lost = shipping.unpickle_value(frame.payload)
            specs = {env_id: kinds[place] for env_id, place in index.items()}
            faults = [unpack_fault(data) for data in packed]
        except (Exception, SystemExit) as error:
            told = f"a READY frame that cannot be read ({type(error).__name__}: {error})"
            raise FrameError(0, told) from error
        told_of = {*specs, *(i for fault in faults for i in fault.where.env_ids)}
        is_attached = self._control is not None
        if told_of != (set() if is_attached and not faults else set(worker.env_ids)) or not all(
            isinstance(spec, EnvSpec) for spec in specs.values()
        ):
            raise FrameError(0, "a READY frame that is not about the envs of its worker")
        self._specs.update(specs)
        if is_lost:
            self.lost[worker.index] = faults[0]
        return faults

    def _sound_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.index not in self.lost]

    def specs(self) -> EnvSpec:
        """The spec that all envs share."""
        worker_of = {i: worker.index for worker in self.workers for i in worker.env_ids}
        return common_spec(self._specs, worker_of.get)

    def attach(self, control: Control, plan: Plan) -> dict[int, Fault]:
        """Tell every worker where things are in the shared memory; returns the envs that the pool starts without.

        Raises:
            EnvConstructError: Naming every env of a worker that could not use that memory.
        """
        self._control = control
        for worker in self._sound_workers():
            try:
                self._attach(worker, plan, 0)
            except WireError as error:
                told = f"the worker process is gone: {worker.end_after(error)}"
                self._faults += self._lose(Construction(worker, set(worker.env_ids)), told, WorkerDied)
        self._faults += self._await_ready()
        return spared(self.config, self._faults)

    def _attach(self, worker: WorkerProcess, plan: Plan, rounds: int) -> None:
        payload = shipping.pickle_value((plan, rounds), "the plan")
        worker.channel.send(Kind.ATTACH, -1, payload, Patience(worker, self.config.timeouts.construct))

    def close(self) -> None:
        """Ask every worker to stop, wait until the close deadline at most, kill what is left, and clean up."""
        # A process forked from ours has a copy of this object, but no say over our workers; and a thread that does not
        # exist there may hold its copy of the lock.
        if os.getpid() != self._owner_pid:
            return
        with self._closing:
            if self._has_ended:
                return
            # An interrupt may come at any line: closing again goes through all of it once more.
            self._is_closed = True
            self._ask_to_stop()
            self._end(self.workers)
            self.relay.close()
            self._control = None
            self._memory.close()
            self._has_ended = True

    def _end(self, workers: list[WorkerProcess]) -> None:
        """Wait for workers to end until the close deadline, kill those that have not, and let go of all."""
        end = monotonic() + self.config.timeouts.close
        for worker in workers:
            if not worker.join(max(0.0, end - monotonic())):
                worker.kill()
                worker.join(_DYING_S)
            worker.release()

    def _ask_to_stop(self) -> None:
        control: Any = self._control
        if control is None:  # workers that were never attached would not see the sign
            for worker in self.workers:
                worker.kill()
            return
        control.stop[0] = 1
        for semaphore in control.go:
            semaphore.post()


def _warn_of_crowd(workers: int) -> None:
    """Warn once, with numbers, that so many workers were asked for that they can only take turns."""
    global _has_warned
    cores = usable_cores()
    if workers > _CROWD * cores and not _has_warned:
        _has_warned = True
        warnings.warn(
            f"{workers} worker processes share {cores} usable core{'s' * (cores != 1)}, so most of them wait for "
            "their turn. That pays only if envs spend their time waiting for something else; if they compute, "
            f"num_workers={cores} is faster",
            UserWarning,
            stacklevel=2,
        )
