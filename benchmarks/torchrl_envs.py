"""Envs of TorchRL's dialect, shoal's and TorchRL's own in turns: steps of CartPole in a second, start and import times.

    python benchmarks/torchrl_envs.py --peer .venv-torchrl/bin/python
    python benchmarks/torchrl_envs.py --peer ... --rounds 3 --seconds 1 --only parallel

TorchRL runs in an interpreter of its own (``--peer``), since it wants a tensordict of its own version; without one,
shoal is measured alone. In each round both measure every load once, one right after the other, so that they see the
same machine. A figure is the median over rounds, a ratio the median of the ratios within a round.

The loop is ``rand_action`` and ``step_and_maybe_reset``; "step only" is ``step`` with one and the same action.
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
from functools import partial
from pathlib import Path
from typing import Any

LOADS = {
    # name: what TorchRL is to be beaten by
    "import": 3.0,
    "import, GymEnv": None,
    "single": 3.0,
    "single, step only": None,
    "serial 8": 3.0,
    "serial 8, step only": None,
    "parallel 8": 10.0,
    "parallel 8, step only": None,
    "parallel 4, start": 5.0,
    "async threads 8": 5.0,
    "async processes 4": 10.0,
    "busy 100 us, serial 4": None,
    "busy 100 us, parallel 4": None,
    "busy 1 ms, serial 4": None,
    "busy 1 ms, parallel 4": None,
}
IS_TIME = {"import", "import, GymEnv", "parallel 4, start"}


# ---------------------------------------------------------------------- one load, in the interpreter of its library


def library(name: str) -> Any:
    """The names that are measured."""
    if name == "shoal":
        import shoal.faces.torchrl as face

        return face
    import torchrl.envs

    return torchrl.envs


class Busy:
    """A gymnasium env whose step keeps a core busy for a while."""

    def __init__(self, seconds: float) -> None:
        import gymnasium as gym

        env = gym.make("CartPole-v1").unwrapped
        step = env.step

        def busy_step(action: Any) -> Any:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
            return step(action)

        env.step = busy_step
        self.env = env


def make_busy(name: str, seconds: float) -> Any:
    return library(name).GymWrapper(Busy(seconds).env)


def steps_per_second(env: Any, rows: int, seconds: float, *, step_only: bool) -> float:
    root = env.rand_action(env.reset())
    steps, end = 0, 0.0
    for is_warm in (False, True):
        start, steps = time.perf_counter(), 0
        end = start + (seconds if is_warm else 0.2)
        while time.perf_counter() < end:
            for _ in range(10):
                if step_only:
                    env.step(root)
                else:
                    _, root = env.step_and_maybe_reset(env.rand_action(root))
            steps += 10
        rate = steps * rows / (time.perf_counter() - start)
    return rate


def measure(name: str, load: str, seconds: float) -> float:
    """Steps per second, or seconds, of one load."""
    start = time.perf_counter()
    face = library(name)
    if load == "import":
        return time.perf_counter() - start
    make = partial(face.GymEnv, "CartPole-v1")
    if load == "import, GymEnv":  # shoal loads a name, and torch with it, when it is asked for
        return time.perf_counter() - start
    import torch

    torch.set_num_threads(1)
    what, _, rest = load.partition(" ")
    step_only = load.endswith("step only")
    if what == "busy":
        make = partial(make_busy, name, 100e-6 if "100 us" in load else 1e-3)
        kind = face.ParallelEnv if "parallel" in load else face.SerialEnv
        env, rows = kind(4, make, **_start_options(name, "parallel" in load)), 4
    elif load == "parallel 4, start":
        return start_time(face, make)
    elif what == "async":
        rows = int(rest.split()[1])
        processes = {"backend": "multiprocessing"} | ({"exchange": "shm"} if name == "torchrl" else {})
        env = face.AsyncEnvPool([make] * rows, **(processes if "processes" in rest else {}))
    elif what == "single":
        env, rows = make(), 1
    else:
        rows = 8
        is_parallel = what == "parallel"
        kind = face.ParallelEnv if is_parallel else face.SerialEnv
        env = kind(rows, make, **_start_options(name, is_parallel))
    try:
        return steps_per_second(env, rows, seconds, step_only=step_only)
    finally:
        env.close()


def _start_options(name: str, is_parallel: bool) -> dict[str, Any]:
    # TorchRL's default, spawn, takes ten seconds to start and is no faster afterwards.
    return {"mp_start_method": "fork"} if name == "torchrl" and is_parallel else {}


def start_time(face: Any, make: Any) -> float:
    """Seconds from the constructor to the first data, with the library's own start method."""
    start = time.perf_counter()
    env = face.ParallelEnv(4, make)
    env.reset()
    passed = time.perf_counter() - start
    env.close()
    return passed


# ---------------------------------------------------------------------- all of them


def run(python: str, name: str, load: str, seconds: float) -> float:
    """Measure one load in a process of its own."""
    command = [python, "-W", "ignore", __file__, "--worker", name, load, str(seconds)]
    path = {"PYTHONPATH": str(Path(__file__).parents[1] / "src")} if name == "shoal" else {}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **path}, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {load}:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
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
    loads = [load for load in LOADS if options.only in load]
    contenders = [("shoal", sys.executable), *([("torchrl", options.peer)] if options.peer else [])]
    figures: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        for load in loads:
            for name, python in contenders if number % 2 else contenders[::-1]:
                figures.setdefault((load, name), []).append(run(python, name, load, options.seconds))
            _show(load, figures)


def _show(load: str, figures: dict[tuple[str, str], list[float]]) -> None:
    ours, theirs = figures[load, "shoal"], figures.get((load, "torchrl"))
    unit = "s" if load in IS_TIME else "steps/s"
    digits = 2 if load in IS_TIME else 0
    told = f"{load:<26} shoal {statistics.median(ours):>9,.{digits}f} {unit}"
    if theirs:
        ratios = [b / a if load in IS_TIME else a / b for a, b in zip(ours, theirs, strict=True)]
        goal = f"  (goal {LOADS[load]:.0f}x)" if LOADS[load] else ""
        told += f"   torchrl {statistics.median(theirs):>9,.{digits}f} {unit}   {statistics.median(ratios):.1f}x{goal}"
    print(f"{told}   after {len(ours)} round{'s' * (len(ours) != 1)}", flush=True)


if __name__ == "__main__":
    main()
