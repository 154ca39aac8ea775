"""MountainCar: drive out of a valley with an engine that is too weak for the hill, by swinging back and forth.

Two envs in the same valley: one with three pedals, one with a throttle. The first keeps its state in float64. The
second rounds it to float32 after every step, as Gymnasium does, and its constants are rounded too: a car that reaches
the goal with one rounding may just miss it with another, which would be a different episode.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.kernel import KernelEnv

LEFT_END = -1.2
RIGHT_END = 0.6
MAX_SPEED = 0.07
GRAVITY = 0.0025
PEDAL = 0.001
PEDAL_GOAL = 0.5

SINGLE_LEFT_END = float(np.float32(LEFT_END))
SINGLE_RIGHT_END = float(np.float32(RIGHT_END))
SINGLE_MAX_SPEED = float(np.float32(MAX_SPEED))
SINGLE_THROTTLE = float(np.float32(0.0015))
SINGLE_THROTTLE_GOAL = float(np.float32(0.45))

_LOW = np.array([LEFT_END, -MAX_SPEED], np.float32)
_HIGH = np.array([RIGHT_END, MAX_SPEED], np.float32)


class MountainCar(KernelEnv):
    """Every step costs one until the car is at the goal.

    It has to arrive with at least ``goal_velocity``. ``reset`` draws the position between its options ``low`` and
    ``high``; the car is at rest.
    """

    observation_space = spaces.Box(_LOW, _HIGH, dtype=np.float32)
    action_space = spaces.Discrete(3)
    state = {"position": np.float64, "velocity": np.float64}
    constants = {"goal_velocity": 0.0}
    reset_options = {"low": -0.6, "high": -0.4}
    max_episode_steps = 200
    reward_threshold = -110.0
    gymnasium_id = "MountainCar-v0"
    render_fps = 30

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start at rest near the bottom of the valley."""
        env.position = rng.uniform(env.low, env.high)
        env.velocity = 0.0
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Accelerate to the left (0), not at all (1), or to the right (2)."""
        velocity = env.velocity + ((action - 1) * PEDAL - math.cos(3 * env.position) * GRAVITY)
        velocity = min(max(velocity, -MAX_SPEED), MAX_SPEED)
        position = min(max(env.position + velocity, LEFT_END), RIGHT_END)
        env.position = position
        env.velocity = 0.0 if position == LEFT_END and velocity < 0 else velocity
        _observe(env, obs)
        return -1.0, position >= PEDAL_GOAL and env.velocity >= env.goal_velocity

    def pose(env: Any, twin: Any) -> None:
        """Show this car."""
        twin.state = np.array([env.position, env.velocity])


class MountainCarContinuous(KernelEnv):
    """A hundred for the goal, less a tenth of the square of every throttle.

    The options are those of ``MountainCar``. The throttle is limited to one either way; its price is not.
    """

    observation_space = spaces.Box(_LOW, _HIGH, dtype=np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    state = {"position": np.float64, "velocity": np.float64, "is_first": np.bool_}
    constants = {"goal_velocity": 0.0}
    reset_options = {"low": -0.6, "high": -0.4}
    max_episode_steps = 999
    reward_threshold = 90.0
    gymnasium_id = "MountainCarContinuous-v0"
    render_fps = 30

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start at rest near the bottom of the valley."""
        env.position = rng.uniform(env.low, env.high)
        env.velocity = 0.0
        env.is_first = True
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Accelerate by a throttle from -1 to 1."""
        asked = np.float64(action[0])
        throttle = min(max(asked, -1.0), 1.0)
        # The position drawn by reset is not rounded: the first step uses all its digits.
        slope = 3 * env.position if env.is_first else _single(3 * env.position)
        push = _single(_single(throttle * SINGLE_THROTTLE) - _single(GRAVITY * math.cos(slope)))
        velocity = _single(env.velocity + push)
        velocity = min(max(velocity, -SINGLE_MAX_SPEED), SINGLE_MAX_SPEED)
        position = _single(env.position + velocity)
        position = min(max(position, SINGLE_LEFT_END), SINGLE_RIGHT_END)
        env.position = position
        env.velocity = 0.0 if position == SINGLE_LEFT_END and velocity < 0 else velocity
        env.is_first = False
        _observe(env, obs)

        arrived = position >= SINGLE_THROTTLE_GOAL and env.velocity >= env.goal_velocity
        price = 0.1 * (asked * asked)
        return (100.0 if arrived else 0.0) - price, arrived

    def pose(env: Any, twin: Any) -> None:
        """Show this car."""
        twin.state = np.array([env.position, env.velocity], np.float32)


def _single(value: float) -> float:
    """The nearest float32. Sums and products of two of these, rounded like this, are what float32 would give."""
    # Compiled, ``float`` would leave a float32 as it is.
    return np.float64(np.float32(value))


def _observe(env: Any, obs: Any) -> None:
    obs[0] = env.position
    obs[1] = env.velocity
