"""Acrobot: two hanging links with a motor between them; swing the tip above the bar.

The first angle is that of the upper link, zero when it hangs; the second is that of the lower link relative to the
upper. The dynamics are those of Sutton and Barto's book, integrated by one Runge-Kutta step of a fifth of a second.
The system is chaotic: a difference in the last bit becomes a different episode. So the operations below are in
Gymnasium's order; only factors of one are left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.kernel import KernelEnv

STEP_S = 0.2
MAX_SPEED_1 = 4 * math.pi
MAX_SPEED_2 = 9 * math.pi
GRAVITY = 9.8
# For both links; masses, lengths and moments of inertia are one.
CENTRE = 0.5
CENTRE_SQUARED = CENTRE * CENTRE

_HIGH = np.array([1.0, 1.0, 1.0, 1.0, MAX_SPEED_1, MAX_SPEED_2], np.float32)


class Acrobot(KernelEnv):
    """Every step costs one until the tip is a link's length above the bar.

    The info has the two angles as ``state``. ``reset`` draws angles and speeds between its options ``low`` and
    ``high``.
    """

    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = spaces.Discrete(3)
    state = {"angle_1": np.float64, "angle_2": np.float64, "speed_1": np.float64, "speed_2": np.float64}
    info = {"state": (np.float32, 2)}
    reset_options = {"low": -0.1, "high": 0.1}
    max_episode_steps = 500
    reward_threshold = -100.0
    gymnasium_id = "Acrobot-v1"
    render_fps = 15

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start hanging, almost at rest."""
        # The first state is rounded to float32; later ones are not.
        env.angle_1 = np.float32(rng.uniform(env.low, env.high))
        env.angle_2 = np.float32(rng.uniform(env.low, env.high))
        env.speed_1 = np.float32(rng.uniform(env.low, env.high))
        env.speed_2 = np.float32(rng.uniform(env.low, env.high))
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Turn the joint by a torque of -1 (0), 0 (1) or 1 (2)."""
        torque = action - 1.0
        start = (env.angle_1, env.angle_2, env.speed_1, env.speed_2)
        slope_1 = _slope(start, torque)
        slope_2 = _slope(_along(start, slope_1, STEP_S / 2), torque)
        slope_3 = _slope(_along(start, slope_2, STEP_S / 2), torque)
        slope_4 = _slope(_along(start, slope_3, STEP_S), torque)
        end = _along(start, _weighed(slope_1, slope_2, slope_3, slope_4), STEP_S / 6)

        env.angle_1 = _wrapped(end[0])
        env.angle_2 = _wrapped(end[1])
        env.speed_1 = min(max(end[2], -MAX_SPEED_1), MAX_SPEED_1)
        env.speed_2 = min(max(end[3], -MAX_SPEED_2), MAX_SPEED_2)
        _observe(env, obs)
        is_up = -math.cos(env.angle_1) - math.cos(env.angle_2 + env.angle_1) > 1.0
        return 0.0 if is_up else -1.0, is_up

    def pose(env: Any, twin: Any) -> None:
        """Put the twin into this state, for drawing."""
        twin.state = np.array([env.angle_1, env.angle_2, env.speed_1, env.speed_2])


def _slope(at: Any, torque: float) -> tuple[float, float, float, float]:
    """How angles and speeds change."""
    angle_1, angle_2, speed_1, speed_2 = at
    sine, cosine = math.sin(angle_2), math.cos(angle_2)
    inertia_1 = CENTRE_SQUARED + (1.0 + CENTRE_SQUARED + 2 * CENTRE * cosine) + 1.0 + 1.0
    coupling = CENTRE_SQUARED + CENTRE * cosine + 1.0
    weight_2 = CENTRE * GRAVITY * math.cos(angle_1 + angle_2 - math.pi / 2)
    weight_1 = (CENTRE + 1.0) * GRAVITY * math.cos(angle_1 - math.pi / 2)
    own_swing = CENTRE * (speed_2 * speed_2) * sine
    joint_swing = 2 * CENTRE * speed_2 * speed_1 * sine
    load = -own_swing - joint_swing + weight_1 + weight_2
    pull = torque + coupling / inertia_1 * load - CENTRE * (speed_1 * speed_1) * sine - weight_2
    gain_2 = pull / (CENTRE_SQUARED + 1.0 - coupling * coupling / inertia_1)
    gain_1 = -(coupling * gain_2 + load) / inertia_1
    return speed_1, speed_2, gain_1, gain_2


def _along(start: Any, slope: Any, time_s: float) -> tuple[float, float, float, float]:
    """Where a constant slope leads in this time."""
    return (
        start[0] + time_s * slope[0],
        start[1] + time_s * slope[1],
        start[2] + time_s * slope[2],
        start[3] + time_s * slope[3],
    )


def _weighed(a: Any, b: Any, c: Any, d: Any) -> tuple[float, float, float, float]:
    """The weighted mean of the four Runge-Kutta slopes, times six."""
    return (
        a[0] + 2 * b[0] + 2 * c[0] + d[0],
        a[1] + 2 * b[1] + 2 * c[1] + d[1],
        a[2] + 2 * b[2] + 2 * c[2] + d[2],
        a[3] + 2 * b[3] + 2 * c[3] + d[3],
    )


def _wrapped(angle: float) -> float:
    """The same angle, at most half a turn either way."""
    while angle > math.pi:
        angle -= 2 * math.pi
    while angle < -math.pi:
        angle += 2 * math.pi
    return angle


def _observe(env: Any, obs: Any) -> None:
    obs[0] = math.cos(env.angle_1)
    obs[1] = math.sin(env.angle_1)
    obs[2] = math.cos(env.angle_2)
    obs[3] = math.sin(env.angle_2)
    obs[4] = env.speed_1
    obs[5] = env.speed_2
    env.state[0] = env.angle_1
    env.state[1] = env.angle_2
