"""A pool from the EnvPool package as a source of rows: only its public methods are used, and it is not imported.

EnvPool spends the step after the last one of an episode on beginning the next episode. A caller that resets an ended
env never gets to that step, so no row is a transition that did not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from shoal.errors import ArgumentError, TensorEnvError
from shoal.faces.torchrl.gym_library import as_gymnasium
from shoal.faces.torchrl.vector_sources import Mask, Rows, Source, take

if TYPE_CHECKING:
    import numpy.typing as npt

# What pools with Gym's or Gymnasium's interface have; those with dm_env's have no spaces.
_SURFACE = ("all_env_ids", "config", "spec", "action_space", "reset", "step")


def is_envpool(env: Any) -> bool:
    """Whether something is an EnvPool pool with Gym's or Gymnasium's interface."""
    return all(hasattr(env, name) for name in _SURFACE)


class EnvPoolSource(Source):
    """An EnvPool pool that steps all its envs together.

    Args:
        env: The pool, made with ``env_type="gymnasium"`` or ``"gym"``.
    """

    render_mode = None

    def __init__(self, env: Any) -> None:
        config = env.config
        if config["batch_size"] not in (0, config["num_envs"]):
            raise TensorEnvError(f"the pool gives {config['batch_size']} rows at a time: make it without batch_size")
        if config["max_num_players"] != 1:
            raise TensorEnvError("the pool has several players, whose rows are not one per env")
        self.env = env
        self.num_envs = len(env.all_env_ids)
        self.observation_space = _with_true_bounds(as_gymnasium(env.spec.observation_space))
        self.action_space = env.spec.action_space
        self._latest: Any = None

    def reset(self, mask: Mask | None, seed: Any, options: Any, with_infos: bool) -> tuple[Any, dict[str, Any] | None]:  # noqa: D102
        if seed is not None or options:
            raise ArgumentError("seed, options: a pool of EnvPool's gets them when it is made")
        ids = None if mask is None else np.flatnonzero(mask).astype(np.int32)
        obs, infos = self.env.reset() if ids is None else self.env.reset(ids)
        return self._noted(obs, infos, ids), self._everybodys(infos, infos, ids)

    def step(self, actions: Any, mask: Mask | None, with_infos: bool) -> Rows:  # noqa: D102
        ids = None if mask is None else np.flatnonzero(mask).astype(np.int32)
        returned = self.env.step(actions) if ids is None else self.env.step(take(actions, ids), ids)
        obs, reward, terminated, truncated, infos = returned
        reward, terminated, truncated = (
            self._everybodys(column, infos, ids) for column in (reward, terminated, truncated)
        )
        told = self._everybodys(infos, infos, ids)
        return Rows(self._noted(obs, infos, ids), reward, terminated, truncated, told, {})

    def _noted(self, obs: Any, infos: dict[str, Any], ids: npt.NDArray[Any] | None) -> Any:
        """The latest observations of all envs, some of them new; they are remembered."""
        if ids is not None:
            latest, where = self._latest, infos["env_id"]
            obs = self._everybodys(obs, infos, ids) if latest is None else _overwritten(latest, obs, where)
        self._latest = obs
        return obs

    def _everybodys(self, rows: Any, infos: dict[str, Any], ids: npt.NDArray[Any] | None) -> Any:
        """Rows of some envs, each in its place among all; zeros elsewhere."""
        if ids is None:
            return rows
        if isinstance(rows, dict):
            return {key: self._everybodys(value, infos, ids) for key, value in rows.items()}
        column = np.zeros((self.num_envs, *rows.shape[1:]), rows.dtype)
        column[infos["env_id"]] = rows
        return column

    def attribute(self, name: str) -> Any:  # noqa: D102
        return getattr(self.env, name)

    def __repr__(self) -> str:
        return f"a pool of EnvPool's with {self.num_envs} envs"


def _overwritten(latest: Any, rows: Any, ids: npt.NDArray[Any]) -> Any:
    """A copy with some rows replaced."""
    if isinstance(latest, dict):
        return {key: _overwritten(column, rows[key], ids) for key, column in latest.items()}
    column = latest.copy()
    column[ids] = rows
    return column


def _with_true_bounds(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """A space without undeclared bounds: EnvPool gives a float the smallest positive number as its lower bound."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _with_true_bounds(part) for key, part in space.spaces.items()})
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    is_open = (space.low == limits.tiny) & (space.high == limits.max)
    low, high = np.where(is_open, -np.inf, space.low), np.where(is_open, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)
