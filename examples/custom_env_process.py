"""An env of your own in worker processes, and what you see when one of its copies fails.

The class is defined in this very script: what a worker cannot import is sent to it by value.

    python examples/custom_env_process.py
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

import shoal
from shoal.errors import FaultError

SIZE = 8
MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])


class Forage(gym.Env[dict[str, np.ndarray], int]):
    """Walk on a grid to a piece of food, which turns up elsewhere when it is eaten.

    Args:
        trap: A square on which the env fails, to show how faults are reported; None for a sound env.
    """

    action_space = gym.spaces.Discrete(len(MOVES))
    observation_space = gym.spaces.Dict(
        {
            "me": gym.spaces.Box(0, SIZE - 1, (2,), np.int64),
            "food": gym.spaces.Box(0, SIZE - 1, (2,), np.int64),
        }
    )

    def __init__(self, trap: tuple[int, int] | None = None) -> None:
        self.trap = trap

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.me, self.food = self.np_random.integers(SIZE, size=(2, 2))
        return self.observe(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        self.me = np.clip(self.me + MOVES[action], 0, SIZE - 1)
        if self.trap == tuple(self.me):
            raise RuntimeError(f"stepped into the trap at {self.trap}")
        has_eaten = bool((self.me == self.food).all())
        if has_eaten:
            self.food = self.np_random.integers(SIZE, size=2)
        return self.observe(), float(has_eaten), False, False, {}

    def observe(self) -> dict[str, np.ndarray]:
        return {"me": self.me.copy(), "food": self.food.copy()}


def policy(obs: dict[str, np.ndarray]) -> np.ndarray:
    """Go towards the food, along the longer of the two ways first."""
    way = obs["food"] - obs["me"]
    along_x = np.abs(way[:, 0]) > np.abs(way[:, 1])
    return np.where(along_x, np.where(way[:, 0] > 0, 1, 3), np.where(way[:, 1] > 0, 0, 2))


# Episodes have no end of their own: max_episode_steps truncates them.
with shoal.make_vec(Forage, 8, engine="process", num_workers=2, max_episode_steps=100) as envs:
    print(envs)
    obs, infos = envs.reset(seed=1)
    eaten = 0.0
    for _ in range(500):
        obs, rewards, terminated, truncated, infos = envs.step(policy(obs))
        eaten += rewards.sum()
    print(f"{eaten:.0f} pieces of food in {envs.stats().episodes} episodes")

# The same with a trap in one env of four. The error names the env, and the other three are unharmed.
traps = [{"trap": None}, {"trap": None}, {"trap": (4, 4)}, {"trap": None}]
with shoal.make_vec(Forage, 4, engine="process", num_workers=2, env_kwargs=traps) as envs:
    obs, infos = envs.reset(seed=1)
    try:
        for _ in range(500):
            obs, rewards, terminated, truncated, infos = envs.step(policy(obs))
    except FaultError as fault:
        print(f"{type(fault).__name__}: {fault}")
