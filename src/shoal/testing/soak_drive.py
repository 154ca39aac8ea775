"""One leg of a soak: a pool, what is asked of it, who kills its workers, and whether its books agree with the model."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.build import make_pool
from shoal.engines.base import shares
from shoal.errors import NothingInFlight
from shoal.recovery import Restart
from shoal.testing.kinds import release_hangs
from shoal.testing.leaks import no_leftovers
from shoal.testing.soak_env import Hazard, Journal, SoakEnv
from shoal.testing.soak_model import Model
from shoal.testing.soak_threads import Alarm, Killer, PoolStuck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.pool import Pool

STEP_TIMEOUT_S = 0.5
_RECV_TIMEOUT_S = 60.0
_STUCK_S = 40.0  # longer than any deadline in a soak
_EPISODE_LIMIT = 25
_TURNS_PER_LOOK = 200
_KILLS = 0.25  # share of the faults in worker processes that come from outside

_RAISES = {"raise": 4.0, "raise_two_args": 2.0, "raise_unpicklable": 2.0, "sys_exit": 2.0}
_GARBAGE = dict.fromkeys(
    ("bad_shape", "scalar_obs", "none_obs", "nan_obs", "reward_nan", "reward_none", "flag_int", "four_tuple"), 1.5
)
_DEATHS = {"exit": 4.0, "kill": 3.0, "segv": 4.0, "abort": 2.0, "bus": 2.0}
_WEIGHTS = {
    "serial": {**_RAISES, **_GARBAGE},
    "thread": {**_RAISES, **_GARBAGE, "hang": 2.0},
    "process": {**_RAISES, **_GARBAGE, **_DEATHS, "info_unpicklable": 1.0, "hang": 1.2, "hang_gil": 0.8},
}


@dataclass(frozen=True)
class Leg:
    """One pool of a soak.

    Attributes:
        engine: Where its envs run.
        autoreset: The boundary rule.
        batch_size: Rows per ``recv``; the pool is synchronous if that is the number of envs.
        start_method: How its workers start.
        share: Its share of the steps and, times ``danger``, of the faults.
        danger: A factor for faults: deaths are expensive where workers start slowly.
        options: Further arguments of `make_pool`.
        num_envs: How many envs.
    """

    engine: str
    autoreset: str
    batch_size: int
    start_method: str | None = None
    share: float = 1.0
    danger: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    num_envs: int = 8

    @property
    def is_async(self) -> bool:
        """Whether rows come as soon as they are ready."""
        return self.batch_size < self.num_envs

    @property
    def name(self) -> str:
        """What the leg is, in words."""
        where = self.start_method or self.engine
        more = "".join(f" {name}={value}" for name, value in self.options.items() if name != "num_workers")
        return f"{where} {'async' if self.is_async else 'sync'} {self.autoreset}{more}"

    @property
    def num_workers(self) -> int:
        """Threads or processes."""
        return int(self.options.get("num_workers", self.num_envs))


@dataclass
class LegTally:
    """The outcome of one leg.

    Attributes:
        name: Which leg.
        seconds: How long it took.
        steps: Rows that answered a step.
        resets: Rows that answered an explicit reset.
        injected: Faults that envs committed, by kind, and outside kills as ``outside``.
        pool_faults: Faults that the pool has counted: the injected ones and those of neighbours.
        fault_rows: Rows with ``info["fault"]``, by the error they report.
        truncations: Rows that were truncated.
        natural_truncations: Those that the model expected, of episodes that simply ended.
        starved: Deadlines that passed though nothing hung; a busy machine can do that, so it is not wrong in itself.
        violations: What was wrong, by kind.
        notes: The first violations, in words.
        leftovers: What was still there two seconds after ``close``.
    """

    name: str
    seconds: float = 0.0
    steps: int = 0
    resets: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    pool_faults: int = 0
    fault_rows: Counter[str] = field(default_factory=Counter)
    truncations: int = 0
    natural_truncations: int = 0
    starved: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    leftovers: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.violations.total() or self.leftovers)

    def complain(self, kind: str, what: str) -> None:
        """Count something wrong."""
        self.violations[kind] += 1
        self.notes.append(f"{kind}: {what}")


class Drive:
    """Asks a pool for all kinds of things until it has done enough."""

    def __init__(self, leg: Leg, steps: int, faults: int, seed: int, folder: str, tally: LegTally) -> None:
        self._leg, self._steps, self._faults, self._seed, self._tally = leg, steps, faults, seed, tally
        self._journal = Journal(folder)
        self._draw = random.Random(seed)  # noqa: S311
        from_outside = _KILLS if leg.engine == "process" else 0.0
        self._kill_rate = from_outside * faults / steps
        self._hazard = Hazard(seed, (1 - from_outside) * faults / steps, _WEIGHTS[leg.engine])
        self._all = list(range(leg.num_envs))
        worker_of = [worker for worker, ids in enumerate(shares(leg.num_envs, leg.num_workers)) for _ in ids]
        self._model = Model(
            self._hazard,
            self._journal,
            leg.num_envs,
            same_step=leg.autoreset == "same_step",
            limit=_EPISODE_LIMIT,
            seed=seed,
            worker_of=worker_of,
        )
        self._folder = folder
        self._killer: Killer | None = None
        self._next_kill = self._draw_kill()

    @property
    def injected(self) -> int:
        """Faults so far."""
        return len(self._journal.shots()[0]) + (self._killer.kills if self._killer else 0)

    def run(self, end: float | None, on_progress: Callable[[str, int, int], None]) -> None:
        """Make the pool, use it, close it."""
        leg = self._leg
        pool = make_pool(
            SoakEnv,
            leg.num_envs,
            engine=leg.engine,
            env_kwargs=[{"tag": tag, "hazard": self._hazard, "folder": self._folder} for tag in self._all],
            batch_size=leg.batch_size,
            autoreset=leg.autoreset,
            start_method=leg.start_method,
            seed=self._seed,
            max_episode_steps=_EPISODE_LIMIT,
            on_fault=Restart(budget=None, backoff_s=0),
            step_timeout=STEP_TIMEOUT_S,
            construct_timeout=30.0,
            reset_timeout=5.0,
            **leg.options,
        )
        try:
            if leg.engine == "process":
                self._killer = Killer(pool.engine, self._model.deaths.killed, self._seed)
                self._killer.start()
            with Alarm(_STUCK_S, lambda: self._model.rows):
                self._use(pool, end, on_progress)
        except PoolStuck:
            self._tally.complain("stuck", f"the pool gave no row for {_STUCK_S:.0f} s, after {self._model.rows}")
        except Exception as error:
            self._tally.complain("raised", f"{type(error).__name__}: {error}")
        finally:
            if self._killer is not None:
                self._killer.dismiss()
            release_hangs()
            pool.close()
            self._sum_up(pool)

    def _use(self, pool: Pool, end: float | None, on_progress: Callable[[str, int, int], None]) -> None:
        model, ask = self._model, self._ask_async if self._leg.is_async else self._ask_sync
        model.note_reset(self._all)
        if self._leg.is_async:
            pool.async_reset()
        else:
            model.take(pool.reset(), self._all)
        turns, injected = 0, 0
        while model.steps < self._steps or injected < self._faults:
            ask(pool)
            if model.steps >= self._next_kill and self._killer is not None:
                self._killer.order()
                self._next_kill = model.steps + self._draw_kill()
            turns += 1
            if turns % _TURNS_PER_LOOK == 0:
                injected = self.injected
                on_progress(self._leg.name, model.steps, injected)
                if end is not None and time.monotonic() >= end:
                    break
        while model.outstanding:
            model.take(pool.recv(timeout=_RECV_TIMEOUT_S))
        try:
            pool.recv(timeout=0)
            self._tally.complain("duplicated", "there were rows when every command had been answered")
        except NothingInFlight:
            model.check_end()

    def _draw_kill(self) -> float:
        return self._draw.expovariate(self._kill_rate) if self._kill_rate else float("inf")

    def _some(self) -> list[int]:
        return self._draw.sample(self._all, self._draw.randint(1, len(self._all)))

    def _ask_sync(self, pool: Pool) -> None:
        model, choice = self._model, self._draw.random()
        if choice < 0.9:
            model.take(pool.step(model.actions(self._all)), self._all)
        elif choice < 0.95:
            ids = self._some()
            model.take(pool.step(model.actions(ids), ids), ids)
        elif choice < 0.995:
            groups = [self._some() for _ in range(self._draw.randint(1, 3))]
            for ids in groups:
                pool.send(model.actions(ids), ids)
            for ids in groups:
                model.take(pool.recv(timeout=_RECV_TIMEOUT_S), ids)
            # Threads that were given up come back, late, with rows that nobody must see.
            release_hangs()
        else:
            ids = self._some()
            model.note_reset(ids)
            model.take(pool.reset(env_id=ids), ids)

    def _ask_async(self, pool: Pool) -> None:
        model = self._model
        if self._draw.random() < 0.95:
            batch = pool.recv(timeout=_RECV_TIMEOUT_S)
        else:
            batch = pool.recv(timeout=_RECV_TIMEOUT_S, min_batch=1, max_wait=0.001)
        model.take(batch)
        ids = self._idle(batch.env_id.tolist())
        if ids:
            pool.send(model.actions(ids), ids)
        if ids and self._draw.random() < 0.03:
            pool.send(model.actions(ids), ids)  # held back until the first has been answered and received

    def _idle(self, ids: Sequence[int]) -> list[int]:
        """The envs among these that have nothing to do."""
        model = self._model
        return [i for i in ids if model.sent_N[i] == model.answered_N[i]]

    def _sum_up(self, pool: Pool) -> None:
        """Fill the tally, and compare the pool's own books with the model's."""
        model, tally, stats = self._model, self._tally, pool.stats()
        shots, _ = self._journal.shots()
        tally.steps, tally.resets = model.steps, model.resets
        tally.injected.update(shot.kind.value for shot in shots)
        tally.injected["outside"] += self._killer.kills if self._killer else 0
        tally.pool_faults, tally.fault_rows = stats.faults, model.faults
        tally.truncations, tally.natural_truncations = model.truncations, model.natural_truncations
        tally.starved = model.deaths.starved
        if model.outstanding:
            tally.violations["lost"] += model.outstanding
            tally.notes.append(f"lost: {model.outstanding} commands were never answered")
        tally.violations.update(model.violations)
        tally.notes += model.notes
        if tally.violations.total():
            return  # rows that never came make every count differ, and say nothing new
        for what, counted, expected in (
            ("faults", stats.faults, model.attempts),
            ("restarts", stats.restarts, model.attempts),
            ("steps", stats.steps, model.steps),
            ("resets", stats.resets, model.resets),
            ("episodes", stats.episodes, model.episodes),
            ("truncations", model.truncations, model.cuts + model.natural_truncations),
        ):
            if counted != expected:
                tally.complain("counts", f"{what}: {counted}, expected {expected}")


def run_leg(
    leg: Leg, steps: int, faults: int, seed: int, end: float | None, on_progress: Callable[[str, int, int], None]
) -> LegTally:
    """Run one leg until it has done this many steps and faults, or its time is up."""
    tally, began = LegTally(leg.name), time.monotonic()
    # Not named after shoal: a search for leftovers in another process at the same time would take the folder for one.
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        try:
            with no_leftovers():
                Drive(leg, steps, faults, seed, folder, tally).run(end, on_progress)
        except AssertionError as error:
            tally.leftovers = str(error)
        except Exception as error:
            tally.complain("raised", f"{type(error).__name__}: {error}")
    tally.seconds = time.monotonic() - began
    return tally
