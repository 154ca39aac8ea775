"""What is measured apart from the loads: start-up time, memory, idle pools, and pools on a machine that is busy.

The first three come from fresh processes: a warm fork server or a heap that another load has grown would change them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contenders import CONTENDERS, Contender, contenders_for
from harness import Host, HostError, Plan, Stage, start_host
from loads import LOADS, Group, Load
from report import Grid, met_words, number, skip_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CARTPOLE = LOADS["cartpole-8"]
SETTLE_S = 0.5
IDLE_AT_MOST = 0.002
"""Of one core. The kernel counts in ticks of 10 ms, so that over a few seconds less than this is one tick."""
ENV_AT_MOST_MB = 1.0
WORKER_AT_MOST_MB = 60.0
FEW_ENVS, MANY_ENVS = 8, 64
BUSY_PLAN, QUICK_BUSY_PLAN = Plan(rounds=8, slice_s=0.4), Plan(rounds=3, slice_s=0.3)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the user chose on the command line."""

    pythons: dict[str, str]
    turns_per_us: float
    is_quick: bool
    wanted: frozenset[str]
    """Contender keys; empty means all."""

    def chosen(self, group: Group) -> list[Contender]:
        return [contender for contender in contenders_for(group) if not self.wanted or contender.key in self.wanted]


@contextmanager
def _fresh_host(contender: Contender, setting: Setting) -> Iterator[Host]:
    host = start_host(contender, setting.pythons)
    try:
        yield host
    finally:
        host.quit()


def _rows(
    contenders: Sequence[Contender], cells: Callable[[Contender], tuple[str, ...]]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """A row per contender that could be measured, notes on those that could not."""
    rows, skipped = [], []
    for contender in contenders:
        try:
            rows.append((contender.label, *cells(contender)))
        except HostError as error:
            skipped.append((contender, str(error)))
    return rows, skip_notes(skipped)


def startup(setting: Setting) -> list[Grid]:
    """Seconds from the call that builds the pool to the first observations."""
    tries = 1 if setting.is_quick else 3

    def cells(contender: Contender) -> tuple[str, ...]:
        return (f"{statistics.median(_open_s(contender, setting) for _ in range(tries)):.2f}",)

    rows, notes = _rows(setting.chosen(Group.STARTUP), cells)
    return [Grid("Start-up, CartPole, 8 workers", ("contender", "start to first observation, s"), rows, notes)]


def _open_s(contender: Contender, setting: Setting) -> float:
    with _fresh_host(contender, setting) as host:
        return host.open(CARTPOLE, setting.turns_per_us)


def memory(setting: Setting) -> list[Grid]:
    """What opening a pool adds to the memory of the process that opens it, and what one more env or worker adds."""
    num_envs = 8 if setting.is_quick else 32

    def cells(contender: Contender) -> tuple[str, ...]:
        added_mb = _added_mb(contender, num_envs, setting)
        return (f"{added_mb:.1f}", f"{added_mb / num_envs:.2f}")

    rows, notes = _rows(setting.chosen(Group.MEMORY), cells)
    columns = ("contender", "added PSS, MB", "per env, MB")
    return [Grid(f"Memory, CartPole, {num_envs} envs", columns, rows, notes), _memory_targets(setting)]


def _added_mb(contender: Contender, num_envs: int, setting: Setting) -> float:
    with _fresh_host(contender, setting) as host:
        before_mb = host.pss_mb()
        host.open(CARTPOLE, setting.turns_per_us, num_envs)
        # Without a slice, pages that stepping touches first would be missing.
        host.slice(SETTLE_S)
        after_mb = host.pss_mb()
    if before_mb is None or after_mb is None:
        raise HostError("memory needs psutil")
    return after_mb - before_mb


def _process_mb(setting: Setting) -> float:
    """The memory of one process that has imported what the env needs and holds a few envs."""
    with _fresh_host(CONTENDERS["raw-loop"], setting) as host:
        host.open(CARTPOLE, setting.turns_per_us, FEW_ENVS)
        return host.pss_mb() or 0.0


def _memory_targets(setting: Setting) -> Grid:
    columns = ("what", "MB", "target", "verdict")
    try:
        one_env_mb = _slope_mb("shoal-process-forkserver-2", setting) - _slope_mb("raw-loop", setting)
        one_worker_mb = _added_mb(CONTENDERS["shoal-process-spawn-2"], FEW_ENVS, setting) - _added_mb(
            CONTENDERS["shoal-process-spawn-1"], FEW_ENVS, setting
        )
        over_imports_mb = one_worker_mb - _process_mb(setting)
    except HostError as error:
        return Grid("Memory targets", columns, [], (f"not measured: {error}",))
    rows = [
        _target_row("one more env in a worker, beyond the env itself", one_env_mb, ENV_AT_MOST_MB),
        _target_row("one more worker, over a process with the env's imports", over_imports_mb, WORKER_AT_MOST_MB),
    ]
    return Grid("Memory targets", columns, rows)


def _slope_mb(key: str, setting: Setting) -> float:
    """The memory of one more env."""
    few, many = (_added_mb(CONTENDERS[key], num_envs, setting) for num_envs in (FEW_ENVS, MANY_ENVS))
    return (many - few) / (MANY_ENVS - FEW_ENVS)


def _target_row(what: str, value_mb: float, at_most_mb: float) -> tuple[str, ...]:
    return (what, f"{value_mb:.2f}", f"at most {at_most_mb:g}", met_words(value_mb <= at_most_mb))


def idle(setting: Setting) -> list[Grid]:
    """CPU that a pool takes while nobody calls it, after some steps."""
    return [_idle_grid(load, setting) for load in (CARTPOLE, LOADS["uneven-32"])]


def _idle_grid(load: Load, setting: Setting) -> Grid:
    def cells(contender: Contender) -> tuple[str, ...]:
        part = _idle_part(contender, load, setting)
        is_met = None if part is None else part <= IDLE_AT_MOST
        verdict = met_words(is_met) if contender.library == "shoal" else ""
        return (number(part, ".1%"), verdict)

    rows, notes = _rows(setting.chosen(load.group), cells)
    return Grid(f"Idle pool: {load.title}", ("contender", "CPU, of one core", "target 0 %"), rows, notes)


def _idle_part(contender: Contender, load: Load, setting: Setting) -> float | None:
    watch_s = 2.0 if setting.is_quick else 5.0
    with _fresh_host(contender, setting) as host:
        host.open(load, setting.turns_per_us)
        host.slice(SETTLE_S)
        time.sleep(SETTLE_S)
        before_s = host.cpu_s()
        time.sleep(watch_s)
        after_s = host.cpu_s()
    return None if before_s is None or after_s is None else (after_s - before_s) / watch_s


def busy(setting: Setting) -> list[Grid]:
    """Env steps per second alone, and beside as many programs as there are cores, none of which ever waits."""
    cores = len(os.sched_getaffinity(0))
    contenders = setting.chosen(CARTPOLE.group)
    plan = QUICK_BUSY_PLAN if setting.is_quick else BUSY_PLAN
    reports = []
    for count in (0, cores):
        with _busy_programs(count), Stage(setting.pythons, setting.turns_per_us) as stage:
            reports.append(stage.measure(CARTPOLE, contenders, plan))
    alone, beside = (report.results for report in reports)
    rows = [
        (contender.label, f"{alone[key].steps_per_s:,.0f}", f"{beside[key].steps_per_s:,.0f}")
        for contender in contenders
        if (key := contender.key) in alone and key in beside
    ]
    missing = [(CONTENDERS[key], why) for key, why in reports[0].skipped.items()]
    columns = ("contender", "alone, env-steps/s", f"beside {cores} busy programs")
    return [Grid(f"A busy machine: {CARTPOLE.title}", columns, rows, skip_notes(missing))]


@contextmanager
def _busy_programs(count: int) -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
