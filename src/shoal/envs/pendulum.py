"""Pendulum: swing a rod up with a motor that is too weak to lift it, and hold it there.

The angle is zero when the rod points up and grows without bound; only the cost sees it wrapped. Torques arrive as
float32, and what they are multiplied with stays float32 until it meets the state: that is how Gymnasium's arithmetic
goes, and a pendulum near its top does not forgive another rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ArgumentError
from shoal.kernel import KernelEnv

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
STEP_S = 0.05
MASS = 1.0
LENGTH = 1.0

_HIGH = np.array([1.0, 1.0, MAX_SPEED], np.float32)


class Pendulum(KernelEnv):
    """Every step costs the square of the angle, and a little for speed and torque; no episode ends by itself.

    ``g`` is gravity. ``version`` 1 limits the speed before it turns the rod, 0 after: they differ at full speed only.
    ``reset`` draws the angle between minus and plus its option ``x_init``, the speed within ``y_init``.
    """

    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
    state = {"angle": np.float64, "speed": np.float64, "torque": np.float32, "has_torque": np.bool_}
    constants = {"g": 10.0, "version": 1}
    reset_options = {"x_init": math.pi, "y_init": 1.0}
    max_episode_steps = 200
    gymnasium_id = "Pendulum-v1"

    def __init__(self, *, version: int = 1, **options: Any) -> None:
        if version not in (0, 1):
            raise ArgumentError(f"version: expected 0 or 1, got {version!r}")
        super().__init__(version=version, **options)

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start anywhere, at little speed."""
        env.angle = rng.uniform(-env.x_init, env.x_init)
        env.speed = rng.uniform(-env.y_init, env.y_init)
        env.has_torque = False
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Turn with a torque."""
        env.torque = min(max(action[0], -MAX_TORQUE), MAX_TORQUE)
        env.has_torque = True
        effort = np.float32(0.001) * (env.torque * env.torque)
        turn = np.float32(3.0 / (MASS * LENGTH * LENGTH)) * env.torque
        wrapped = (env.angle + math.pi) % (2 * math.pi) - math.pi
        cost = wrapped * wrapped + 0.1 * (env.speed * env.speed) + effort

        raw = env.speed + (3 * env.g / (2 * LENGTH) * math.sin(env.angle) + turn) * STEP_S
        env.speed = min(max(raw, -MAX_SPEED), MAX_SPEED)
        env.angle += (raw if env.version == 0 else env.speed) * STEP_S
        _observe(env, obs)
        return -cost, False

    def pose(env: Any, twin: Any) -> None:
        """Show this rod, and the torque that moved it last."""
        twin.state = np.array([env.angle, env.speed])
        twin.last_u = env.torque if env.has_torque else None


def _observe(env: Any, obs: Any) -> None:
    obs[0] = math.cos(env.angle)
    obs[1] = math.sin(env.angle)
    obs[2] = env.speed
