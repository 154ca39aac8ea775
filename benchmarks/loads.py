"""The loads: environments that cost a known amount, and how many of them run at once.

Everything here is at the top level of an importable module, so that every start method can pickle it, and needs
only gymnasium and numpy, so that it also runs in the older environments that some peers are pinned to.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Env = gymnasium.Env[Any, Any]
EnvFn = Callable[[], Env]
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]

UNEVEN_MEAN_S = 0.002
UNEVEN_SIGMA = 1.0


class Group(enum.Enum):
    """Loads that the same contenders can take."""

    CARTPOLE = "cartpole"
    SPIN = "spin"
    DICT = "dict"
    NOOP = "noop"
    UNEVEN = "uneven"
    POLICY = "policy"
    STARTUP = "startup"
    MEMORY = "memory"


def make_cartpole() -> Env:
    """CartPole as users make it, without the checker that only looks at the first step."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


class NoOpEnv(gymnasium.Env[Any, Any]):
    """Does nothing: what is left is the cost of the runner."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, action: Any) -> StepResult:
        return self._obs, 0.0, False, False, {}


class DictEnv(gymnasium.Env[Any, Any]):
    """Ten small named arrays, made anew for each observation, and no other work: the cost of structure."""

    action_space = spaces.Discrete(2)

    def __init__(self, num_keys: int = 10) -> None:
        names = [f"sensor_{i}" for i in range(num_keys)]
        self.observation_space = spaces.Dict({name: spaces.Box(-1.0, 1.0, (4,), np.float32) for name in names})
        self._arrays = {name: np.zeros(4, np.float32) for name in names}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self._arrays.items()}


class SpinEnv(gymnasium.Env[Any, Any]):
    """Burns a fixed amount of interpreter work per step and shows an image.

    The work is counted in loop turns and not timed by a clock: a clock would go on while the process waits for a
    core, and an oversubscribed runner would look better than it is.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...], turns: int) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._frame = np.zeros(shape, np.uint8)
        self._turns = turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._frame, {}

    def step(self, action: Any) -> StepResult:
        burn(self._turns)
        self._frame[0, 0, 0] += 1
        return self._frame, 1.0, False, False, {}


class UnevenEnv(gymnasium.Env[Any, Any]):
    """Sleeps a lognormal time per step, from its own stream: forked envs must not all draw the same latencies."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._mu = math.log(UNEVEN_MEAN_S) - UNEVEN_SIGMA**2 / 2
        self._obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, action: Any) -> StepResult:
        time.sleep(self._rng.lognormal(self._mu, UNEVEN_SIGMA))
        return self._obs, 1.0, False, False, {}


def burn(turns: int) -> int:
    """Interpreter work that holds a core (and the GIL) for `turns` turns."""
    value = 0
    for turn in range(turns):
        value = (value + turn) & 0xFFFF
    return value


def calibrate(rounds: int = 30) -> float:
    """Turns of `burn` per microsecond on this machine, from the fastest of several tries (the rest were disturbed)."""
    turns = 20_000
    best_s = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        burn(turns)
        best_s = min(best_s, time.perf_counter() - start)
    return turns / (best_s * 1e6)


@dataclass(frozen=True, slots=True)
class Load:
    """One row of the benchmark: which env, how many, and what the caller does between steps."""

    key: str
    title: str
    group: Group
    num_envs: int
    build: Callable[[int, float], EnvFn]
    """(env index, turns per µs) -> factory"""
    batch_size: int | None = None
    """Results per call in asynchronous use; None means all envs, in step."""
    has_policy: bool = False
    limit_per_s: float | None = None
    """Env-steps/s that no runner can pass, where that does not depend on the machine."""

    def env_fns(self, turns_per_us: float) -> list[EnvFn]:
        return [self.build(index, turns_per_us) for index in range(self.num_envs)]


def _cartpole(index: int, turns_per_us: float) -> EnvFn:
    return make_cartpole


def _noop(index: int, turns_per_us: float) -> EnvFn:
    return NoOpEnv


def _dict(index: int, turns_per_us: float) -> EnvFn:
    return DictEnv


def _uneven(index: int, turns_per_us: float) -> EnvFn:
    return partial(UnevenEnv, index)


def _spin(shape: tuple[int, ...], step_us: float, index: int, turns_per_us: float) -> EnvFn:
    return partial(SpinEnv, shape, round(step_us * turns_per_us))


_spin_100us = partial(_spin, (84, 84, 4), 100.0)
_spin_1ms = partial(_spin, (210, 160, 3), 1000.0)

_LOADS = (
    Load("cartpole-8", "CartPole, 8 envs", Group.CARTPOLE, 8, _cartpole),
    Load("cartpole-32", "CartPole, 32 envs", Group.CARTPOLE, 32, _cartpole),
    Load("spin100us-8", "100 µs step, 84x84x4, 8 envs", Group.SPIN, 8, _spin_100us),
    Load("spin100us-32", "100 µs step, 84x84x4, 32 envs", Group.SPIN, 32, _spin_100us),
    Load("spin1ms-8", "1 ms step, 210x160x3, 8 envs", Group.SPIN, 8, _spin_1ms),
    Load("spin1ms-32", "1 ms step, 210x160x3, 32 envs", Group.SPIN, 32, _spin_1ms),
    Load("dict-8", "Dict of 10 keys, 8 envs", Group.DICT, 8, _dict),
    Load("noop-8", "no-op env, 8 envs", Group.NOOP, 8, _noop),
    Load(
        "uneven-32",
        "uneven sleep, mean 2 ms, 32 envs, batch 8",
        Group.UNEVEN,
        32,
        _uneven,
        batch_size=8,
        limit_per_s=32 / UNEVEN_MEAN_S,
    ),
    Load("policy-cartpole-32", "CartPole + policy, 32 envs", Group.POLICY, 32, _cartpole, has_policy=True),
    Load("policy-spin100us-8", "100 µs step + policy, 8 envs", Group.POLICY, 8, _spin_100us, has_policy=True),
)

LOADS: dict[str, Load] = {load.key: load for load in _LOADS}
"""All loads, in the order of the report."""
