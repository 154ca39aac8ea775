"""Loads in TorchRL's dialect, measured by turns in shoal and in TorchRL: what the programs that do so share.

TorchRL runs in an interpreter of its own (``--peer``), since it wants a tensordict of its own version; without one,
shoal is measured alone. In each round both measure every load once, one right after the other, so that they see the
same machine. A figure is the median over rounds, a ratio the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WARM_UP_S = 0.2


@dataclass(frozen=True)
class Goal:
    """The goal for a load: how many times as fast as TorchRL, if there is a goal, and what is measured."""

    times: float | None = None
    is_time: bool = False
    """Whether it is a time in seconds; else it is steps per second."""


# ---------------------------------------------------------------------- in the interpreter of the library


def library(name: str) -> Any:
    """The module with the names that are measured."""
    if name == "shoal":
        import shoal.faces.torchrl as face

        return face
    import torchrl.envs

    return torchrl.envs


def rate(play: Callable[[], int], seconds: float) -> float:
    """Steps per second, from a function that plays a few and returns how many."""
    per_second = 0.0
    for length in (WARM_UP_S, seconds):
        start, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < length:
            steps += play()
        per_second = steps / passed
    return per_second


def steps_per_second(env: Any, rows: int, seconds: float, *, step_only: bool = False, root: Any = None) -> float:
    """Steps per second of all rows: ``rand_action`` and ``step_and_maybe_reset``, or always the same step."""
    root = env.rand_action(env.reset() if root is None else root)

    def play() -> int:
        nonlocal root
        for _ in range(10):
            if step_only:
                env.step(root)
            else:
                _, root = env.step_and_maybe_reset(env.rand_action(root))
        return 10 * rows

    return rate(play, seconds)


# ---------------------------------------------------------------------- all of them


def compare(
    script: str, description: str, goals: Mapping[str, Goal], measure: Callable[[str, str, float], float]
) -> None:
    """The program: every load by turns, each in a process of its own.

    Args:
        script: The file of the program, which is run again for each measurement.
        description: One line about it.
        goals: The loads, by their names.
        measure: The figure of one load, from the library's name, the load's name and the seconds that it may take.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peer", help="an interpreter that has torchrl 0.14.1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per load and round")
    parser.add_argument("--only", default="", help="loads whose names have this")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        warnings.filterwarnings("ignore")
        name, load, seconds = options.worker
        print(json.dumps(measure(name, load, float(seconds))))
        return
    chosen = {load: goal for load, goal in goals.items() if options.only in load}
    if not chosen:
        parser.error(f"--only {options.only}: no load has this in its name; there are: {'; '.join(goals)}")
    contenders = [("shoal", sys.executable), *([("torchrl", options.peer)] if options.peer else [])]
    figures: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        for load, goal in chosen.items():
            for name, python in contenders if number % 2 else contenders[::-1]:
                figures.setdefault((load, name), []).append(_run(script, python, name, load, options.seconds))
            _show(load, goal, figures[load, "shoal"], figures.get((load, "torchrl")))


def _run(script: str, python: str, name: str, load: str, seconds: float) -> float:
    command = [python, "-W", "ignore", script, "--worker", name, load, str(seconds)]
    path = {"PYTHONPATH": str(Path(__file__).parents[1] / "src")} if name == "shoal" else {}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **path}, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {load}:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def _show(load: str, goal: Goal, ours: list[float], theirs: list[float] | None) -> None:
    unit, digits = ("s", 2) if goal.is_time else ("steps/s", 0)
    told = f"{load:<26} shoal {statistics.median(ours):>9,.{digits}f} {unit}"
    if theirs:
        ratios = [b / a if goal.is_time else a / b for a, b in zip(ours, theirs, strict=True)]
        wanted = f"  (goal {goal.times:g}x)" if goal.times else ""
        told += (
            f"   torchrl {statistics.median(theirs):>9,.{digits}f} {unit}   {statistics.median(ratios):.1f}x{wanted}"
        )
    print(f"{told}   after {len(ours)} round{'s' * (len(ours) != 1)}", flush=True)
