"""Training on envs that crash, hang and raise: the run goes on, and every fault is one row that says so.

Nothing is lost and nothing comes twice. ``infos["fault"]`` has the kind, the message and the traceback of each.

    python examples/survive_faults.py
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np

import shoal

NUM_ENVS, NUM_STEPS = 8, 400


class Flaky(gym.Env[np.ndarray, int]):
    """A simulator of the kind one meets: now and then it raises, takes its process down, or never answers."""

    observation_space = gym.spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        luck = self.np_random.random()
        if luck < 0.003:
            raise RuntimeError("the licence server does not answer")
        if luck < 0.005:
            os.kill(os.getpid(), signal.SIGKILL)
        if luck < 0.0055:
            time.sleep(3600)
        self.steps += 1
        return self.observe(), 1.0, self.steps >= 50, False, {}

    def observe(self) -> np.ndarray:
        return np.array([self.steps, self.steps], np.float32)


envs = shoal.make_vec(
    Flaky,
    num_envs=NUM_ENVS,
    engine="process",
    num_workers=2,
    seed=3,
    step_timeout=0.5,
    on_fault=shoal.Restart(budget=None, backoff_s=0.0),
)
envs.reset()
faults: Counter[str] = Counter()
reward_sum = 0.0
for _ in range(NUM_STEPS):
    obs, rewards, terminated, truncated, infos = envs.step(np.zeros(NUM_ENVS, np.int64))
    reward_sum += rewards.sum()
    for i in np.flatnonzero(infos.get("_fault", [])):
        faults[infos["fault"]["kind"][i]] += 1
        assert truncated[i]
        assert rewards[i] == 0
stats = envs.stats()
envs.close()

print(f"{stats.steps} rows, {stats.episodes} episodes, reward {reward_sum:.0f}")
print(f"{stats.faults} faults, {stats.restarts} restarts:", dict(faults))
