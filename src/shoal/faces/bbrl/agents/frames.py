"""What env agents write at one time step: observations as columns, and the accounts of episodes.

Types of observations in a workspace:

    floats of any width           float32
    bool, uint8                   as they are: masks stay masks, pictures stay small
    other whole numbers           int64
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from shoal.errors import WorkspaceError
from shoal.faces.bbrl.transitions import final_name

if TYPE_CHECKING:
    from collections.abc import Iterable

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)
_KEPT = (_FLOAT32, _INT64, np.dtype(np.bool_), np.dtype(np.uint8))


def columns_of(obs: Any, name: str) -> dict[str, npt.NDArray[Any]]:
    """A batch of observations as columns: a single one, or one for each leaf of a dict, named by its path.

    Example:
        >>> list(columns_of({"a": np.zeros(2), "b": {"c": np.zeros(2)}}, "env/env_obs"))
        ['env/env_obs/a', 'env/env_obs/b/c']
    """
    if obs.__class__ is np.ndarray:
        return {name: _column(obs, name)}
    if isinstance(obs, dict):
        return {path: part for key, value in obs.items() for path, part in columns_of(value, f"{name}/{key}").items()}
    raise unfit(name, obs)


def _column(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    dtype = array.dtype
    if dtype in _KEPT:
        return array
    if dtype.kind == "f":
        return array.astype(_FLOAT32)
    if dtype.kind in "iu":
        return array.astype(_INT64)
    raise unfit(name, array)


def final_columns(
    columns: dict[str, npt.NDArray[Any]], finals: Iterable[tuple[int, Any]]
) -> dict[str, npt.NDArray[Any]]:
    """The columns of ``final_obs``: the last observation in rows whose episode has ended, elsewhere the current one.

    Args:
        columns: The columns of ``env_obs``.
        finals: Rows whose episode has ended, each with its last observation.
    """
    found = {final_name(name): column.copy() for name, column in columns.items()}
    for row, obs in finals:
        for name, value in _leaves(obs, "final_obs"):
            found[name][row] = value
    return found


def _leaves(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, part in value.items() for leaf in _leaves(part, f"{name}/{key}")]
    return [(name, value)]


def unfit(name: str, value: Any) -> WorkspaceError:
    """The error for an observation that no tensor can hold."""
    if isinstance(value, tuple):
        return WorkspaceError(
            f"{name}: the env's observation is a tuple, and a workspace has names; wrap the env so that it is a dict"
        )
    return WorkspaceError(f"{name}: expected an array, a number or a dict of them, got {value!r:.80}")


def seen_space(value: Any, declared: Any, name: str) -> Space[Any]:
    """The space of an observation: the declared one where it fits, else one made from the observation itself.

    Agents in BBRL's dialect take whatever observations they get, so the space that an env declares may be wrong.
    """
    if isinstance(value, dict):
        known = declared.spaces if isinstance(declared, spaces.Dict) else {}
        parts = {key: seen_space(part, known.get(key), f"{name}/{key}") for key, part in value.items()}
        return spaces.Dict(OrderedDict(parts))  # in the env's own order: Gymnasium would sort the keys of a plain dict
    if isinstance(value, tuple):
        raise unfit(name, value)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise unfit(name, value)
    if isinstance(declared, _ARRAY_SPACES) and declared.shape == array.shape:
        kind = np.dtype(declared.dtype).kind
        if kind == array.dtype.kind or {kind, array.dtype.kind} == {"i", "u"}:
            return declared
    if array.dtype.kind == "b":
        return spaces.Box(0, 1, array.shape, np.bool_)
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, array.shape, np.result_type(array.dtype, np.float32))
    dtype = array.dtype if array.dtype == np.uint8 else np.dtype(np.int64)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, array.shape, dtype)


@dataclass
class Frame:
    """One time step, with a row per env.

    Attributes:
        obs: Observations as columns, by name.
        reward: float32; the reward of the step that led here.
        terminated: bool.
        truncated: bool.
        done: bool; either of the two.
        cumulated_reward: float32; the sum of rewards in the episode, including this one.
        timestep: int64; steps since the first state of the episode.
    """

    obs: dict[str, npt.NDArray[Any]]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    done: npt.NDArray[np.bool_]
    cumulated_reward: npt.NDArray[np.float32]
    timestep: npt.NDArray[np.int64]


class Accounts:
    """Adds up the rewards of episodes. The sums are float64, so that long episodes lose no precision."""

    def __init__(self, num_envs: int) -> None:
        self._return_N = np.zeros(num_envs)

    def begin(self, obs: dict[str, npt.NDArray[Any]]) -> Frame:
        """The frame after a reset of all envs."""
        self._return_N[:] = 0
        n = len(self._return_N)
        return Frame(
            obs,
            reward=np.zeros(n, np.float32),
            terminated=np.zeros(n, np.bool_),
            truncated=np.zeros(n, np.bool_),
            done=np.zeros(n, np.bool_),
            cumulated_reward=np.zeros(n, np.float32),
            timestep=np.zeros(n, np.int64),
        )

    def go_on(
        self,
        last: Frame,
        obs: dict[str, npt.NDArray[Any]],
        reward: npt.NDArray[Any],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        timestep: npt.NDArray[Any],
    ) -> Frame:
        """The frame after a step of all envs; where the last frame ended an episode, a new one has begun."""
        sums = self._return_N
        sums[last.done] = 0
        sums += reward
        return Frame(
            obs,
            reward.astype(np.float32),
            terminated,
            truncated,
            terminated | truncated,
            sums.astype(np.float32),
            timestep.astype(np.int64),
        )

    def go_on_with(
        self,
        rows: npt.NDArray[np.intp],
        last: Frame,
        obs: dict[str, npt.NDArray[Any]],
        reward: npt.NDArray[Any],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        timestep: npt.NDArray[Any],
    ) -> Frame:
        """The frame after a step of some envs; the others stay as they are, and get no reward."""
        self._return_N[rows] += reward
        return Frame(
            {name: _replaced(column, rows, obs[name]) for name, column in last.obs.items()},
            _replaced(np.zeros_like(last.reward), rows, reward),
            _replaced(last.terminated, rows, terminated),
            _replaced(last.truncated, rows, truncated),
            _replaced(last.done, rows, terminated | truncated),
            _replaced(last.cumulated_reward, rows, self._return_N[rows]),
            _replaced(last.timestep, rows, timestep),
        )

    def stay(self, last: Frame) -> Frame:
        """The frame after a step of no env."""
        return replace(last, reward=np.zeros_like(last.reward))


def _replaced(column: npt.NDArray[Any], rows: npt.NDArray[np.intp], news: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column = column.copy()
    column[rows] = news
    return column
