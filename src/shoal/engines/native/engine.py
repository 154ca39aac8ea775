"""The native engine: one simulator for all envs of a pool, on threads of its own.

A step of the whole pool is one call of the simulator in the caller's thread. Everything else is a job (``conductor``):
in an asynchronous pool, envs move while the caller does something else that takes long enough; in a synchronous one,
when the caller waits for them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from shoal.arrays import Rows
from shoal.engines.base import PHASES, Command, EngineConfig, Extra, Request, row_layout, sharers
from shoal.engines.kernel.installed import FLOATS, has_numba
from shoal.engines.lane import answer
from shoal.engines.native.boundary import Boundary
from shoal.engines.native.conductor import Conductor
from shoal.engines.native.overlap import Overlap
from shoal.engines.starting import closing_on_error, construction_error
from shoal.errors import ArgumentError
from shoal.faults import Fault, fault_from
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.native import Array, BatchSim, NativeEnv, OverlappingSim


_log = logging.getLogger("shoal")


class Done(NamedTuple):
    """The outcome of a job."""

    ids: Sequence[int]
    faults: dict[int, Fault]
    extras: dict[int, Extra]
    interrupt: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A command for some envs, and the function that carries it out."""

    carry_out: Callable[[list[int], Command, dict[int, Request], int], Done]
    ids: list[int]
    command: Command
    requests: dict[int, Request]
    block: int

    def __call__(self) -> Done:
        """Do the job."""
        return self.carry_out(self.ids, self.command, self.requests, self.block)


class NativeEngine:
    """Runs the envs of a ``NativeEnv``; deadlines cannot be enforced: a simulator that hangs cannot be ended."""

    name = "native"
    recycled = 0
    gone = ()
    finals_are_columns = True
    check_requests = episodes = ends = None

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.extras: dict[int, Extra] = {}
        self.faults: dict[int, Fault] = {}
        self.collected: list[int] = []
        self.num_workers = sharers(config)
        self.take: Callable[[Any], bool] | None = None
        self.has_odd_rows: Callable[[int], bool] | None = None
        self._all_ids = list(range(config.num_envs))
        self._conductor: Conductor[Done] | Overlap[Done] = Conductor(has_thread=config.one_by_one, join=_both)
        self._sim: BatchSim | None = None

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Make the simulator."""
        with closing_on_error(self.close):
            try:
                kind = self._kind()
                self.spec = replace(kind.describe(self.config.name), registered=self.config.registered)
                layout = row_layout(self.config, self.spec)
                self.rows = Rows(layout, layout.private())
                self._sim = kind.simulate(self.config.num_envs, self.num_workers)
            except (Exception, SystemExit) as error:
                raise construction_error(
                    [fault_from(error, env_id=i, phase="construct") for i in self._all_ids[:1]]
                ) from error
            if self.config.one_by_one and getattr(self._sim, "overlap", bool)():
                self._conductor = Overlap(cast("OverlappingSim", self._sim), self._finish)
        self._boundary = Boundary(self.config, self._sim, self.rows)
        self._compile_checks()

    def _kind(self) -> NativeEnv:
        factories = list(self.config.factories)
        if any(factory is not factories[0] for factory in factories):
            raise ArgumentError(
                "env_kwargs: a native pool has one simulator with one set of options; "
                "engine='process' gives each env its own"
            )
        kind: NativeEnv = factories[0]()
        return kind

    def _compile_checks(self) -> None:
        """Use compiled checks of actions and rows, if numba is installed."""
        if not has_numba():
            return
        from shoal.engines.kernel.actions import ActionIntake
        from shoal.engines.native.oddity import odd_rows

        self.has_odd_rows = odd_rows(self.rows)
        action, column = self.spec.action, self.rows.action[0]
        if not action.is_single or column is None or not column.size:
            return
        if column.dtype.kind in "biu" or column.dtype in FLOATS:
            self.take = ActionIntake(action.leaves[0], column, bounded=self.config.bounded_actions)

    # ------------------------------------------------------------------ commands

    def step_now(self, block: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Step every env."""
        if meanwhile is not None:
            meanwhile()
        with self._conductor.turn:
            try:
                self.faults.update(self._boundary.step(None, block))
            except BaseException as error:
                self.faults.update(self._boundary.interrupted(error, self._all_ids, "step"))
                if isinstance(error, KeyboardInterrupt):
                    raise
            finally:
                self.collected = self._all_ids

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Begin the steps, if the simulator does not need the caller for them, and queue everything else."""
        left = list(ids)
        if command is Command.STEP and not requests and isinstance(self._conductor, Overlap):
            left = self._boundary.begin(np.array(sorted(left), np.int32)).tolist()
        if left:
            self._conductor.submit(Job(self._carry_out, left, command, requests or {}, block))

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Wait until enough commands are done, and do them here if nobody else does."""
        done: list[int] = []
        self.collected = done
        end = None if timeout_s is None else monotonic() + timeout_s
        conductor = self._conductor
        conductor.come()
        try:
            while len(done) < at_least or conductor.has_results:
                left_s = None if end is None else max(0.0, end - monotonic())
                result = conductor.take(left_s, at_least - len(done))
                if result is None:
                    break
                self.faults.update(result.faults)
                self.extras.update(result.extras)
                done.extend(result.ids)
                if result.interrupt is not None:
                    raise result.interrupt
        finally:
            conductor.leave()
        return done

    def _finish(self, ids: list[int]) -> Done:
        """Complete the rows of envs that the simulator has stepped; there is one block, since they are not in step."""
        try:
            return Done(ids, self._boundary.finish(np.array(sorted(ids), np.int32), 0), {})
        except BaseException as error:
            return self._interrupted(ids, Command.STEP, error)

    def _carry_out(self, ids: list[int], command: Command, requests: dict[int, Request], block: int) -> Done:
        """Run one command for some envs; whatever is raised along the way is a fault of all of them."""
        try:
            for i in ids if requests else ():
                if (request := requests.get(i)) and request.incarnation is not None:
                    self._simulator.renew(i)
            if command is Command.CALL:
                return self._call(ids, requests)
            rows = np.array(sorted(ids), np.int32)
            if command is Command.RESET:
                return Done(ids, self._boundary.reset(rows, requests, block), {})
            return Done(ids, self._boundary.step(None if len(ids) == len(self._all_ids) else rows, block), {})
        except BaseException as error:
            return self._interrupted(ids, command, error)

    def _interrupted(self, ids: list[int], command: Command, error: BaseException) -> Done:
        faults = self._boundary.interrupted(error, ids, PHASES[command])
        return Done(ids, faults, {}, error if isinstance(error, KeyboardInterrupt) else None)

    # ------------------------------------------------------------------ one env

    @property
    def _simulator(self) -> BatchSim:
        if self._sim is None:
            raise RuntimeError("the engine is closed")
        return self._sim

    def _call(self, ids: list[int], requests: dict[int, Request]) -> Done:
        done = Done(ids, {}, {})
        for i in ids:
            try:
                call = requests[i].call
                if call is None:
                    raise ValueError("a call needs something to call")
                done.extras[i] = Extra(value=answer(self._simulator.view(i), call), is_answer=True)
            except Exception as error:
                done.faults[i] = fault_from(error, env_id=i, phase="call")
        return done

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, ids: list[int], block: int) -> dict[str, Array]:
        """The whole state of these envs, as arrays of its own."""
        with self._conductor.turn:
            own = {name: array[ids] for name, array in self._boundary.state(block).items()}
            return {**own, **{f"sim_{name}": array for name, array in self._sim_snapshot(ids).items()}}

    def _sim_snapshot(self, ids: list[int]) -> dict[str, Array]:
        order = np.argsort(ids, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(ids))
        state = self._simulator.snapshot(np.array(ids, np.int32)[order])
        return {name: array[back] for name, array in state.items()}

    def restore(self, ids: list[int], block: int, state: dict[str, Array]) -> None:
        """Put these envs into a state that others, or they themselves, were in."""
        order = np.argsort(ids, kind="stable")
        with self._conductor.turn:
            own = {name[4:]: array for name, array in state.items() if name.startswith("sim_")}
            ordered = {name: array if len(array) == 1 else array[order] for name, array in own.items()}
            self._simulator.restore(np.array(ids, np.int32)[order], ordered)
            for name, array in self._boundary.state(block).items():
                array[ids] = state[name]
            # Whether a reset is due depends on this pool's rule, not on that of the pool that the snapshot is from.
            ended = (state["terminated"] | state["truncated"]) & ~state["first"]
            self._boundary.over[ids] = ended & (self.config.autoreset is Autoreset.NEXT_STEP)
            self._boundary.note_restore()

    # ------------------------------------------------------------------ the end

    def describe(self) -> str:
        """``native, 2 threads``."""
        return f"{self.name}, {self.num_workers} thread{'s' * (self.num_workers > 1)}"

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Empty: the envs live in this process."""
        return ()

    def close(self) -> None:
        """Wait for what is under way and end the simulator."""
        self._conductor.close()
        with self._conductor.turn:
            sim, self._sim = self._sim, None
            if sim is not None:
                _close(sim)

    def release(self) -> None:
        """Let go of the rows."""
        self.__dict__.pop("rows", None)
        self.take = self.has_odd_rows = None
        self._boundary.release()


def _close(sim: BatchSim) -> None:
    try:
        sim.close()
    except (Exception, SystemExit):
        _log.warning("close failed in the simulator", exc_info=True)


def _both(first: Job, second: Job) -> Job | None:
    """Two steps as one, or None; their envs differ, because an env that is under way is sent nothing."""
    is_step = first.command is second.command is Command.STEP
    if not is_step or first.requests or second.requests or first.block != second.block:
        return None
    return Job(first.carry_out, first.ids + second.ids, Command.STEP, {}, first.block)
