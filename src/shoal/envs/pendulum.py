"""Pendulum: swing a rod up with a motor that is too weak to lift it, and hold it there.

The angle is zero when the rod points up and grows without bound; only the cost uses the wrapped angle. Torques arrive
as float32, and products with them stay float32 until they meet the state: that is how Gymnasium computes, and a
pendulum near its top does not forgive a different rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ArgumentError
from shoal.kernel import KernelEnv
from shoal.trigonometry import sine_cosine

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
STEP_S = 0.05
MASS = 1.0
LENGTH = 1.0
TURN = 2 * math.pi

_HIGH = np.array([1.0, 1.0, MAX_SPEED], np.float32)


class Pendulum(KernelEnv):
    """Every step costs the square of the angle, and a little for speed and torque; episodes never terminate.

    ``g`` is gravity. ``version`` 1 limits the speed before it turns the rod, 0 afterwards: they differ only at full
    speed. ``reset`` draws the angle between minus and plus its option ``x_init``, and the speed likewise by ``y_init``.
    """

    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
    state = {
        "angle": np.float64,
        "speed": np.float64,
        "torque": np.float32,
        "has_torque": np.bool_,
        # The sine in the last observation, and the angle that it belongs to: the next step begins with it.
        "sine": np.float64,
        "sine_of": np.float64,
    }
    constants = {"g": 10.0, "version": 1}
    reset_options = {"x_init": math.pi, "y_init": 1.0}
    max_episode_steps = 200
    gymnasium_id = "Pendulum-v1"
    render_fps = 30

    def __init__(self, *, version: int = 1, **options: Any) -> None:
        if version not in (0, 1):
            raise ArgumentError(f"version: expected 0 or 1, got {version!r}")
        super().__init__(version=version, **options)

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start at any angle, with little speed."""
        env.angle = rng.uniform(-env.x_init, env.x_init)
        env.speed = rng.uniform(-env.y_init, env.y_init)
        env.has_torque = False
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Apply a torque to the rod."""
        torque = np.float32(min(max(action[0], -MAX_TORQUE), MAX_TORQUE))
        angle, speed = env.angle, env.speed
        # A remainder would take longer than all the rest of the step.
        wrapped = angle - TURN * np.floor((angle + math.pi) / TURN)
        effort = np.float32(0.001) * (torque * torque)
        cost = wrapped * wrapped + 0.1 * (speed * speed) + effort

        sine = env.sine if env.sine_of == angle else sine_cosine(angle)[0]
        turn = np.float32(3.0 / (MASS * LENGTH * LENGTH)) * torque
        raw = speed + (3 * env.g / (2 * LENGTH) * sine + turn) * STEP_S
        speed = min(max(raw, -MAX_SPEED), MAX_SPEED)
        env.angle = angle + (raw if env.version == 0 else speed) * STEP_S
        env.speed = speed
        env.torque = torque
        env.has_torque = True
        _observe(env, obs)
        return -cost, False

    def pose(env: Any, twin: Any) -> None:
        """Put the twin into this state, with the last torque, for drawing."""
        twin.state = np.array([env.angle, env.speed])
        twin.last_u = env.torque if env.has_torque else None


def _observe(env: Any, obs: Any) -> None:
    angle = env.angle
    sine, cosine = sine_cosine(angle)
    env.sine = sine
    env.sine_of = angle
    obs[0] = cosine
    obs[1] = sine
    obs[2] = env.speed
