"""CliffWalking: walk from one end of a cliff to the other without falling off.

Four rows of twelve squares. Start and goal are the bottom corners, and everything between them is cliff; a step there
leads back to the start. One random number is drawn per reset and per step even where nothing is left to chance, since
Gymnasium does so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.envs.chance import one_of_three
from shoal.kernel import KernelEnv

ROWS = 4
COLUMNS = 12
START = (ROWS - 1) * COLUMNS
GOAL = ROWS * COLUMNS - 1
UP, RIGHT, DOWN, LEFT = 0, 1, 2, 3


class CliffWalking(KernelEnv):
    """Every step costs one, a fall a hundred.

    If ``is_slippery``, two steps out of three go to either side instead of ahead. The info has the probability of what
    happened as ``prob``.
    """

    observation_space = spaces.Discrete(ROWS * COLUMNS)
    action_space = spaces.Discrete(4)
    state = {"square": np.int64, "last_action": np.int64}
    info = {"prob": np.float64}
    constants = {"is_slippery": False}
    gymnasium_id = "CliffWalking-v1"
    render_fps = 4

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start at the left end of the cliff."""
        rng.random()
        env.square = START
        env.last_action = -1
        env.prob = 1.0
        obs[0] = START

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Walk up (0), right (1), down (2) or left (3)."""
        if env.is_slippery:
            env.prob = 1 / 3
            direction = (action + one_of_three(1 / 3, 1 / 3, 1 / 3, rng) - 1) % 4
        else:
            rng.random()
            env.prob = 1.0
            direction = action
        square = _neighbour(env.square, direction)
        has_fallen = START < square < GOAL
        env.square = START if has_fallen else square
        env.last_action = action
        obs[0] = env.square
        return -100.0 if has_fallen else -1.0, square == GOAL

    def pose(env: Any, twin: Any) -> None:
        """Put the twin into this state, for drawing."""
        twin.s = int(env.square)
        twin.lastaction = None if env.last_action < 0 else int(env.last_action)


def _neighbour(square: int, direction: int) -> int:
    """The square next to this one, or this one at the edge."""
    row, column = square // COLUMNS, square % COLUMNS
    if direction == UP:
        row = max(row - 1, 0)
    elif direction == RIGHT:
        column = min(column + 1, COLUMNS - 1)
    elif direction == DOWN:
        row = min(row + 1, ROWS - 1)
    elif direction == LEFT:
        column = max(column - 1, 0)
    return row * COLUMNS + column
