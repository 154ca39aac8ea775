"""The thread engine: lanes in threads of this process, for envs that wait or release the GIL.

    submit ──▶ inbox of each lane ──▶ thread runs the env ──▶ one queue of results ──▶ collect

An env is built, run and closed in one and the same thread. By default each env has its own, so a slow one never
holds up a ready one. A thread cannot be killed: a hung env is given up, its stack is put into the fault, and its
thread is left to die with the process. Envs that are rebuilt after that get a new thread, and whatever the old
one still writes goes where nobody looks.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import traceback
import weakref
from collections import deque
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.arrays import Rows, RowWriter
from shoal.engines.base import PHASES, AwakeTime, Command, EngineConfig, Extra, Request, row_layout, shares
from shoal.engines.intake import intake_of
from shoal.engines.lane import Lane
from shoal.engines.starting import closing_on_error, common_spec, spared
from shoal.errors import ClosedPool, EnvTimeout, Where
from shoal.faults import Fault
from shoal.machine import pin_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.seeding import GeneratorState
    from shoal.slot import Row, Slot

_SLICE_S = 0.1
_log = logging.getLogger("shoal")
_Work = tuple[int, int, Command, Request | None, int]
_Result = tuple["ThreadLane", int, int, "Extra | Fault | None"]
_BUILT = -1


_open: weakref.WeakSet[ThreadEngine] = weakref.WeakSet()


class Results:
    """What threads have finished, for one reader that may be interrupted at any point.

    The items and the bell that announces them are separate: an interrupt may swallow a ring, never an item. The bell
    rings when there are as many items as the reader waits for: waking it for each would cost every thread the GIL.
    """

    def __init__(self) -> None:
        self.items: deque[_Result] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._wanted = 1

    def put(self, result: _Result) -> None:
        """Add a result, and ring if it is the last one the reader waits for."""
        self.items.append(result)
        if len(self.items) >= self._wanted:
            self._bell.put(None)

    def wait(self, timeout_s: float, wanted: int = 1) -> bool:
        """Sleep until there are ``wanted`` items; False if there were not in time."""
        self._wanted = wanted
        while not self._bell.empty():  # rings for items that have been taken since
            self._bell.get()
        if len(self.items) >= wanted:
            return True
        try:
            self._bell.get(timeout=timeout_s)
            return True
        except Empty:
            return False


class RevocableLane(Lane):
    """A lane that can be cut off from its rows while its thread is inside an env.

    Attributes:
        is_writing: Whether the thread is writing a row, so that it is too late to cut it off.
        is_building: Whether the thread is building an env anew, before it carries out the command.
    """

    lends_rows = False  # an env that hangs could still write to the row when it is its successor's
    is_writing = False
    is_building = False

    def _rebuild(self, env_id: int, incarnation: int, generator: GeneratorState | None) -> None:
        self.is_building = True
        try:
            super()._rebuild(env_id, incarnation, generator)
        finally:
            self.is_building = False

    def _write(self, env_id: int, slot: Slot, row: Row, writer: RowWriter) -> Extra | None:
        # The flag is raised before the writer is chosen, and checked after the writers were swapped, so one of the two
        # sides sees the other. A writer that was chosen before this call is chosen again.
        self.is_writing = True
        try:
            return super()._write(env_id, slot, row, writer if writer in self._writers else self._writers[0])
        finally:
            self.is_writing = False


class ThreadLane:
    """A lane with its thread and inbox.

    Attributes:
        hung: The fault for which the lane was given up, until it answers after all.
        running: The env and the command that the thread is busy with; a new tuple for each command.
        watched: The ``running`` that has been waited for, for ``waited_s`` so far, and whether the env was being built.
    """

    def __init__(self, lane: RevocableLane, results: Results) -> None:
        self.lane = lane
        self.hung: Fault | None = None
        self.inbox: SimpleQueue[_Work | None] = SimpleQueue()
        self.running: tuple[int, Command] | None = None
        self.watched: tuple[tuple[int, Command] | None, bool] = (None, False)
        self.waited_s = 0.0
        self.is_built = False
        self.build_faults: list[Fault] = []
        self.results = results
        self.thread = threading.Thread(target=self._serve, name=f"shoal-lane-{lane.env_ids[0]}", daemon=True)

    def _serve(self) -> None:
        pin_thread(self.lane.config.affinity, self.lane.worker or 0)
        if not self.is_built:
            self.build_faults = self.lane.build()
            self.is_built = True
            self.results.put((self, _BUILT, 0, None))
        while (work := self.inbox.get()) is not None:
            env_id, sequence, command, request, block = work
            self.running = (env_id, command)
            outcome = self.lane.run(env_id, command, request, block)
            self.running = None
            self.results.put((self, env_id, sequence, outcome))
        self.lane.close()

    def stack(self) -> str:
        """Where the thread is right now."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""


class ThreadEngine:
    """Runs envs in threads of the caller's process."""

    name = "thread"
    recycled = 0
    finals_are_columns = False
    take: Callable[[Any], bool] | None = None
    has_odd_rows = check_requests = None
    episodes = ends = None

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.num_workers = min(config.num_workers or config.num_envs, config.num_envs)
        self.extras: dict[int, Extra] = {}
        self.faults: dict[int, Fault] = {}
        self._results = Results()
        self._lanes = [
            ThreadLane(RevocableLane(config, ids, worker), self._results)
            for worker, ids in enumerate(shares(config.num_envs, self.num_workers))
        ]
        self._lane_of = {i: lane for lane in self._lanes for i in lane.lane.env_ids}
        self._inboxes = [lane.inbox for lane in self._lanes]
        self._given_up: list[ThreadLane] = []
        # Envs whose thread was given up and replaced, and why; they come back when they are rebuilt.
        self.gone: dict[int, Fault] = {}
        self._refused: list[int] = []
        self.all_ids = list(range(config.num_envs))
        self._sequence = [0] * config.num_envs
        self._waiting: set[int] = set()
        self.collected: list[int] = []
        self._clock = AwakeTime(2 * _SLICE_S)
        self._is_closed = False

    def start(self) -> None:
        """Build all envs, each in its own thread."""
        # A pool that is dropped without being closed still lets its threads go: they hold no reference to the engine.
        weakref.finalize(self, _dismiss, self._inboxes).atexit = False
        _open.add(self)
        with closing_on_error(self.close):
            for lane in self._lanes:
                lane.thread.start()
            self._await_built()
            faults = [fault for lane in self._lanes for fault in lane.build_faults]
            self.faults.update(spared(self.config, faults))
            # Copied in one go: a thread that was given up may still be adding to its dict.
            specs = {i: spec for lane in self._lanes for i, spec in lane.lane.specs.copy().items()}
            self.spec = common_spec(specs, lambda env_id: self._lane_of[env_id].lane.worker)
            layout = row_layout(self.config, self.spec)
            self.rows = Rows(layout, layout.private())
            for lane in self._lanes:
                lane.lane.attach(self.rows)
            self.take = intake_of(self.rows, bounded=self.config.bounded_actions)

    def _await_built(self) -> None:
        clock, waited = AwakeTime(2 * _SLICE_S), 0.0
        limit = self.config.timeouts.construct
        while True:
            told = len(self._results.items)  # counted before the check: a lane built after it will raise this count
            missing = [lane for lane in self._lanes if not lane.is_built]
            if not missing:
                break
            if not self._results.wait(_SLICE_S, told + 1):
                waited += clock.lap()
            if limit is not None and waited > limit:
                for lane in missing:
                    lane.hung = _hung(lane, "construct", waited)
                    lane.build_faults = [lane.hung]
                return
        self._results.items.clear()

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Put each command into the inbox of its env's thread.

        Raises:
            ClosedPool: If the threads have been let go, so that nobody would ever read the inbox.
        """
        if self._is_closed:
            raise ClosedPool("the pool is closed")
        for i in ids:
            request = requests.get(i) if requests else None
            if request is not None and request.incarnation is not None:
                self._make_room(i)
            if i in self.gone:
                self.faults[i] = self.gone[i]
                self._refused.append(i)
                continue
            self._sequence[i] += 1
            # In this order: an interrupt in between loses the answer. The other way round, the caller would wait for it
            # forever.
            self._lane_of[i].inbox.put((i, self._sequence[i], command, request, block))
            self._waiting.add(i)

    def _make_room(self, env_id: int) -> None:
        """Make sure that there is a thread to build an env in; if there cannot be one, the env is gone."""
        lane = self._lane_of[env_id]
        if lane.hung is not None:
            lane.lane.detach()
            if lane.lane.is_writing:
                # The old thread could finish a row that would be its successor's by then, so there is none. If the
                # thread does come back, it is as good as new.
                lane.lane.attach(self.rows)
                self.gone[env_id] = lane.hung
                return
            _dismiss([lane.inbox])
            self._given_up.append(lane)
            ids = lane.lane.env_ids
            new = ThreadLane(RevocableLane(self.config, ids, lane.lane.worker), self._results)
            new.lane.attach(self.rows)
            new.is_built = True
            self._inboxes.append(new.inbox)
            self._lanes[self._lanes.index(lane)] = new
            self._lane_of.update(dict.fromkeys(ids, new))
            self.gone.update(dict.fromkeys(ids, replace(lane.hung, is_collateral=True)))
            for i in [i for i in ids if i in self._waiting]:  # nobody will do what is left in the old inbox
                self._waiting.discard(i)
                self.faults[i] = self.gone[i]
                self._refused.append(i)
            new.thread.start()
        self.gone.pop(env_id, None)

    def step_now(self, block: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Step every env."""
        self.submit(self.all_ids, Command.STEP, None, block)
        if meanwhile is not None:
            meanwhile()
        self.collect(len(self.all_ids), None)

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Take results as they arrive."""
        end = None if timeout_s is None else monotonic() + timeout_s
        self.collected = done = self._refused
        self._refused = []
        rung = True
        while True:
            self._drain()  # first, since a late answer tells that its lane does not hang any longer
            # Also while others keep answering, or the caller does not wait: a hung env must not hide behind that.
            if not rung or monotonic() - self._clock.last > _SLICE_S:
                self._give_up_hung(self._clock.lap())
            if len(done) >= at_least or not self._waiting:
                break
            left = _SLICE_S if end is None else min(_SLICE_S, end - monotonic())
            if left <= 0:
                break
            rung = self._results.wait(left, min(at_least - len(done), len(self._waiting)))
        return done

    def _drain(self) -> None:
        items = self._results.items
        while items:
            # Taken before it is removed: an interrupt in between makes it come twice, which ``_take`` notices.
            self._take(items[0])
            items.popleft()

    def _take(self, result: _Result) -> None:
        lane, env_id, sequence, outcome = result
        lane.hung = None
        if env_id not in self._waiting or sequence != self._sequence[env_id]:
            return  # a late answer from an env that was already given up
        if isinstance(outcome, Fault):
            self.faults[env_id] = outcome
        elif outcome is not None:
            self.extras[env_id] = outcome
        self._waiting.discard(env_id)
        self.collected.append(env_id)  # last: a row without its fault would pass for a good one

    def _give_up_hung(self, passed_s: float) -> None:
        for lane in self._lanes:
            running, is_building = lane.running, lane.lane.is_building
            if running is None or lane.hung is not None:
                continue
            if running is not lane.watched[0] or is_building is not lane.watched[1]:
                # It began somewhere within this lap: counting the whole lap would give the env less than its time.
                lane.watched, lane.waited_s = (running, is_building), 0.0
                continue
            lane.waited_s += passed_s
            culprit, command = running
            limit = self.config.timeouts.construct if is_building else self.config.timeouts.of(command)
            if limit is not None and lane.waited_s > limit:
                lane.hung = _hung(lane, "construct" if is_building else PHASES[command], lane.waited_s, culprit)
        for lane in self._lanes:
            if lane.hung is not None:
                self._lose(lane.hung, [i for i in lane.lane.env_ids if i in self._waiting])

    def _lose(self, hung: Fault, ids: list[int]) -> None:
        """Turn what a lane owes into faults: the hung env's own, and a collateral copy for each env behind it."""
        for i in ids:
            own = replace(hung, where=replace(hung.where, env_ids=(i,)), is_collateral=True)
            self.faults[i] = hung if hung.where.env_ids == (i,) else own
            self._waiting.discard(i)
            self.collected.append(i)

    def describe(self) -> str:
        """``4 threads``."""
        return f"{self.num_workers} thread{'s' * (self.num_workers != 1)}"

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Empty: the envs live in this process."""
        return ()

    def close(self) -> None:
        """Let every thread close its envs; a thread that does not finish in time is left behind and logged."""
        self._is_closed = True
        _open.discard(self)
        _dismiss([lane.inbox for lane in self._lanes])
        end = monotonic() + self.config.timeouts.close
        for lane in [*self._lanes, *self._given_up]:
            if lane.thread.ident is None:
                continue
            lane.thread.join(max(0.0, end - monotonic()))
            if lane.thread.is_alive():
                _log.warning("thread of envs %s still hangs after close:\n%s", lane.lane.env_ids, lane.stack())

    def release(self) -> None:
        """Let go of the rows."""
        for name in ("rows", "take"):
            self.__dict__.pop(name, None)


def _close_all() -> None:
    """Close pools that the program has left open: threads that are still there when Python ends may abort it."""
    for engine in list(_open):
        engine.close()


atexit.register(_close_all)


def _dismiss(inboxes: Sequence[SimpleQueue[_Work | None]]) -> None:
    for inbox in inboxes:
        inbox.put(None)


def _hung(lane: ThreadLane, phase: str, waited_s: float, env_id: int | None = None) -> Fault:
    ids = lane.lane.env_ids if env_id is None else (env_id,)
    kind = None if env_id is None else EnvTimeout  # the first time, the error is about what could not be built
    text = f"no answer after {waited_s:.1f} s; it hangs in the stack below"
    return Fault(Where(ids, phase, lane.lane.worker), text, lane.stack(), error_class=kind)
