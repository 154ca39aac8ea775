"""Small Gymnasium envs for the tests of the wrappers, and what a plain loop over an env gives."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Echo(gym.Env[Any, Any]):
    """Observes a sample of its space, remembers its actions, and ends after some steps."""

    def __init__(self, observation: Any = None, action: Any = None, length: int = 5) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32) if observation is None else observation
        self.action_space = spaces.Discrete(2) if action is None else action
        self.length = length
        self.taken: list[Any] = []
        self.shown: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        self.taken.clear()
        self.shown.clear()
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.taken.append(action)
        return self._show(), float(self.steps), self.steps >= self.length, False, {}

    def _show(self) -> Any:
        self.shown.append(self.observation_space.sample())
        return self.shown[-1]


class Reusing(gym.Env[Any, Any]):
    """Writes every observation into one and the same array, and changes its actions in place."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.buffer = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.buffer[:] = 0
        return self.buffer, {"buffer": self.buffer}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.buffer += 1
        action *= 50
        return self.buffer, 0.0, False, False, {"buffer": self.buffer}


class Telling(gym.Env[Any, Any]):
    """Has something to say: always ``k``, and ``late`` once it was stepped."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {"k": np.array(0.0, np.float32)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info = {
            "k": np.array(self.steps, np.float32),
            "late": np.array([self.steps], np.float32),
            "count": self.steps,
            "nested": {"x": 2.0 * self.steps},
            "_private": np.array(1),
        }
        return np.full(3, 0.5, np.float32), 1.0, self.steps >= self.length, False, info


def plain_loop(env: Any, actions: Any, seed: int) -> list[tuple[Any, float, bool, bool, Any]]:
    """What an env gives in a loop that resets it when it is done.

    Each row has the observation before the step, reward and flags, and the observation after it.
    """
    env.reset(seed=seed)
    obs, _ = env.reset()
    rows = []
    for action in actions:
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, float(reward), bool(terminated), bool(truncated), following))
        obs = env.reset()[0] if terminated or truncated else following
    return rows
