"""Catch: a ball falls straight down a board, and a paddle on the bottom row should be under it.

The board is the observation: ones where the ball and the paddle are, zeros elsewhere. The game is that of
DeepMind's bsuite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ArgumentError
from shoal.kernel import KernelEnv


class Catch(KernelEnv):
    """One point for a ball caught, minus one for a ball missed, when it arrives; nothing before.

    ``height`` and ``width`` give the size of the board.
    """

    action_space = spaces.Discrete(3)
    state = {"ball_row": np.int64, "ball_column": np.int64, "paddle": np.int64}
    constants = {"height": 10, "width": 5}

    def __init__(self, *, height: int = 10, width: int = 5, render_mode: str | None = None) -> None:
        if height < 2 or width < 1:
            raise ArgumentError(f"height, width: expected at least 2 and 1, got {height} and {width}")
        super().__init__(height=height, width=width, render_mode=render_mode)
        self.observation_space = spaces.Box(0.0, 1.0, (height, width), np.float32)

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Drop a ball anywhere; the paddle waits in the middle."""
        env.ball_row = 0
        env.ball_column = rng.integers(0, env.width)
        env.paddle = env.width // 2
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Move the paddle left (0), not at all (1) or right (2), while the ball falls by one row."""
        env.paddle = min(max(env.paddle + action - 1, 0), env.width - 1)
        env.ball_row += 1
        _observe(env, obs)
        if env.ball_row < env.height - 1:
            return 0.0, False
        return 1.0 if env.ball_column == env.paddle else -1.0, True


def _observe(env: Any, obs: Any) -> None:
    for row in range(env.height):
        for column in range(env.width):
            obs[row, column] = 0.0
    obs[env.ball_row, env.ball_column] = 1.0
    obs[env.height - 1, env.paddle] = 1.0
