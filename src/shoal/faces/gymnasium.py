"""Gymnasium's dialect: a pool as a ``gymnasium.vector.VectorEnv``, with ``send`` and ``recv`` added."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.batch import Batch, merge_infos
from shoal.errors import NotReset, StateError
from shoal.readiness import masked_ids
from shoal.seeding import are_several, seeds_for
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from shoal.pool import Pool
    from shoal.readiness import Ids, Options
    from shoal.seeding import Seed
    from shoal.stats import PoolStats

Step = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]

_OWN_KEYS = frozenset({"env_id", "elapsed_step", "first"})
_FINAL_KEYS = frozenset({"final_obs", "_final_obs", "final_info", "_final_info"})
_MODES = {
    Autoreset.NEXT_STEP: AutoresetMode.NEXT_STEP,
    Autoreset.SAME_STEP: AutoresetMode.SAME_STEP,
    Autoreset.DISABLED: AutoresetMode.DISABLED,
}


class ShoalVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool with Gymnasium's vector interface, made by ``shoal.make_vec``.

    It returns what ``gymnasium.vector.SyncVectorEnv`` returns for the same envs, seeds and actions. On top of that,
    ``infos`` always has ``env_id`` (whose rows these are), ``elapsed_step`` (steps taken in the episode that the
    reward belongs to) and ``first`` (the observation is the first of an episode).

    Attributes:
        pool: The pool behind it.

    Example:
        >>> import shoal
        >>> with shoal.make_vec("CartPole-v1", num_envs=3, engine="serial") as envs:
        ...     obs, infos = envs.reset(seed=1)
        >>> obs.shape, infos["env_id"].tolist()
        ((3, 4), [0, 1, 2])
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        spec = pool.spec
        self.num_envs = pool.num_envs
        self.single_observation_space = spec.observation.space
        self.single_action_space = spec.action.space
        self.observation_space = batch_space(spec.observation.space, pool.num_envs)
        self.action_space = batch_space(spec.action.space, pool.num_envs)
        self.autoreset_mode = _MODES[pool.autoreset]
        self.metadata = {**spec.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = spec.render_mode
        self.spec = spec.registered
        self._has_objects = spec.observation.has_objects
        self._has_warned = False
        self._not_at_reset = {field.name for field in spec.info if not field.at_reset}

    # ------------------------------------------------------------------ Gymnasium's own calls

    def reset(self, *, seed: Seed = None, options: Options = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those that are True in ``options["reset_mask"]``.

        With a mask, the other envs keep their latest observations, as in Gymnasium. ``options`` itself is never
        changed.

        Raises:
            NotReset: If one of the others was never reset, so that it has no latest observation.
            StateError: If one of the others is under way, so that its latest observation has not arrived yet.
        """
        if not isinstance(options, Mapping) or "reset_mask" not in options:
            obs, _, _, _, infos = self._step_tuple(self.pool.reset(seed, options))
            return obs, infos
        ids = masked_ids(options["reset_mask"], self.num_envs)
        if fresh := sorted(self.pool.never_reset - set(ids.tolist())):
            raise NotReset(f"options['reset_mask']: envs {fresh} were never reset: reset all of them first")
        if others := sorted(set(self.pool.under_way) - set(ids.tolist())):
            raise StateError(
                f"options['reset_mask']: envs {others} are under way, and are to be received first; "
                "async_reset(env_id=...) resets some envs beside them"
            )
        rest = {key: value for key, value in options.items() if key != "reset_mask"}
        batch = self.pool.reset(_masked_seed(seed, ids, self.num_envs), rest, ids)
        latest = self.pool.latest()
        latest.infos = [(int(batch.env_id[row]), info) for row, info in batch.infos]
        obs, _, _, _, infos = self._step_tuple(latest, options["reset_mask"])
        return obs, infos

    def step(self, actions: Any) -> Step:
        """Step all envs and wait for all of them."""
        return self._step_tuple(self.pool.step(actions))

    def render(self, env_id: Ids = None) -> tuple[Any, ...]:
        """A frame from each env, or from those in ``env_id``."""
        return self.pool.render(env_id)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute."""
        return self.pool.ask(name, args, kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each env; if it is callable, it is called, as in Gymnasium."""
        return self.pool.ask(name, (), {})

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env; a list or tuple has one value per env, anything else is for all."""
        self.pool.set_attr(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """End all envs and workers."""
        self.pool.close()

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each env."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's generator."""
        return self.get_attr("np_random_seed")

    # ------------------------------------------------------------------ what shoal adds

    def async_reset(self, seed: Seed = None, options: Options = None, env_id: Ids = None) -> None:
        """Start resetting all envs, or those in ``env_id``; ``recv`` returns their rows."""
        self.pool.async_reset(seed, options, env_id)

    def send(self, actions: Any, env_id: Ids = None) -> None:
        """Start one step for each env, or for those in ``env_id``."""
        self.pool.send(actions, env_id)

    def recv(self, timeout: float | None = None, min_batch: int | None = None, max_wait: float | None = None) -> Step:
        """Wait for the next rows, in the form of ``step``; ``infos["env_id"]`` says whose they are."""
        return self._step_tuple(self.pool.recv(timeout, min_batch, max_wait))

    def stats(self) -> PoolStats:
        """What the pool has done so far."""
        return self.pool.stats()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool!r})"

    def __enter__(self) -> ShoalVectorEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ translation

    def _step_tuple(self, batch: Batch, is_news: npt.NDArray[np.bool_] | None = None) -> Step:
        obs = tuples_for_objects(batch.obs) if self._has_objects else batch.obs
        infos = self._told(batch, is_news) if batch.infos or batch.finals or batch.fields else {}
        infos["env_id"] = batch.env_id
        infos["elapsed_step"] = batch.elapsed_step
        infos["first"] = batch.first
        return obs, batch.reward, batch.terminated, batch.truncated, infos

    def _told(self, batch: Batch, is_news: npt.NDArray[np.bool_] | None) -> dict[str, Any]:
        """What the envs have to say."""
        infos = merge_infos(len(batch), batch.infos) if batch.infos else {}
        if batch.finals:
            infos = _with_finals(infos, batch)
        if not _OWN_KEYS.isdisjoint(infos):
            self._leave_out(infos)
        if batch.fields:
            self._add_fields(infos, batch, is_news)
        return infos

    def _leave_out(self, infos: dict[str, Any]) -> None:
        """Drop what envs report under the names of shoal's own entries, and warn about it once."""
        taken = sorted(_OWN_KEYS & infos.keys())
        for key in taken:
            del infos[key]
            infos.pop(f"_{key}", None)
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self.pool.spec.id} reports {taken} in its infos. These are names of shoal's own entries, so what "
                "the env says is left out; a wrapper that renames the keys keeps it",
                stacklevel=5,  # where the pool was stepped
            )

    def _add_fields(self, infos: dict[str, Any], batch: Batch, is_news: npt.NDArray[np.bool_] | None) -> None:
        """Add the info fields that are columns, each with the mask of the rows that have it."""
        everyone = np.ones(len(batch), np.bool_) if is_news is None else is_news
        has_stepped = everyone & ~batch.first
        for name, column in batch.fields.items():
            mask = has_stepped if name in self._not_at_reset else everyone
            if not mask.any():
                continue
            if not mask.all():
                column[~mask] = 0
            infos[name] = column
            infos[f"_{name}"] = mask.copy()


def _with_finals(infos: dict[str, Any], batch: Batch) -> dict[str, Any]:
    """What the rows report, with the last observations and infos of episodes that have ended."""
    if not _FINAL_KEYS.isdisjoint(infos):  # envs report something of that name, too
        return merge_infos(len(batch), _finals_first(batch))
    last_obs, has_ended = np.empty(len(batch), object), np.zeros(len(batch), np.bool_)
    told = []
    for row, (obs, info) in sorted(batch.finals.items()):
        last_obs[row] = obs
        has_ended[row] = True
        if info:
            told.append((row, info))
    infos["final_obs"], infos["_final_obs"] = last_obs, has_ended
    infos["final_info"], infos["_final_info"] = merge_infos(len(batch), told) if told else {}, has_ended.copy()
    return infos


def _finals_first(batch: Batch) -> list[tuple[int, dict[str, Any]]]:
    """What the rows report, each row's finals before its info, as Gymnasium adds them.

    The order matters: the first row to bring a key decides the type of that key's array.
    """
    own, told = dict(batch.infos), []
    for row in sorted(batch.finals.keys() | own.keys()):
        if row in batch.finals:
            last_obs, last_info = batch.finals[row]
            told.append((row, {"final_obs": last_obs, "final_info": last_info}))
        if row in own:
            told.append((row, own[row]))
    return told


def _masked_seed(seed: Seed, ids: npt.NDArray[Any], num_envs: int) -> Seed:
    """The seeds of the envs in ``ids``; a list has one for every env, even when only some are reset."""
    if not are_several(seed):
        return seed
    everyone = seeds_for(seed, num_envs)
    return [everyone[i] for i in ids]


def tuples_for_objects(obs: Any) -> Any:
    """Batch whatever is not an array as a tuple, as Gymnasium does."""
    if isinstance(obs, dict):
        return {key: tuples_for_objects(value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(tuples_for_objects(value) for value in obs)
    return tuple(obs) if obs.dtype == object else obs
