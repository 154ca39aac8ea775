"""Examinations of an env: whether it can run here, whether it is repeatable, how fast it is and on which engine.

    pack ─▶ run it in a worker ─▶ run it in this process, twice ─▶ measure ─▶ all engines in turns

The worker comes first: an env that crashes or hangs there is a finding; here it would be the end of the examination.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal.adapters import adapt
from shoal.arrays import Layout, RowLayout
from shoal.build import make_pool
from shoal.doctor import race
from shoal.doctor.diagnosis import Diagnosis, Watch, brief, examined, no_watch, plural, size
from shoal.doctor.rehearsal import STEPS, is_dangerous, place_in_env, raised_by_env, recipe_of, rehearse
from shoal.doctor.rows import Record, first_difference, record
from shoal.doctor.trial import own_bytes
from shoal.engines.kernel.installed import has_numba
from shoal.engines.measuring import measure
from shoal.engines.process.descriptors import (
    FDS_PER_WORKER,
    descriptors_left,
    fds_for,
    how_to_raise_open_files,
    open_fds,
)
from shoal.engines.process.shipping import find_culprit, pack_factories
from shoal.errors import FaultError, ShippingError, ShoalError, SpecError
from shoal.machine import available_memory_bytes, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.pool import Pool
    from shoal.recipes import Recipe
    from shoal.spec import EnvSpec, Leaf, SpaceTree

_RECORD_S = 2.0
_MEASURE_S = 0.2
_LARGE_PACKAGE_BYTES = 10 << 20
_LEAVES_SHOWN = 4
# What a comparison of engines may cost, given that several pools of these envs are open at once.
_POOLS_AT_ONCE = 4
_BUILDING_S = 20.0
_BATCH_S = 0.5
_MOST_ENVS = 512
_MOST_WORKERS = 64


def examine_env(
    env: Any, num_envs: int = 64, *, num_workers: int | None = None, called: str = "ENV", watch: Watch = no_watch
) -> list[Diagnosis]:
    """Examine an env as a pool of ``num_envs`` of them would run it here. Takes a few seconds.

    Args:
        env: A registered id, a class, or a function that makes an env.
        num_envs: How many you want to run.
        num_workers: How many worker processes; one per usable core if not given.
        called: What to call the env in suggested commands.
        watch: Called with each topic before it is examined.

    Raises:
        ArgumentError: If no env can be made from ``env``.

    Example:
        >>> from shoal.doctor import examine_env
        >>> {d.topic: d.verdict for d in examine_env("CartPole-v1", 2)}["repeatable"]
        'ok'
    """
    return _Visit(env, recipe_of(env), num_envs, num_workers, called, watch).examine()


@dataclass
class _Visit:
    """The examinations in order, and what later ones need from earlier ones."""

    env: Any
    recipe: Recipe
    num_envs: int
    num_workers: int | None
    called: str
    watch: Watch
    diagnoses: list[Diagnosis] = field(default_factory=list)
    spec: EnvSpec | None = None
    from_worker: Record | None = None
    from_here: list[Record] = field(default_factory=list)
    can_ship: bool = False
    is_dangerous: bool = False
    build_s: float = 0.0
    env_bytes: int = 0
    row_bytes: float = 0.0
    step_s: float = 0.0

    def examine(self) -> list[Diagnosis]:
        """Run all examinations, as far as they get."""
        self.can_ship = self._note("shipping", self._shipping).verdict != "problem"
        if self.can_ship:
            self._note("in a worker", self._in_a_worker)
        if not self.is_dangerous:
            self._note("in this process", self._in_this_process)
        if self.spec is None:
            return self.diagnoses
        spec = self.spec
        self._note("spaces", lambda: _spaces(spec))
        self._note("memory", lambda: self._memory(spec))
        self._note("open files", self._open_files)
        if self.from_here:
            self._note("repeatable", lambda: self._repeatable(spec))
            self._note("speed", self._speed)
            self._engines()
        return self.diagnoses

    def _note(self, topic: str, examination: Callable[[], Diagnosis]) -> Diagnosis:
        self.watch(topic)
        self.diagnoses.append(examined(topic, examination))
        return self.diagnoses[-1]

    # ------------------------------------------------------------------ can it run

    def _shipping(self) -> Diagnosis:
        factory = self.recipe.factories[0]
        try:
            data = pack_factories([factory])
        except ShippingError as error:
            why = brief(error.__cause__ or error)
            return Diagnosis(
                "shipping",
                "problem",
                f"cannot be sent to a worker process: {find_culprit(factory, 'env_fn') or 'env_fn'} ({why})",
                "make that object inside the function that makes the env, instead of capturing it\n"
                "stay in this process, with engine='thread' or engine='serial'",
            )
        found = f"can be sent to a worker process, as {size(len(data))}"
        if len(data) > _LARGE_PACKAGE_BYTES:
            fix = "every worker gets a copy of its own: load large data inside the function that makes the env"
            return Diagnosis("shipping", "warning", found, fix)
        return Diagnosis("shipping", "ok", found)

    def _in_a_worker(self) -> Diagnosis:
        tried = rehearse(self.env)
        self.spec, self.from_worker, self.is_dangerous = tried.spec, tried.rows, tried.danger is not None
        if tried.error is not None:
            return self._failure("in a worker", tried.error)
        return Diagnosis("in a worker", "ok", f"built in {_time(tried.ready_s)} with its process, {self._steps_done()}")

    def _in_this_process(self) -> Diagnosis:
        topic = "in this process"
        with ExitStack() as stack:
            try:
                start = perf_counter()
                first = self._serial(stack)
                first_s, before, start = perf_counter() - start, own_bytes(), perf_counter()
                # The second env finds everything imported: its cost is that of every further env.
                second = self._serial(stack)
                self.build_s, self.env_bytes = perf_counter() - start, max(0, own_bytes() - before)
                self.spec = self.spec or first.spec
                steps = len(self.from_worker) - 1 if self.from_worker else STEPS
                self.from_here = record([first, second], steps, _RECORD_S)
            except (ShoalError, OSError) as error:
                return self._failure(topic, error)
        return Diagnosis(topic, "ok", f"built in {_time(first_s)}, the next one in {_time(self.build_s)}")

    def _serial(self, stack: ExitStack) -> Pool:
        return stack.enter_context(make_pool(self.env, 1, engine="serial"))

    def _steps_done(self) -> str:
        return plural(len(self.from_worker or [0]) - 1, "step") + " done"

    # ------------------------------------------------------------------ does it fit

    def _memory(self, spec: EnvSpec) -> Diagnosis:
        layout = Layout()
        RowLayout(spec, self.num_envs).reserve(layout)
        self.row_bytes = layout.size_bytes / self.num_envs
        available = available_memory_bytes()
        each = self.row_bytes + self.env_bytes
        total = each * self.num_envs
        env = f"about {size(self.env_bytes)}" if self.env_bytes else "next to nothing"
        found = (
            f"a row takes {size(self.row_bytes)} and an env {env}: "
            f"{size(total)} for {self.num_envs}, of {size(available)} available"
        )
        if total < available / 2:
            return Diagnosis("memory", "ok", found)
        fix = f"at most {plural(int(available / 2 / each), 'env')}, smaller observations, or more memory"
        return Diagnosis("memory", "problem" if total > available else "warning", found, fix)

    def _open_files(self) -> Diagnosis:
        workers = min(self.num_workers or usable_cores(), self.num_envs)
        needed, left = fds_for(workers), descriptors_left()
        found = f"{needed} for {plural(workers, 'worker')}, of {left:,} that may still be opened"
        if needed <= left:
            return Diagnosis("open files", "ok", found)
        fewer = max(0, left - fds_for(0)) // FDS_PER_WORKER
        fix = how_to_raise_open_files(open_fds() + needed)
        return Diagnosis("open files", "problem", found, f"{fix}\npass num_workers={fewer}" if fewer else fix)

    # ------------------------------------------------------------------ does it repeat

    def _repeatable(self, spec: EnvSpec) -> Diagnosis:
        one, other = self.from_here
        parted = first_difference(spec, one, other)
        if parted:
            found = f"two envs with one seed and the same actions part at step {parted.step}: {parted.what} is "
            fix = (
                "take random numbers from self.np_random alone, which super().reset(seed=seed) seeds, and share "
                "nothing between envs\n"
                f"shoal check {self.called} looks for the cause"
            )
            return Diagnosis("repeatable", "problem", found + parted.values, fix)
        if self.from_worker is None:
            return Diagnosis("repeatable", "ok", f"two envs agreed for {len(one) - 1} steps (in this process only)")
        parted = first_difference(spec, one, self.from_worker)
        if parted:
            found = f"here and in a worker it parts at step {parted.step}: {parted.what} is {parted.values}"
            fix = (
                "look for what differs between processes: the order of a set, threads of numeric libraries, the time, "
                "variables of the environment, state that modules keep"
            )
            return Diagnosis("repeatable", "problem", found, fix)
        agreed = min(len(one), len(self.from_worker)) - 1
        return Diagnosis("repeatable", "ok", f"two envs here and one in a worker agreed for {plural(agreed, 'step')}")

    # ------------------------------------------------------------------ how fast is it

    def _speed(self) -> Diagnosis:
        with closing(adapt(self.recipe.factories[0]())) as env:
            resets, start = 0, perf_counter()
            while resets < 2 or (resets < 1000 and perf_counter() - start < _MEASURE_S):
                env.reset(seed=resets)
                resets += 1
            reset_s = (perf_counter() - start) / resets
            self.step_s, on_cpu = measure(env, _MEASURE_S)
        found = f"{_time(self.step_s)} per step (resets included), {100 * min(1.0, on_cpu):.0f} % of it on the CPU; "
        found += f"{_time(reset_s)} per reset"
        if os.getloadavg()[0] > usable_cores():
            found += "; other programs use the cores too, so this and the engines' figures may be low"
        return Diagnosis("speed", "ok", found)

    def _engines(self) -> None:
        self.watch("engines")
        try:
            result = race.race(self.env, self._affordable(), self._affordable_workers(), can_ship=self.can_ship)
        except Exception as error:
            self.diagnoses.append(Diagnosis("engines", "problem", f"could not be compared: {brief(error)}"))
            return
        self.diagnoses.append(race.judge_auto(result))
        self.diagnoses.append(race.judge_rates(result, self.num_envs))
        if self.recipe.is_kernel and not has_numba():
            found = "this env can be compiled, and runs as plain Python for want of numba"
            self.diagnoses.append(Diagnosis("compilation", "warning", found, "pip install 'shoal[kernels]'"))

    def _affordable(self) -> int:
        """How many envs to compare engines with: as many as wanted, unless that would take too much time or memory."""
        each = self.env_bytes + 3 * self.row_bytes  # a pool holds a row, its caller two: this batch and the one before
        most = (
            _MOST_ENVS,
            _BATCH_S / max(self.step_s, 1e-9),
            _BUILDING_S / _POOLS_AT_ONCE / max(self.build_s, 1e-9),
            available_memory_bytes() / 2 / _POOLS_AT_ONCE / max(each, 1),
        )
        return min(self.num_envs, max(2, int(min(most))))

    def _affordable_workers(self) -> int | None:
        """How many workers to compare engines with, if the number was not left to the engine."""
        room = (descriptors_left() - fds_for(0)) // FDS_PER_WORKER // 2
        return None if self.num_workers is None else max(1, min(self.num_workers, _MOST_WORKERS, room))

    def _failure(self, topic: str, error: Exception) -> Diagnosis:
        if not isinstance(error, FaultError):
            return Diagnosis(topic, "problem", brief(error))
        cause = raised_by_env(error)
        place = place_in_env(error)
        if is_dangerous(error):
            fix = (
                "its process ended or stood still: look for crashes of compiled libraries, endless loops and waits\n"
                "if it only needs longer, raise construct_timeout, reset_timeout or step_timeout"
            )
            return Diagnosis(topic, "problem", f"{error}{place}", fix)
        phases = {"construct": "it cannot be built", "reset": "reset fails", "step": "step fails"}
        reason = str(error) if cause is None else brief(cause)
        found = f"{phases.get(error.where.phase, error.where.phase)}: {reason}{place}"
        if any(found == diagnosis.found for diagnosis in self.diagnoses):
            return Diagnosis(topic, "problem", "the same")
        fix = f"shoal run {self.called} -n 1 --engine serial --debug shows the whole traceback"
        if isinstance(cause, ModuleNotFoundError):
            fix = f"install {cause.name}, or start where it can be imported"
        elif isinstance(cause, SpecError):
            fix = f"shoal check {self.called} says what it has to return"
        return Diagnosis(topic, "problem", found, fix)


def _spaces(spec: EnvSpec) -> Diagnosis:
    found = f"observation {_tree(spec.observation)}; action {_tree(spec.action)}"
    if spec.players:
        found += f"; {plural(len(spec.players), 'player')}"
    return Diagnosis("spaces", "ok", found)


def _tree(tree: SpaceTree) -> str:
    if tree.is_single:
        return _leaf(tree.leaves[0])
    shown = [f"{leaf.path.removeprefix(tree.name)} {_leaf(leaf)}" for leaf in tree.leaves[:_LEAVES_SHOWN]]
    rest = len(tree.leaves) - len(shown)
    return f"{type(tree.space).__name__}({', '.join(shown)}{f' and {rest} more' * (rest > 0)})"


def _leaf(leaf: Leaf) -> str:
    name = type(leaf.space).__name__
    if not leaf.is_array:
        return f"{name} (an object, carried beside the arrays)"
    if not leaf.shape and leaf.dtype.kind in "iu":
        return f"{name} {leaf.low} to {leaf.high}"
    return f"{name} {leaf.shape} {leaf.dtype}"


def _time(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
