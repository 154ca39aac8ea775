"""The pool's side of the process engine."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from multiprocessing.util import Finalize
from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.arrays import Arena, Rows
from shoal.engines.base import AwakeTime, Command, EngineConfig, Extra, Request, row_layout
from shoal.engines.intake import intake_of
from shoal.engines.process.control import Control, Plan
from shoal.engines.process.crew import Crew, Patience, check_alive
from shoal.engines.process.homes import Homes
from shoal.engines.process.letters import NO_LETTER, Letters
from shoal.engines.process.notes import NoteReader
from shoal.engines.process.recycling import Recycler
from shoal.engines.process.rounds import Arrival, Rounds
from shoal.engines.process.watching import LaneWatch, blame
from shoal.engines.process.wire import Kind, WireError
from shoal.engines.starting import closing_on_error
from shoal.errors import ClosedPool, ShoalError
from shoal.faults import Fault, fault_from
from shoal.machine import resident_bytes, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.engines.process.launch import WorkerProcess
    from shoal.spec import EnvSpec

_SLICE_S = 0.05


class ProcessEngine:
    """Runs envs in worker processes: all of them, or the first ``hosted`` ones; the others have rows here, too."""

    name = "process"
    finals_are_columns = False
    has_odd_rows = episodes = None
    take: Callable[[Any], bool] | None = None

    def __init__(self, config: EngineConfig, hosted: int | None = None) -> None:
        self.config = config
        hosted = hosted or config.num_envs
        has_spare = config.recycle_above is not None
        self.homes = Homes(hosted, config.num_workers or usable_cores(), config.threads_per_worker, has_spare=has_spare)
        self.num_workers, lanes = self.homes.num_workers, len(self.homes.lanes)
        self.extras: dict[int, Extra] = {}
        self.faults: dict[int, Fault] = {}
        self._taken = [0] * lanes
        self._stray = 0  # rows that lost workers have published and nobody takes
        self._nothing = [0] * lanes
        self.owed = [0] * lanes
        self.all_ids = list(range(hosted))
        self.collected: list[int] = []
        self._refused: list[int] = []
        self.out: set[int] = set()
        self.gone: dict[int, Fault] = {}  # lost with their worker, until they are rebuilt
        self.building: set[int] = set()
        self.incarnations = [0] * hosted
        self._letters = Letters(self.homes)
        self.check_requests = self._letters.check
        self._has_rounds = not config.one_by_one
        # Envs that were let go, and are to be welcomed in their new homes.
        self.arrivals: list[int] = []

    def start(self, specs: dict[int, EnvSpec] | None = None, faults: Sequence[Fault] = ()) -> None:
        """Start the workers, let them build their envs, and share memory with them.

        ``specs`` and ``faults`` are those of envs that were built elsewhere.
        """
        self.crew = Crew(self.config, [self.homes.shares_of(w) for w in range(self.num_workers)])
        # A pool that is dropped or forgotten still ends its workers; at exit, before multiprocessing waits for them.
        # The finalizer must not hold a reference to the engine itself.
        self._finalizer = Finalize(self, self.crew.close, exitpriority=10)
        self.crew.count_in(specs or {}, list(faults))
        with closing_on_error(self.close):
            self.crew.start()
            self.spec = self.crew.specs()
            layout = row_layout(self.config, self.spec)
            plan = Plan.of(layout, len(self.homes.lanes), self.num_workers + 1, self.homes.capacity)
            arena = Arena.reserve(self.crew.memory_fd, plan.layout.size_bytes)
            self.control = control = Control(plan, arena, create=True)
            self.rows = Rows(plan.rows, control.columns)
            for i, lane in enumerate(self.homes.lane_of):
                control.host[i] = lane
            self.faults.update(self.crew.attach(control, plan))
        self.gone = {i: self.faults[i] for worker in self.crew.lost for i in self.homes.envs_of(worker)}
        self.take = intake_of(self.rows, bounded=self.config.bounded_actions)
        self._notes = NoteReader(self.config, self.spec, control, self.homes)
        self._cores = usable_cores()
        self._rounds = Rounds(control, self._notes, needs_all_cores=len(self.owed) >= self._cores)
        self._clock = AwakeTime(2 * _SLICE_S)
        self._watch = LaneWatch(weakref.proxy(self))
        for worker in self.crew.workers:
            worker.look()
        above = self.config.recycle_above
        self.recycler = None if above is None else Recycler(weakref.proxy(self), above, self.num_workers)

    # ------------------------------------------------------------------ commands

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Mark the commands and wake the lanes concerned."""
        if command is Command.STEP and not requests and len(ids) == len(self.all_ids) and self._moves_as_one:
            self._begin_round(block)
            self._rounds.tell()
            return
        if self.recycler is not None and self.recycler.is_active:
            self.check_requests(requests or {})  # as below, but before any env is let go
            ids, requests = self.recycler.send_off(ids, command, requests or {}, block)
        if requests and self.gone:
            requests = {i: r for i, r in requests.items() if i not in self.gone or r.incarnation is not None}
        # What cannot be sent is found out before anything changes.
        letter = self._letters.post(requests) if requests else NO_LETTER
        self._rounds.note_other()
        control, touched = self.control, set()
        for i in ids:
            lane = self.homes.lane_of[i]
            if requests and i in requests and (incarnation := requests[i].incarnation) is not None:
                self.incarnations[i] = incarnation
                self._make_room(i)
            if i in self.gone:
                self.faults[i] = self.gone[i]
                self._refused.append(i)
                continue
            control.command[i] = command
            control.block[i] = block
            control.letter[i] = letter if requests and i in requests else NO_LETTER
            control.issued[i] += 1
            self.owed[lane] += 1
            self.out.add(i)
            touched.add(lane)
        control.call(touched)
        if letter:
            self.collected = self._refused  # what is lost from here on waits for the next collect
            self._send_letters()

    @property
    def _moves_as_one(self) -> bool:
        """Whether every lane may be told to step all its envs."""
        return self._has_rounds and not self.gone and (self.recycler is None or not self.recycler.is_active)

    def _begin_round(self, block: int) -> None:
        # Counted first: a step that is owed but was never counted would be waited for in vain.
        self._rounds.count(block)
        self.owed[:] = self.homes.sizes

    def _make_room(self, env_id: int) -> None:
        """Make sure that there is a worker to build an env in."""
        index = self.homes.worker_of(env_id)
        try:
            if index in self.crew.lost:
                self.crew.bury(index)
                self.open_place(index)
            self.gone.pop(env_id, None)
            self.building.add(env_id)
        except ClosedPool:
            raise
        except (ShoalError, OSError) as error:
            fault = fault_from(error, env_id=env_id, phase="construct")
            self.gone[env_id] = replace(fault, where=replace(fault.where, worker=index))

    def open_place(self, index: int) -> None:
        """Start a worker without envs in a place that has none."""
        for lane in self.homes.lanes_of(index):
            self.control.clear_lane(lane, self.homes.lane_ids[lane], self._rounds.number)
            self._taken[lane] = self.owed[lane] = 0
            self._watch.forgive(lane)
        self._notes.forget(index)
        self.crew.replace(index, self.control.plan, self._rounds.number)

    def _send_letters(self) -> None:
        """Empty the outbox; letters that an interrupt leaves there are sent by the next call."""
        outbox = self._letters.outbox
        while outbox:
            index, letter = outbox[0]
            if index not in self.crew.lost:
                worker = self.crew.workers[index]
                try:
                    worker.channel.send(Kind.REQUESTS, -1, letter, partial(self._wait_for, worker))
                except WireError as error:
                    self.give_up(worker, error)
            del outbox[0]

    def _wait_for(self, worker: WorkerProcess) -> None:
        """Called while a worker does not take what it is sent: it may be dead, or hung in an env."""
        self._watch.look(self._clock.lap())
        check_alive(worker)

    # ------------------------------------------------------------------ results

    def step_now(self, block: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Step every env; if that yields nothing but rows, the books are kept without looking at single lanes."""
        if not self._has_rounds or self.gone or self.recycler is not None:
            self.submit(self.all_ids, Command.STEP, None, block)
            if meanwhile is not None:
                meanwhile()
            self.collect(len(self.all_ids), None)
            return
        goal = sum(self._taken) + len(self.all_ids)
        self._begin_round(block)
        arrival = self._rounds.exchange(goal, _SLICE_S, meanwhile)
        if arrival == Arrival.ALL or (arrival == Arrival.ALL_WITH_MORE and self._notes.read_slips_into(self.extras)):
            # In one go: after an interrupt in between, somebody would wait for what has already arrived.
            self._taken, self.owed, self.collected = (
                self.control.progress.tolist(),
                self._nothing.copy(),
                [*self.all_ids],
            )
            self._look_now_and_then()
        else:
            self.collect(len(self.all_ids), None)

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Wait for rows; now and then, check that the workers are alive and moving."""
        end = None if timeout_s is None else monotonic() + timeout_s
        self.collected, self._refused = (done := self._refused), []
        if self._letters.outbox:
            self._send_letters()
        self._look_now_and_then()  # even if there is enough to take at once: a dead worker publishes nothing
        while True:
            self.drain()
            if self.arrivals:
                self._welcome()
            if len(done) >= at_least or not any(self.owed):
                break
            left = _SLICE_S if end is None else min(_SLICE_S, end - monotonic())
            if left <= 0:
                break
            goal = sum(self._taken) + self._stray + min(at_least - len(done), sum(self.owed))
            is_crowded = len(self.owed) - self.owed.count(0) >= self._cores
            woken = self._rounds.waiter.wait(goal, left, partial(self._has_landed, len(done)), is_crowded)
            self._look_now_and_then(at_once=not woken)
        return done

    def _look_now_and_then(self, at_once: bool = False) -> None:
        # Also while others keep answering: a dead or hung worker must not hide behind them.
        if at_once or monotonic() - self._clock.last > _SLICE_S:
            self._watch.look(self._clock.lap())

    def _has_landed(self, before: int) -> bool:
        self.drain()
        return len(self.collected) > before

    def drain(self) -> None:
        """Take what lanes have published since the last look."""
        progress, control = self.control.progress, self.control
        self._stray = 0
        for lane, taken in enumerate(self._taken):
            now = progress[lane]
            if now == taken:
                continue
            worker = self.homes.worker_of_lane[lane]
            if worker in self.crew.lost:
                self._stray += now - taken  # it may still be dying, but its envs have been given up
                continue
            ids = self.homes.lane_ids[lane]
            if now - taken != len(ids):
                ring, size, order = lane * self.homes.capacity, self.homes.capacity, control.order
                ids = [order[ring + position % size] for position in range(taken, now)]
            try:
                self._take_notes(worker)
                if not self._notes.forms.is_silent:
                    self.extras.update(self._notes.forms.read(lane, ids))
            except WireError as error:
                self.give_up(self.crew.workers[worker], error)
                continue  # rows without their notes are incomplete, and are lost with the worker
            if self.out:
                self.out.difference_update(ids)
                self.building.difference_update(ids)
            home = ids if self.recycler is None else self.recycler.take_home(ids)
            left, end = self.owed[lane] - (now - taken), len(self.collected)
            self._taken[lane], self.owed[lane], self.collected[end:] = now, left, home  # in one go, as above

    def _take_notes(self, index: int) -> None:
        """Read the messages that a worker has announced.

        Raises:
            WireError: If the worker is dead, stopped in the middle of one, or sent something that makes no sense.
        """
        if not self._notes.has_news_of(index):
            return
        worker = self.crew.workers[index]
        command = self.command_owed_by(worker)
        patience = Patience(worker, self.config.timeouts.of(command, is_building=bool(self.building)))
        commands = {i: self.control.command[i] for i in self.owed_by(worker)}
        for env_id, outcome in self._notes.take(worker, commands, patience):
            if isinstance(outcome, Fault):
                self.faults[env_id] = outcome
            else:
                self.extras[env_id] = outcome

    # ------------------------------------------------------------------ faults

    def give_up(self, worker: WorkerProcess, error: WireError | None = None) -> None:
        """Lose a worker that is dead, or cannot be talked to."""
        self.lose(worker, worker.end_after(error), worker.last_words())

    def lose(self, worker: WorkerProcess, why: str, last_words: str, hung: Fault | None = None) -> None:
        """Turn every command that a lost worker owes into a fault: a hung env's own, the worker's for the rest."""
        if worker.index in self.crew.lost:
            return  # already noticed in another way
        owed = self.owed_by(worker) + [i for i in self.arrivals if self.homes.worker_of(i) == worker.index]
        lost, own = blame(self, worker, why, last_words, hung)
        self.gone |= own
        for i in owed:
            self.faults[i] = self.gone[i]
            self.collected.append(i)
        self.arrivals = [i for i in self.arrivals if i not in owed]
        self.out.difference_update(owed)
        self.building.difference_update(owed)
        for lane in self.homes.lanes_of(worker.index):
            self.owed[lane] = 0
        # Nearly last, so that what an interrupt leaves half done is done again.
        self.crew.lost[worker.index] = lost
        if self.recycler is not None:
            self.recycler.note_loss(worker.index)

    def command_owed_by(self, worker: WorkerProcess) -> Command:
        """The command that this worker was given last."""
        owed = self.owed_by(worker)
        return Command(self.control.command[owed[0]]) if owed else Command.STEP

    def owed_by(self, worker: WorkerProcess) -> list[int]:
        """Envs of this worker whose results have not been taken."""
        return [
            i
            for lane in self.homes.lanes_of(worker.index)
            for i in self.homes.lane_ids[lane]
            if self.owed[lane] == self.homes.sizes[lane] or (self.owed[lane] and i in self.out)
        ]

    def nudge(self, lane: int) -> None:
        """Tell an idle lane again what it owes: an interrupt may have come between marking its work and waking it."""
        if self.control.running[lane] < 0:
            self._rounds.remind(lane)

    # ------------------------------------------------------------------ homes

    def _welcome(self) -> None:
        """Send envs that were let go to their new homes; what is refused meanwhile counts as finished."""
        done = self.collected
        try:
            while self.arrivals and self.recycler is not None:
                self.recycler.arrive(self.arrivals.pop(0))
        finally:
            done += self._refused
            self.collected, self._refused = done, []

    # ------------------------------------------------------------------ end

    @property
    def ends(self) -> int:
        """How many rows that end an episode have been published."""
        return sum(self.control.ends)

    @property
    def recycled(self) -> int:
        """How many workers were replaced because they held too much memory."""
        return 0 if self.recycler is None else self.recycler.count

    def describe(self) -> str:
        """``2 processes, forkserver``."""
        return f"{self.num_workers} process{'es' * (self.num_workers != 1)}, {self.crew.method}"

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Memory that each worker holds now; 0 for one that is gone."""
        return tuple(resident_bytes(pid) or 0 for pid in self.pids)

    def close(self) -> None:
        """End all workers: ask, wait, kill. The shared memory goes with the last view of it."""
        self.crew.close()
        self._finalizer.cancel()  # not before: if an interrupt cuts this short, the workers are ended at exit

    def release(self) -> None:
        """Let go of the shared memory, which goes with the last view of it."""
        for name in ("rows", "control", "take", "_rounds", "_notes"):
            self.__dict__.pop(name, None)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that have envs."""
        return [
            worker.pid
            for worker in self.crew.workers
            if worker.index not in self.crew.lost or self.homes.envs_of(worker.index)
        ]
