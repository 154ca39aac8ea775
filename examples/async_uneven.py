"""Envs whose steps take very different times: waiting for all of them, or answering those that are ready.

A synchronous step is as slow as its slowest env. With ``batch_size`` smaller than ``num_envs``, ``recv`` returns
as soon as that many rows are there, and the slow envs go on meanwhile.

    python examples/async_uneven.py
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

import shoal

NUM_ENVS, BATCH_SIZE, NUM_STEPS = 32, 8, 4000


class RemoteEnv(gym.Env[np.ndarray, int]):
    """An env that waits for something outside Python: here 2 ms on average, and now and then ten times as long."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(0.002 * self.np_random.lognormal(-0.5, 1.0))
        self.steps += 1
        return self.observe(), float(action), self.steps >= 50, False, {}

    def observe(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)


def policy(obs: np.ndarray) -> np.ndarray:
    return (obs[:, 0] > 0).astype(np.int64)


def in_step() -> float:
    """Env steps per second when every step waits for all envs."""
    with shoal.make_vec(RemoteEnv, NUM_ENVS, engine="thread") as envs:
        obs, _ = envs.reset(seed=1)
        start = time.perf_counter()
        for _ in range(NUM_STEPS // NUM_ENVS):
            obs, _, _, _, _ = envs.step(policy(obs))
        return NUM_STEPS / (time.perf_counter() - start)


def out_of_step() -> float:
    """Env steps per second when the first envs that are ready get their actions."""
    with shoal.make_vec(RemoteEnv, NUM_ENVS, engine="thread", batch_size=BATCH_SIZE) as envs:
        obs, _ = envs.reset(seed=1)
        envs.send(policy(obs))  # every env has something to do
        start = time.perf_counter()
        for _ in range(NUM_STEPS // BATCH_SIZE):
            obs, _, _, _, infos = envs.recv()
            envs.send(policy(obs), infos["env_id"])  # the rows say which envs they are from
        return NUM_STEPS / (time.perf_counter() - start)


print(f"waiting for all {NUM_ENVS} envs:    {in_step():7.0f} steps/s")
print(f"answering the first {BATCH_SIZE} of them: {out_of_step():7.0f} steps/s")
