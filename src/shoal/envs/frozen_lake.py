"""FrozenLake: cross a lake from start to goal without falling into a hole, on ice that has a will of its own.

A map is a list of strings, one letter per tile: S where episodes start, F frozen, H a hole, G the goal. It is kept in
the env's record, as letter codes, beside the other options. One random number is drawn per reset and per step even
where nothing is left to chance, since Gymnasium does so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from shoal.envs.chance import one_of_three
from shoal.errors import ArgumentError
from shoal.kernel import KernelEnv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAPS = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"),
}
START, FROZEN, HOLE, GOAL = (ord(letter) for letter in "SFHG")
LEFT, DOWN, RIGHT, UP = 0, 1, 2, 3


class FrozenLake(KernelEnv):
    """One point for the goal, by default; a hole ends the episode without a point.

    The lake is ``desc``, or else one of ``MAPS``, chosen by ``size`` (4 or 8) or by ``map_name``. If ``is_slippery``, a
    step goes where it should with probability ``success_rate``, and otherwise to either side. ``reward_schedule`` is
    what goal, hole and ice pay. The info has the probability of what happened as ``prob``.
    """

    action_space = spaces.Discrete(4)
    state = {"tile": np.int64, "last_action": np.int64}
    info = {"prob": np.float64}
    gymnasium_id = "FrozenLake-v1"
    render_fps = 4

    def __init__(
        self,
        *,
        desc: Sequence[str] | None = None,
        map_name: str | None = "4x4",
        size: int | None = None,
        is_slippery: bool = True,
        success_rate: float = 1 / 3,
        reward_schedule: Sequence[float] = (1, 0, 0),
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if len(reward_schedule) != 3:
            raise ArgumentError(f"reward_schedule: expected what goal, hole and ice pay, got {reward_schedule!r}")
        letters = _letters(desc, map_name if size is None else f"{size}x{size}")
        self.constants = {
            "letters": letters,
            "starts": int((letters == START).sum()),
            "is_slippery": bool(is_slippery),
            "success_rate": float(success_rate),
            "reward_schedule": np.array(reward_schedule, np.float64),
        }
        self.observation_space = spaces.Discrete(letters.size)

    @staticmethod
    def settled_options(options: Mapping[str, Any]) -> dict[str, Any]:
        """The size of a lake that is chosen by its name."""
        chosen = MAPS.get(options["map_name"]) if options["desc"] is None else None
        return {} if chosen is None else {"size": len(chosen)}

    def twin_kwargs(self) -> dict[str, Any]:
        """The arguments with which Gymnasium's env draws this lake."""
        return {"desc": [bytes(row).decode() for row in self.constants["letters"]]}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        """Start on a tile marked as a start."""
        env.tile = _any_start(env, rng)
        env.last_action = -1
        env.prob = 1.0
        obs[0] = env.tile

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        """Walk left (0), down (1), right (2) or up (3)."""
        if env.is_slippery:
            aside = (1.0 - env.success_rate) / 2.0
            turn = one_of_three(aside, env.success_rate, aside, rng) - 1
            env.prob = env.success_rate if turn == 0 else aside
            direction = (action + turn) % 4
        else:
            rng.random()
            env.prob = 1.0
            direction = action
        row, column = _neighbour(env, direction)
        env.tile = row * env.letters.shape[1] + column
        env.last_action = action
        obs[0] = env.tile

        letter = env.letters[row, column]
        if letter == GOAL:
            return env.reward_schedule[0], True
        if letter == HOLE:
            return env.reward_schedule[1], True
        return env.reward_schedule[2], False

    def pose(env: Any, twin: Any) -> None:
        """Put the twin into this state, for drawing."""
        twin.s = int(env.tile)
        twin.lastaction = None if env.last_action < 0 else int(env.last_action)


def _letters(desc: Any, map_name: str | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A map as an array of letter codes."""
    if desc is None:
        if map_name not in MAPS:
            raise ArgumentError(f"map_name, size: expected one of {sorted(MAPS)}, or a map as desc, got {map_name!r}")
        desc = MAPS[map_name]
    try:
        letters = np.ascontiguousarray(np.asarray(desc, dtype="c")).view(np.uint8)
    except ValueError:
        raise ArgumentError(f"desc: expected strings of equal length, got {desc!r}") from None
    if letters.ndim != 2 or not np.isin(letters, (START, FROZEN, HOLE, GOAL)).all():
        raise ArgumentError(f"desc: expected rows of the letters S, F, H and G, got {desc!r}")
    if not (letters == START).any():
        raise ArgumentError(f"desc: there is no S to start from in {desc!r}")
    return letters


def _any_start(env: Any, rng: Any) -> int:
    """One of the starts, all equally likely."""
    luck = rng.random()
    rows, columns = env.letters.shape
    reached = 0.0
    for tile in range(rows * columns):
        if env.letters[tile // columns, tile % columns] == START:
            reached += 1.0 / env.starts
            if reached > luck:
                return tile
    return 0


def _neighbour(env: Any, direction: int) -> tuple[int, int]:
    """Row and column of the tile next to the walker's, or of the walker's own at the edge."""
    rows, columns = env.letters.shape
    row, column = env.tile // columns, env.tile % columns
    if direction == LEFT:
        column = max(column - 1, 0)
    elif direction == DOWN:
        row = min(row + 1, rows - 1)
    elif direction == RIGHT:
        column = min(column + 1, columns - 1)
    elif direction == UP:
        row = max(row - 1, 0)
    return row, column
