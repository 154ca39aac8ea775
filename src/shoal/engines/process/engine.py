"""The pool's side of the process engine."""

from __future__ import annotations

import os
from dataclasses import replace
from multiprocessing.util import Finalize
from time import monotonic
from typing import TYPE_CHECKING

from shoal.arrays import Arena, Rows
from shoal.engines.base import PHASES, AwakeTime, Command, EngineConfig, Extra, Request, row_layout, shares
from shoal.engines.lane import closing_on_error
from shoal.engines.process import codec, shipping
from shoal.engines.process.control import Control, Plan
from shoal.engines.process.crew import Crew
from shoal.engines.process.wake import Waiter
from shoal.engines.process.wire import Frame, Kind, WireError
from shoal.errors import EnvTimeout, ShoalError, Where, WorkerDied
from shoal.faults import Fault, fault_from
from shoal.machine import resident_bytes, usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.engines.process.launch import WorkerProcess

_SLICE_S = 0.05
_LOOK_EVERY_S = 1.0  # at the memory of workers


class ProcessEngine:
    """Runs envs in worker processes."""

    name = "process"
    finals_are_columns = False
    step_now = None
    take = None
    episodes = None

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
        # The block of the last command if that was a round; None after any other.
        self._round_block: int | None = None
        self._all_ids = list(range(config.num_envs))
        self._lane_ids = [list(ids) for ids in self.lanes]
        self.collected: list[int] = []
        self._refused: list[int] = []
        self._out: set[int] = set()
        # Envs that fell with their worker, and why; they come back when they are built anew.
        self._gone: dict[int, Fault] = {}
        self._building: set[int] = set()
        self._since_look_s = 0.0

    def start(self) -> None:
        """Start the workers, let them build their envs, and share memory with them."""
        self._crew = Crew(self.config, self.lanes, self._worker_of_lane)
        # A pool that is dropped or forgotten still ends its workers, at exit before multiprocessing waits for them.
        # The finalizer must not hold the engine itself.
        self._finalizer = Finalize(self, self._crew.close, exitpriority=10)
        with closing_on_error(self.close):
            self.faults.update(self._crew.start())
            self._gone = {i: fault for i, fault in self.faults.items() if self._worker_index(i) in self._crew.lost}
            self.spec = self._crew.specs()
            plan = Plan.of(row_layout(self.config, self.spec), self.lanes, self.num_workers)
            arena = Arena.reserve(self._crew.memory_fd, plan.layout.size_bytes)
            self._control = control = Control(plan, arena, create=True)
            self.rows = Rows(plan.rows, control.columns)
            self._crew.attach(control, plan)
        self._waiter = Waiter(control.done)
        self._clock = AwakeTime(2 * _SLICE_S)
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
            and not self._gone
            and not self.config.one_by_one
        ):
            self._submit_round(block)
            return
        if requests and self._gone:
            requests = {i: r for i, r in requests.items() if i not in self._gone or r.incarnation is not None}
        payloads = self._pack(requests) if requests else {}  # what cannot be sent is found before anything moves
        self._round_block = None
        control, touched = self._control, set()
        for i in ids:
            lane = self._lane_of[i]
            if requests and i in requests and requests[i].incarnation is not None:
                self._make_room(i)
            if i in self._gone:
                self.faults[i] = self._gone[i]
                self._refused.append(i)
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
        if self._round_block != block:
            control.command_N[:] = Command.STEP
            control.block_N[:] = block
            self._round_block = block
        self._rounds += 1
        self._owed[:] = self._sizes
        rounds = control.rounds
        for lane, post in enumerate(self._go):
            rounds[lane] = self._rounds
            post()

    def _make_room(self, env_id: int) -> None:
        """See that there is a worker to build an env in."""
        index = self._worker_index(env_id)
        try:
            if index in self._crew.lost:
                self._crew.bury(index)
                for lane, worker in enumerate(self._worker_of_lane):
                    if worker == index:
                        self._control.clear_lane(lane, self._rounds)
                        self._taken[lane] = self._owed[lane] = 0
                self._control.notes[index] = self._notes_taken[index] = 0
                self._crew.replace(index, self._control.plan, self._rounds)
            self._gone.pop(env_id, None)
            self._building.add(env_id)
        except (ShoalError, OSError) as error:
            self._gone[env_id] = fault_from(error, env_id=env_id, phase="construct", worker=index)

    def _worker_index(self, env_id: int) -> int:
        return self._worker_of_lane[self._lane_of[env_id]]

    def _pack(self, requests: dict[int, Request]) -> dict[int, bytes]:
        """Requests as one message per worker."""
        by_worker: dict[int, dict[int, Request]] = {}
        for i, request in requests.items():
            by_worker.setdefault(self._worker_index(i), {})[i] = request
        return {index: shipping.pickle_value(part, "the request") for index, part in by_worker.items()}

    def _send(self, payloads: dict[int, bytes]) -> None:
        for index, payload in payloads.items():
            if index in self._crew.lost:
                continue
            worker = self._crew.workers[index]
            try:
                worker.channel.send(Kind.REQUESTS, -1, payload, lambda w=worker: self._crew.check(w))  # type: ignore[misc]
            except WireError:
                self.collected = self._refused  # what is lost before anybody collects waits for who does
                self._lose(worker, worker.how_it_ended(), worker.last_words())

    # ------------------------------------------------------------------ results

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Wait for rows; now and then see that the workers live and move."""
        end = None if timeout_s is None else monotonic() + timeout_s
        self.collected = done = self._refused
        self._refused = []
        # A worker that shares our core can start at once instead of after our next few instructions.
        os.sched_yield()
        while True:
            self._drain()
            if len(done) >= at_least or not any(self._owed):
                break
            left = _SLICE_S if end is None else min(_SLICE_S, end - monotonic())
            if left <= 0:
                break
            woken = self._waiter.wait(left)
            # Also while others keep answering: a dead or hung worker must not hide behind them.
            if not woken or monotonic() - self._clock.last > _SLICE_S:
                self._watch(self._clock.lap())
        return done

    def _drain(self) -> None:
        """Take what lanes have published since the last look."""
        progress, control = self._control.progress, self._control
        for lane, taken in enumerate(self._taken):
            now = progress[lane]
            if now == taken:
                continue
            worker = self._worker_of_lane[lane]
            if worker in self._crew.lost:
                continue  # it may still be dying, and its envs have been given up
            if control.notes[worker] != self._notes_taken[worker] and not self._take_notes(worker):
                continue  # rows without their messages are not whole: the worker is lost, and they with it
            ids = self._lane_ids[lane]
            if now - taken != len(ids):
                first, size, order = ids[0], len(ids), control.order
                ids = [order[first + position % size] for position in range(taken, now)]
            self.collected += ids
            if self._out:
                self._out.difference_update(ids)
                self._building.difference_update(ids)
            self._taken[lane] = now
            self._owed[lane] -= now - taken

    def _take_notes(self, index: int) -> bool:
        """Read the messages that a worker has announced; False if it is lost instead.

        It is sending them now, or dead, or stopped in the middle.
        """
        worker = self._crew.workers[index]
        waited, clock = 0.0, AwakeTime(2 * _SLICE_S)
        while self._notes_taken[index] < self._control.notes[index]:
            try:
                frame = worker.channel.receive(_SLICE_S)
                if frame is None:
                    self._crew.check(worker)
                    waited += clock.lap()
                    limit = self.config.timeouts.of(self._command_owed_by(worker), is_building=bool(self._building))
                    if limit is not None and waited > limit:
                        raise WireError(0, f"it stopped in the middle of a message for {waited:.1f} s")
                    continue
                self._notes_taken[index] += 1
                self._read_note(frame)
            except (WireError, codec.CodecError) as error:
                worker.kill()
                self._lose(worker, f"{worker.how_it_ended()} ({error.args[-1]})", worker.last_words())
                return False
        return True

    def _read_note(self, frame: Frame) -> None:
        if frame.kind is Kind.EXTRAS:
            self.extras.update(codec.decode_extras(frame.payload, allow_pickle=self.config.allow_pickle))
        elif frame.kind is Kind.VALUE and self._control.command[frame.env_id] == Command.CALL:
            self._take_answer(frame)
        elif frame.kind is Kind.FAULT:
            self.faults[frame.env_id] = Crew.unpack_fault(shipping.unpickle_value(frame.payload))
        else:
            raise WireError(0, f"a {frame.kind.name} frame where none belongs")

    def _take_answer(self, frame: Frame) -> None:
        try:
            self.extras[frame.env_id] = Extra(value=shipping.unpickle_value(frame.payload), is_answer=True)
        except Exception as error:
            worker = self._worker_index(frame.env_id)
            self.faults[frame.env_id] = replace(
                fault_from(error, env_id=frame.env_id, phase="call", worker=worker),
                summary=f"its answer cannot be loaded here ({type(error).__name__}: {error})",
            )

    # ------------------------------------------------------------------ faults

    def _watch(self, passed_s: float) -> None:
        """Look for workers that died and lanes that do not move."""
        self._since_look_s += passed_s
        looks = self._since_look_s > _LOOK_EVERY_S
        for worker in self._crew.workers:
            if worker.index in self._crew.lost:
                continue
            if not worker.is_alive():
                self._drain()
                self._lose(worker, worker.how_it_ended(), worker.last_words())
            elif looks:
                worker.look()
        if looks:
            self._since_look_s = 0.0
        for lane, owed in enumerate(self._owed):
            if not owed or self._worker_of_lane[lane] in self._crew.lost:
                self._waited_s[lane] = 0.0
                continue
            seen = (self._control.progress[lane], self._control.running[lane])
            if seen != self._seen[lane]:
                self._seen[lane], self._waited_s[lane] = seen, 0.0
            self._waited_s[lane] += passed_s
            self._nudge(lane)
            self._judge(lane)

    def _nudge(self, lane: int) -> None:
        """Tell an idle lane again what it owes: an interrupt may have come between marking its work and waking it."""
        if self._control.running[lane] < 0:
            if self._round_block is not None:
                self._control.rounds[lane] = self._rounds
            self._go[lane]()

    def _judge(self, lane: int) -> None:
        """Give a lane up if its env has been at one command for too long."""
        env_id = self._control.running[lane]
        if env_id < 0 or env_id not in self.lanes[lane]:
            env_id = self.lanes[lane].start
        command = Command(self._control.command[env_id])
        limit = self.config.timeouts.of(command, is_building=env_id in self._building)
        if limit is None or self._waited_s[lane] <= limit:
            return
        worker = self._crew.workers[self._worker_of_lane[lane]]
        stacks = worker.stacks()
        worker.kill()
        why = f"no answer after {self._waited_s[lane]:.1f} s"
        phase = "construct" if env_id in self._building else PHASES[command]
        own = Fault(Where((env_id,), phase, worker.index, worker.pid), why, stacks, error_class=EnvTimeout)
        self._lose(worker, f"it hung in env {env_id}: {why}", "", own)

    def _lose(self, worker: WorkerProcess, why: str, last_words: str, hung: Fault | None = None) -> None:
        """Turn every command that a lost worker owes into a fault: a hung env's own, the worker's for the rest."""
        if worker.index in self._crew.lost:
            return  # found out by another way a moment ago
        owed = self._owed_by(worker)
        lanes = [lane for lane, index in enumerate(self._worker_of_lane) if index == worker.index]
        at_work = [i for lane in lanes if (i := self._control.running[lane]) in self.lanes[lane]]
        culprits = at_work if hung is None else list(hung.where.env_ids)
        where = Where(worker.env_ids, PHASES[self._command_owed_by(worker)], worker.index, worker.pid)
        told = f" (env {at_work[0]} was at work)" if len(at_work) == 1 and hung is None else ""
        lost = Fault(where, f"the worker process is gone: {why}{told}", last_words, error_class=WorkerDied)
        self._crew.lost[worker.index] = lost
        for i in worker.env_ids:
            # Whoever was at work is to blame; if that cannot be told, everyone is.
            is_collateral = len(culprits) == 1 and i not in culprits
            self._gone[i] = hung if hung and i in culprits else replace(lost, is_collateral=is_collateral)
        for i in owed:
            self.faults[i] = self._gone[i]
            self.collected.append(i)
        self._out.difference_update(owed)
        self._building.difference_update(owed)
        for lane in lanes:
            self._owed[lane] = 0

    def _command_owed_by(self, worker: WorkerProcess) -> Command:
        owed = self._owed_by(worker)
        return Command(self._control.command[owed[0]]) if owed else Command.STEP

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

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Memory that each worker holds now; 0 for one that is gone."""
        return tuple(resident_bytes(pid) or 0 for pid in self.pids)

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
        return [worker.pid for worker in self._crew.workers]
