"""Taxi: drive to a passenger, pick them up, and drop them off where they want to go.

    R: | : :G      Five rows of five squares. A colon can be driven through, a bar cannot.
     : | : :       The letters are the four stops, in the order R, G, Y, B.
     : : : :
     | : | :       An observation is one number:
    Y| : |B:       ((row * 5 + column) * 5 + passenger) * 4 + destination

The passenger is at stop 0 to 3 or, as 4, in the taxi. One random number is drawn per step even where nothing is left to
chance, since Gymnasium does so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.envs.chance import one_of_three
from shoal.kernel import KernelEnv

SIZE = 5
SOUTH, NORTH, EAST, WEST, PICK_UP, DROP_OFF = range(6)
IN_TAXI = 4
STOP_ROWS = (0, 0, 4, 4)
STOP_COLUMNS = (0, 4, 0, 3)
# By direction.
ROW_STEP = (1, -1, 0, 0)
COLUMN_STEP = (0, 0, 1, -1)
# The directions to the left and right of each heading.
LEFT_OF = (EAST, WEST, NORTH, SOUTH)
RIGHT_OF = (WEST, EAST, SOUTH, NORTH)
# By row and column: whether the way to the east is open.
OPEN_EAST = np.array([[c == ":" for c in row] for row in (":|::|", ":|::|", "::::|", "|:|:|", "|:|:|")])
# Passengers wait at a stop that is not their destination. Gymnasium adds up the probabilities of all such states one
# by one, and even the last digits of the sums decide which state is drawn.
START_STATES = np.array([state for state in range(500) if state // 4 % 5 not in (IN_TAXI, state % 4)])
START_SUMS = np.cumsum(np.full(len(START_STATES), 1 / len(START_STATES)))


class Taxi(KernelEnv):
    """Twenty for a passenger who arrives, minus ten for picking up or dropping off where that is wrong, else minus one.

    If ``is_rainy``, the taxi goes where it should with ``rainy_probability``, and otherwise to either side. A
    ``fickle_passenger`` may, with ``fickle_probability``, choose another destination when the taxi first moves with
    them. The info has the probability of what happened as ``prob``, and as ``action_mask`` which actions would have an
    effect.
    """

    observation_space = spaces.Discrete(500)
    action_space = spaces.Discrete(6)
    state = {
        "row": np.int64,
        "column": np.int64,
        "passenger": np.int64,
        "destination": np.int64,
        "may_change": np.bool_,
        "heading": np.int64,
    }
    info = {"prob": np.float64, "action_mask": (np.int8, 6)}
    constants = {
        "is_rainy": False,
        "fickle_passenger": False,
        "rainy_probability": 0.8,
        "fickle_probability": 0.3,
    }
    max_episode_steps = 200
    reward_threshold = 8.0
    gymnasium_id = "Taxi-v4"
    render_fps = 4

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start on any square, with the passenger at one stop and bound for another."""
        drawn = np.searchsorted(START_SUMS, rng.random(), side="right")
        start = START_STATES[min(drawn, len(START_STATES) - 1)]
        env.row = start // 100
        env.column = start // 20 % SIZE
        env.passenger = start // 4 % 5
        env.destination = start % 4
        env.may_change = False
        if env.fickle_passenger:
            env.may_change = rng.random() < env.fickle_probability
        env.heading = SOUTH
        env.prob = 1.0
        _observe(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Drive south (0), north (1), east (2) or west (3), pick up (4) or drop off (5)."""
        reward, terminated = -1.0, False
        if action < PICK_UP:
            _drive(env, action, rng)
        else:
            rng.random()
            env.prob = 1.0
            if action == PICK_UP:
                reward = _pick_up(env)
            else:
                reward, terminated = _drop_off(env)
        _observe(env, obs)
        return reward, terminated

    def pose(env: Any, twin: Any) -> None:
        """Put the twin into this state, with the taxi's last heading, for drawing."""
        twin.s = int(_number(env))
        twin.taxi_orientation = int(env.heading)
        twin.lastaction = None


def _drive(env: Any, action: int, rng: Any) -> None:
    """Drive one square, if the way is open; in rain perhaps to the side, but only if the way ahead is open."""
    row, column = env.row, env.column
    env.heading = action
    direction = action
    if env.is_rainy:
        aside = (1.0 - env.rainy_probability) / 2.0
        turn = one_of_three(env.rainy_probability, aside, aside, rng)
        env.prob = env.rainy_probability if turn == 0 else aside
        if turn > 0 and _is_open(row, column, action):
            direction = LEFT_OF[action] if turn == 1 else RIGHT_OF[action]
    else:
        rng.random()
        env.prob = 1.0
    if not _is_open(row, column, direction):
        return
    env.row += ROW_STEP[direction]
    env.column += COLUMN_STEP[direction]
    if env.may_change and env.passenger == IN_TAXI:
        env.may_change = False
        other = rng.integers(0, 3)
        env.destination = other + 1 if other >= env.destination else other


def _is_open(row: int, column: int, direction: int) -> bool:
    """Whether the way in this direction is open."""
    if direction == SOUTH:
        return row < SIZE - 1
    if direction == NORTH:
        return row > 0
    if direction == EAST:
        return bool(OPEN_EAST[row, column])
    return column > 0 and bool(OPEN_EAST[row, column - 1])


def _pick_up(env: Any) -> float:
    if _stop_at(env.row, env.column) != env.passenger:
        return -10.0
    env.passenger = IN_TAXI
    return -1.0


def _drop_off(env: Any) -> tuple[float, bool]:
    stop = _stop_at(env.row, env.column)
    if env.passenger != IN_TAXI or stop < 0:
        return -10.0, False
    env.passenger = stop
    if stop == env.destination:
        return 20.0, True
    return -1.0, False


def _stop_at(row: int, column: int) -> int:
    """The stop on this square, or -1."""
    for stop in range(4):
        if row == STOP_ROWS[stop] and column == STOP_COLUMNS[stop]:
            return stop
    return -1


def _number(env: Any) -> Any:
    return ((env.row * SIZE + env.column) * 5 + env.passenger) * 4 + env.destination


def _observe(env: Any, obs: Any) -> None:
    obs[0] = _number(env)
    for direction in range(4):
        env.action_mask[direction] = _is_open(env.row, env.column, direction)
    stop = _stop_at(env.row, env.column)
    env.action_mask[PICK_UP] = stop >= 0 and stop == env.passenger
    env.action_mask[DROP_OFF] = stop >= 0 and env.passenger == IN_TAXI
