"""Many envs that answer together, as wrappers see them: a pool, or a Gymnasium vector env.

    PoolSource      a shoal pool: any of its envs can be reset or stepped alone, in every autoreset mode
    VectorSource    a ``gymnasium.vector.VectorEnv``: resets of some envs by ``options["reset_mask"]``

``envpool_source`` has one for EnvPool's pools. All of them return rows of all envs. Where an episode has ended and the
next has begun in the same step, the row has the first observation of the new one, and ``finals`` the last of the old.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.batch import merge_infos
from shoal.errors import EnvCallError, TensorEnvError
from shoal.pool import Pool
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium import Space

    from shoal.batch import Batch

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Rows:
    """What all envs answered.

    Attributes:
        obs: Observations, batched as by Gymnasium. Where an episode has ended, it may be the first of the next one.
        reward: One per env.
        terminated: One per env.
        truncated: One per env.
        infos: Merged as by Gymnasium; None if they were not asked for.
        finals: ``row -> last observation`` of episodes whose env has already begun the next one.
        first_infos: The infos of the first observations of those next episodes.
    """

    obs: Any
    reward: npt.NDArray[Any]
    terminated: Mask
    truncated: Mask
    infos: dict[str, Any] | None
    finals: dict[int, Any]
    first_infos: dict[str, Any] | None = None


class Source:
    """What all sources have in common.

    Attributes:
        num_envs: How many envs there are.
        observation_space: What one env observes.
        action_space: What one env takes.
        owns_results: Whether results belong to the caller.
        resets_in_step: Whether the last step of an episode also begins the next one.
        steps_some: Whether some envs can be stepped without the others.
    """

    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]
    owns_results = False
    resets_in_step = False
    steps_some = True

    def reset(self, mask: Mask | None, seed: Any, options: Any, with_infos: bool) -> tuple[Any, dict[str, Any] | None]:
        """Reset all envs, or those in a mask; the observations of the others may be anything."""
        raise NotImplementedError

    def step(self, actions: Any, mask: Mask | None, with_infos: bool) -> Rows:
        """Step all envs, or those in a mask."""
        raise NotImplementedError

    def attribute(self, name: str) -> Any:
        """An attribute of the vector, or one per env."""
        raise NotImplementedError

    def render(self) -> Any:
        """One frame per env."""
        raise NotImplementedError


def source_of(env: Any) -> Source | None:
    """The source for a vector env, or None for a single env; a source is returned as it is.

    Raises:
        TensorEnvError: If it resets envs in the step after the last of an episode, and cannot be told not to: that
            step would be taken for a transition.
    """
    if isinstance(env, Source):
        return env
    if isinstance(env, Pool):
        return PoolSource(env)
    if not isinstance(env, VectorEnv):
        return None
    pool = getattr(env, "pool", None)
    if isinstance(pool, Pool):
        return PoolSource(pool)
    mode = (env.metadata or {}).get("autoreset_mode")
    # A wrapper around one of ours: envs of a pool can be reset at any time.
    is_ours = isinstance(getattr(env.unwrapped, "pool", None), Pool)
    if mode not in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP) and not is_ours:
        raise TensorEnvError(
            f"{type(env).__name__} with autoreset mode {getattr(mode, 'name', mode)} resets envs in a step that looks "
            "like a transition. Make it with autoreset_mode=AutoresetMode.DISABLED or SAME_STEP, or let shoal run the "
            "envs: GymEnv(name, num_envs=...), or GymWrapper(shoal.make_vec(...))"
        )
    return VectorSource(env)


class PoolSource(Source):
    """A pool."""

    def __init__(self, pool: Pool) -> None:
        if pool.spec.players:
            raise TensorEnvError(f"{pool.spec.id} has several players: wrap it with PettingZooWrapper")
        if pool.is_async:
            raise TensorEnvError(f"{pool!r} gives rows of some envs at a time: make it without batch_size")
        self.pool = pool
        # A pool with several blocks of rows hands out views of them.
        self.owns_results = pool.engine.config.blocks == 1
        self.resets_in_step = pool.autoreset is Autoreset.SAME_STEP
        self.num_envs = pool.num_envs
        self.observation_space = pool.spec.observation.space
        self.action_space = pool.spec.action.space

    def reset(self, mask: Mask | None, seed: Any, options: Any, with_infos: bool) -> tuple[Any, dict[str, Any] | None]:  # noqa: D102
        if mask is None:
            batch = self.pool.reset(seed, options)
            return batch.obs, self._infos(batch) if with_infos else None
        ids = np.flatnonzero(mask)
        if np.ndim(seed) == 1 and len(seed) == self.num_envs:
            seed = [seed[i] for i in ids]
        batch = self.pool.reset(seed, options, ids)
        everybody = self.pool.latest()
        return everybody.obs, self._infos(self._spread(batch, everybody)) if with_infos else None

    def step(self, actions: Any, mask: Mask | None, with_infos: bool) -> Rows:  # noqa: D102
        if mask is None:
            batch = self.pool.step(actions)
        else:
            ids = np.flatnonzero(mask)
            batch = self._spread(self.pool.step(take(actions, ids), ids), self.pool.latest())
        finals = {row: obs for row, (obs, _) in batch.finals.items()} if batch.finals else {}
        infos = firsts = None
        if with_infos:
            infos, firsts = self._infos(batch, last=True), self._infos(batch) if finals else None
        return Rows(batch.obs, batch.reward, batch.terminated, batch.truncated, infos, finals, firsts)

    def _spread(self, batch: Batch, everybody: Batch) -> Batch:
        """Rows of some envs, each in its place among all; the rows of the others say that nothing has happened."""
        ids = batch.env_id
        for name in ("reward", "terminated", "truncated"):
            column = np.zeros_like(getattr(everybody, name))
            column[ids] = getattr(batch, name)
            setattr(everybody, name, column)
        everybody.infos = [(int(ids[row]), info) for row, info in batch.infos]
        everybody.finals = {int(ids[row]): final for row, final in batch.finals.items()}
        return everybody

    def _infos(self, batch: Batch, last: bool = False) -> dict[str, Any]:
        """The infos by key; with ``last``, those of the old episode where one has ended and the next has begun."""
        own = dict(batch.infos)
        if last:
            own.update((row, info) for row, (_, info) in batch.finals.items())
        infos = merge_infos(len(batch), sorted(own.items()))
        infos.update(batch.fields)
        return infos

    def attribute(self, name: str) -> Any:  # noqa: D102
        own = _POOL_ATTRIBUTES.get(name)
        if own is not None:
            return own(self.pool)
        if name.startswith("_"):
            raise AttributeError(f"{self.pool!r} has no attribute {name!r}")
        try:
            return self.pool.get_attr(name)
        except EnvCallError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(str(error)) from error
            raise

    def render(self) -> Any:  # noqa: D102
        return self.pool.render()


# Attributes of a Gymnasium vector env that a pool has under another name, or has once rather than per env.
_POOL_ATTRIBUTES: dict[str, Callable[[Pool], Any]] = {
    "num_envs": lambda pool: pool.num_envs,
    "single_observation_space": lambda pool: pool.spec.observation.space,
    "single_action_space": lambda pool: pool.spec.action.space,
    "observation_space": lambda pool: batch_space(pool.spec.observation.space, pool.num_envs),
    "action_space": lambda pool: batch_space(pool.spec.action.space, pool.num_envs),
    "metadata": lambda pool: pool.spec.metadata,
    "render_mode": lambda pool: pool.spec.render_mode,
    "spec": lambda pool: pool.spec.registered,
    **{name: attrgetter(name) for name in ("call", "get_attr", "set_attr", "render", "stats", "snapshot", "restore")},
}


class VectorSource(Source):
    """A Gymnasium vector env."""

    steps_some = False

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.resets_in_step = (env.metadata or {}).get("autoreset_mode") is AutoresetMode.SAME_STEP
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space

    def reset(self, mask: Mask | None, seed: Any, options: Any, with_infos: bool) -> tuple[Any, dict[str, Any] | None]:  # noqa: D102
        if mask is not None:
            # In a new dict: Gymnasium removes the mask from the one it is given.
            options = {**(options or {}), "reset_mask": mask.copy()}
        obs, infos = self.env.reset(seed=seed, options=options)
        return obs, infos

    def step(self, actions: Any, mask: Mask | None, with_infos: bool) -> Rows:  # noqa: D102
        if mask is not None:
            raise TensorEnvError(
                f"{type(self.env).__name__} steps all its envs or none ('_step' is True for some only); "
                "envs on a pool can be stepped one by one: GymEnv(name, num_envs=...)"
            )
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        had = infos.get("_final_obs")
        if had is None or not had.any():
            return Rows(obs, reward, terminated, truncated, infos, {})
        finals = {int(row): infos["final_obs"][row] for row in np.flatnonzero(had)}
        firsts = {key: value for key, value in infos.items() if key not in _FINAL_KEYS}
        lasts = _overlaid(firsts, infos.get("final_info") or {}, had)
        return Rows(obs, reward, terminated, truncated, lasts, finals, firsts)

    def attribute(self, name: str) -> Any:  # noqa: D102
        env: Any = self.env
        if hasattr(env, name):
            return getattr(env, name)
        if name.startswith("_") or not hasattr(env, "get_attr"):
            raise AttributeError(f"{env} has no attribute {name!r}")
        return env.get_attr(name)

    def render(self) -> Any:  # noqa: D102
        return self.env.render()


_FINAL_KEYS = frozenset({"final_obs", "_final_obs", "final_info", "_final_info"})


def _overlaid(infos: dict[str, Any], last: dict[str, Any], rows: Mask) -> dict[str, Any]:
    """Infos with some rows replaced by those from the end of their episodes."""
    merged = dict(infos)
    for key, column in last.items():
        own = infos.get(key)
        if isinstance(column, dict) and isinstance(own, dict):
            merged[key] = _overlaid(own, column, rows)
        elif isinstance(column, np.ndarray) and isinstance(own, np.ndarray) and own.shape == column.shape:
            replaced = own.copy()
            replaced[rows] = column[rows]
            merged[key] = replaced
        else:
            merged[key] = column
    return merged


def take(actions: Any, ids: npt.NDArray[Any]) -> Any:
    """The actions of some envs."""
    if isinstance(actions, dict):
        return {key: take(value, ids) for key, value in actions.items()}
    if isinstance(actions, tuple) and actions and isinstance(actions[0], np.ndarray):
        return tuple(take(value, ids) for value in actions)
    return actions[ids] if isinstance(actions, np.ndarray) else [actions[i] for i in ids]
