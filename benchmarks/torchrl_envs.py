"""Envs of TorchRL's dialect, shoal's and TorchRL's own in turns: steps of CartPole in a second, start and import times.

    python benchmarks/torchrl_envs.py --peer .venv-torchrl/bin/python
    python benchmarks/torchrl_envs.py --peer ... --rounds 3 --seconds 1 --only parallel

See ``torchrl_turns`` for how the two are measured.

The loop is ``rand_action`` and ``step_and_maybe_reset``; "step only" is ``step`` with one and the same action.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from torchrl_turns import Goal, compare, library, steps_per_second

GOALS = {
    "import": Goal(3.0, is_time=True),
    "import, GymEnv": Goal(is_time=True),
    "single": Goal(3.0),
    "single, step only": Goal(),
    "serial 8": Goal(3.0),
    "serial 8, step only": Goal(),
    "parallel 8": Goal(10.0),
    "parallel 8, step only": Goal(),
    "parallel 4, start": Goal(5.0, is_time=True),
    "async threads 8": Goal(5.0),
    "async processes 4": Goal(10.0),
    "busy 100 us, serial 4": Goal(),
    "busy 100 us, parallel 4": Goal(),
    "busy 1 ms, serial 4": Goal(),
    "busy 1 ms, parallel 4": Goal(),
}


class Busy:
    """A gymnasium env whose step keeps a core busy for a while."""

    def __init__(self, seconds: float) -> None:
        import gymnasium as gym

        env: Any = gym.make("CartPole-v1").unwrapped
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


def measure(name: str, load: str, seconds: float) -> float:
    """Steps per second, or seconds, of one load."""
    start = time.perf_counter()
    face = library(name)
    if load == "import":
        return time.perf_counter() - start
    make = partial(face.GymEnv, "CartPole-v1")
    if load == "import, GymEnv":  # shoal loads a name, and torch with it, on first use
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


if __name__ == "__main__":
    compare(__file__, __doc__.splitlines()[0] if __doc__ else "", GOALS, measure)
