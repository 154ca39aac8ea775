"""NChain: a row of places with little to gain at its start and much at its end.

Going forward pays nothing until the end is reached, while going back pays a little at once. Now and then the agent
slips and does the opposite. The rules are those of the first versions of Gym.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ArgumentError
from shoal.kernel import KernelEnv


class NChain(KernelEnv):
    """``large`` for every step forward at the end of the chain, ``small`` for every step back to its start.

    The chain has ``n`` places. ``slip`` is the probability that an action does the opposite.
    """

    action_space = spaces.Discrete(2)
    state = {"place": np.int64}
    constants = {"n": 5, "slip": 0.2, "small": 2.0, "large": 10.0}
    max_episode_steps = 1000

    def __init__(self, *, n: int = 5, **options: Any) -> None:
        if n < 1:
            raise ArgumentError(f"n: expected at least 1, got {n}")
        super().__init__(n=n, **options)
        self.observation_space = spaces.Discrete(n)

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start at the start."""
        env.place = 0
        obs[0] = 0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Go forward (0) or back to the start (1)."""
        slips = rng.random() < env.slip
        reward = 0.0
        if (action == 1) != slips:
            env.place = 0
            reward += env.small
        elif env.place < env.n - 1:
            env.place += 1
        else:
            reward += env.large
        obs[0] = env.place
        return reward, False
