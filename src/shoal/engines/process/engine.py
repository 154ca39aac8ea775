"""The pool's side of the process engine."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from shoal.arrays import Arena, Rows
from shoal.engines.base import AwakeTime, Command, EngineConfig, Extra, Request, row_layout, shares
from shoal.engines.lane import closing_on_error
from shoal.engines.process import codec, shipping
from shoal.engines.process.control import Control, Plan
from shoal.engines.process.crew import Crew
from shoal.engines.process.wake import Waiter
from shoal.engines.process.wire import Frame, Kind, WireError
from shoal.errors import EnvTimeout, Where, WorkerDied
from shoal.faults import Fault
from shoal.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.engines.process.launch import WorkerProcess

_SLICE_S = 0.05


class ProcessEngine:
    """Runs envs in worker processes."""

    name = "process"

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        count = min(config.num_workers or usable_cores(), config.num_envs)
        lanes = min(count * config.threads_per_worker, config.num_envs)
        self.num_workers = min(count, lanes)
        self.lanes = tuple(shares(config.num_envs, lanes))
        self.extras: dict[int, Extra] = {}
        self.faults: dict[int, Fault] = {}
        self._worker_of_lane = [w for w, mine in enumerate(shares(lanes, self.num_workers)) for _ in mine]
        self._lane_of = [lane for lane, ids in enumerate(self.lanes) for _ in ids]
        self._taken = [0] * lanes
        self._owed = [0] * lanes
        self._notes_taken = [0] * self.num_workers
        self._waited_s = [0.0] * lanes
        self._seen = [(0, -1)] * lanes
        self._sizes = [len(ids) for ids in self.lanes]
        self._rounds = 0
        self._last_round_block = -1
        self._dirty = True
        self._all_ids = list(range(config.num_envs))
        self._lane_ids = [list(ids) for ids in self.lanes]
        self._done: list[int] = []
        self._out: set[int] = set()

    def start(self) -> None:
        """Start the workers, let them build their envs, and share memory with them."""
        self._crew = Crew(self.config, self.lanes, self._worker_of_lane)
        # A pool that is dropped or forgotten still ends its workers; the finalizer must not hold the engine itself.
        self._finalizer = weakref.finalize(self, self._crew.close)
        with closing_on_error(self.close):
            self._crew.start()
            self.spec = self._crew.specs()
            plan = Plan.of(row_layout(self.config, self.spec), self.lanes, self.num_workers)
            arena = Arena.reserve(self._crew.memory_fd, plan.layout.size_bytes)
            self._control = control = Control(plan, arena, create=True)
            self.rows = Rows(plan.rows, control.columns)
            self._crew.attach(control, plan)
        self._waiter = Waiter(control.done)
        self._go = [semaphore.post for semaphore in control.go]

    # ------------------------------------------------------------------ commands

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Mark the commands and wake the lanes concerned."""
        if (
            len(ids) == len(self._all_ids)
            and command is Command.STEP
            and not requests
            and self._crew.is_whole
            and not self.config.one_by_one
        ):
            self._submit_round(block)
            return
        payloads = self._pack(requests) if requests else {}  # what cannot be sent is found before anything moves
        self._dirty = True
        control, touched = self._control, set()
        for i in ids:
            lane = self._lane_of[i]
            lost = self._crew.lost.get(self._worker_of_lane[lane])
            if lost is not None:
                self.faults[i] = replace(lost, where=replace(lost.where, env_ids=(i,)))
                self._done.append(i)
                continue
            control.command[i] = command
            control.block[i] = block
            control.flagged[i] = bool(requests and i in requests)
            control.issued[i] += 1
            self._owed[lane] += 1
            self._out.add(i)
            touched.add(lane)
        for lane in touched:
            self._go[lane]()
        self._send(payloads)

    def _submit_round(self, block: int) -> None:
        """A step of every env: one word per lane instead of several per env."""
        control = self._control
        if self._last_round_block != block or self._dirty:
            control.command_N[:] = Command.STEP
            control.block_N[:] = block
            self._last_round_block, self._dirty = block, False
        self._rounds += 1
        self._owed[:] = self._sizes
        rounds = control.rounds
        for lane, post in enumerate(self._go):
            rounds[lane] = self._rounds
            post()

    def _pack(self, requests: dict[int, Request]) -> dict[int, bytes]:
        """Requests as one message per worker."""
        by_worker: dict[int, dict[int, Request]] = {}
        for i, request in requests.items():
            by_worker.setdefault(self._worker_of_lane[self._lane_of[i]], {})[i] = request
        return {index: shipping.pickle_value(part, "the request") for index, part in by_worker.items()}

    def _send(self, payloads: dict[int, bytes]) -> None:
        for index, payload in payloads.items():
            if index in self._crew.lost:
                continue
            worker = self._crew.workers[index]
            try:
                worker.channel.send(Kind.REQUESTS, -1, payload, lambda w=worker: self._crew.check(w))  # type: ignore[misc]
            except WireError:
                self._lose(worker, worker.how_it_ended())

    # ------------------------------------------------------------------ results

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Wait for rows; between two looks see that the workers live and move."""
        end = None if timeout_s is None else monotonic() + timeout_s
        clock = None
        done = self._done
        while True:
            self._drain()
            if len(done) >= at_least:
                break
            left = _SLICE_S if end is None else min(_SLICE_S, end - monotonic())
            if left <= 0:
                break
            if self._waiter.wait(left):
                continue
            clock = clock or AwakeTime(2 * _SLICE_S)
            self._watch(clock.lap())
        self._done = []
        return done

    def _drain(self) -> None:
        """Take what lanes have published since the last look."""
        progress, done = self._control.progress, self._done
        for lane, taken in enumerate(self._taken):
            now = progress[lane]
            if now == taken:
                continue
            self._taken[lane] = now
            self._owed[lane] -= now - taken
            ids = self._lane_ids[lane]
            if now - taken == len(ids):
                done += ids
            else:
                first, size, order = ids[0], len(ids), self._control.order
                done += [order[first + position % size] for position in range(taken, now)]
            if self._out:
                self._out.difference_update(done)
            worker = self._worker_of_lane[lane]
            if self._control.notes[worker] != self._notes_taken[worker]:
                self._take_notes(worker)

    def _take_notes(self, index: int) -> None:
        """Read the messages that a worker has announced. It is sending them now, or dead."""
        worker = self._crew.workers[index]
        while self._notes_taken[index] < self._control.notes[index]:
            try:
                frame = worker.channel.receive(_SLICE_S)
                if frame is None:
                    self._crew.check(worker)
                    continue
                self._notes_taken[index] += 1
                self._read_note(frame)
            except (WireError, codec.CodecError) as error:
                worker.kill()
                self._lose(worker, f"{worker.how_it_ended()} ({error})")
                return

    def _read_note(self, frame: Frame) -> None:
        if frame.kind is Kind.EXTRAS:
            self.extras.update(codec.decode_extras(frame.payload, allow_pickle=self.config.allow_pickle))
        elif frame.kind is Kind.VALUE and self._control.command[frame.env_id] == Command.CALL:
            self.extras[frame.env_id] = Extra(value=shipping.unpickle_value(frame.payload), is_answer=True)
        elif frame.kind is Kind.FAULT:
            self.faults[frame.env_id] = Crew.unpack_fault(shipping.unpickle_value(frame.payload))
        else:
            raise WireError(0, f"a {frame.kind.name} frame where none belongs")

    # ------------------------------------------------------------------ faults

    def _watch(self, passed_s: float) -> None:
        """Look for workers that died and lanes that do not move."""
        for worker in self._crew.workers:
            if worker.index not in self._crew.lost and not worker.is_alive():
                self._drain()
                self._lose(worker, worker.how_it_ended())
        for lane, owed in enumerate(self._owed):
            if not owed or self._worker_of_lane[lane] in self._crew.lost:
                self._waited_s[lane] = 0.0
                continue
            seen = (self._control.progress[lane], self._control.running[lane])
            if seen != self._seen[lane]:
                self._seen[lane], self._waited_s[lane] = seen, 0.0
            self._waited_s[lane] += passed_s
            self._judge(lane)

    def _judge(self, lane: int) -> None:
        """Give a lane up if its env has been at one command for too long."""
        env_id = self._control.running[lane]
        if env_id < 0 or env_id not in self.lanes[lane]:
            env_id = self.lanes[lane].start
        command = Command(self._control.command[env_id])
        limit = self.config.timeouts.of(command)
        if limit is None or self._waited_s[lane] <= limit:
            return
        worker = self._crew.workers[self._worker_of_lane[lane]]
        stacks = worker.stacks()
        worker.kill()
        self._lose(worker, f"no answer after {self._waited_s[lane]:.1f} s", stacks, hung=(env_id, command))

    def _lose(self, worker: WorkerProcess, why: str, stacks: str = "", hung: tuple[int, Command] | None = None) -> None:
        """Turn every command that a lost worker owes into a fault."""
        culprit = None if hung is None else hung[0]
        text = f"{why}; it hung in env {culprit}" if hung else f"the worker process is gone: {why}"
        phase = "step" if hung is None or hung[1] is Command.STEP else "reset"
        where = Where(worker.env_ids, phase, worker.index, worker.pid)
        lost = Fault(where, text, stacks, error_class=EnvTimeout if hung else WorkerDied)
        self._crew.lost[worker.index] = lost
        for i in self._owed_by(worker):
            kind = lost.error_class if culprit in (None, i) else WorkerDied
            self.faults[i] = replace(lost, where=replace(where, env_ids=(i,)), error_class=kind)
            self._done.append(i)
        for lane, index in enumerate(self._worker_of_lane):
            if index == worker.index:
                self._owed[lane] = 0

    def _owed_by(self, worker: WorkerProcess) -> list[int]:
        """Envs of this worker whose results have not been taken."""
        return [
            i
            for lane, index in enumerate(self._worker_of_lane)
            if index == worker.index
            for i in self.lanes[lane]
            if self._owed[lane] == self._sizes[lane] or (self._owed[lane] and i in self._out)
        ]

    # ------------------------------------------------------------------ end

    def describe(self) -> str:
        """``2 processes, forkserver``."""
        return f"{self.num_workers} process{'es' * (self.num_workers != 1)}, {self._crew.method}"

    def close(self) -> None:
        """End all workers: ask, wait, kill. The shared memory goes with the last view of it."""
        self._finalizer()

    def release(self) -> None:
        """Let go of the shared memory; it goes with the last view of it."""
        for name in ("rows", "_control", "_waiter", "_go"):
            self.__dict__.pop(name, None)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [os.getpid()] if not hasattr(self, "_crew") else [w.pid for w in self._crew.workers]
