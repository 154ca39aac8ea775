"""CartPole: keep a pole upright on a cart by pushing the cart left or right.

The state is four numbers: the position and speed of the cart, the lean of the pole and its speed. They advance by Euler
steps of a fiftieth of a second, positions first, with the speeds from before the push.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.kernel import KernelEnv

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = POLE_MASS + 1.0
HALF_LENGTH = 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
PUSH = 10.0
STEP_S = 0.02
TRACK_END = 2.4
MAX_LEAN = 12 * 2 * math.pi / 360

# Twice the limits that end an episode, so that its last observation is inside.
_HIGH = np.array([TRACK_END * 2, np.inf, MAX_LEAN * 2, np.inf], np.float32)


class CartPole(KernelEnv):
    """One point per step for as long as the pole stands and the cart is on the track.

    With ``sutton_barto_reward`` nothing is paid until the episode fails, which costs one. ``reset`` draws all four
    numbers between its options ``low`` and ``high``.
    """

    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = spaces.Discrete(2)
    state = {"x": np.float64, "x_speed": np.float64, "lean": np.float64, "lean_speed": np.float64}
    constants = {"sutton_barto_reward": False}
    reset_options = {"low": -0.05, "high": 0.05}
    max_episode_steps = 500
    reward_threshold = 475.0
    gymnasium_id = "CartPole-v1"

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start close to upright, in the middle of the track."""
        env.x = rng.uniform(env.low, env.high)
        env.x_speed = rng.uniform(env.low, env.high)
        env.lean = rng.uniform(env.low, env.high)
        env.lean_speed = rng.uniform(env.low, env.high)
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Push left (0) or right (1)."""
        force = PUSH if action == 1 else -PUSH
        sine, cosine = math.sin(env.lean), math.cos(env.lean)
        drive = (force + POLE_MOMENT * (env.lean_speed * env.lean_speed) * sine) / TOTAL_MASS
        inertia = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS)
        lean_gain = (GRAVITY * sine - cosine * drive) / inertia
        x_gain = drive - POLE_MOMENT * lean_gain * cosine / TOTAL_MASS

        env.x += STEP_S * env.x_speed
        env.x_speed += STEP_S * x_gain
        env.lean += STEP_S * env.lean_speed
        env.lean_speed += STEP_S * lean_gain
        _observe(env, obs)

        failed = abs(env.x) > TRACK_END or abs(env.lean) > MAX_LEAN
        if env.sutton_barto_reward:
            return -1.0 if failed else 0.0, failed
        return 1.0, failed

    def pose(env: Any, twin: Any) -> None:
        """Put the twin into this state, for drawing."""
        twin.state = np.array([env.x, env.x_speed, env.lean, env.lean_speed])


def _observe(env: Any, obs: Any) -> None:
    obs[0] = env.x
    obs[1] = env.x_speed
    obs[2] = env.lean
    obs[3] = env.lean_speed
