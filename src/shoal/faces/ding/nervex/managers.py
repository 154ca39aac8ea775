"""Managers that return results as lists, or by id: no launch, no states, no automatic resets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.adapters.nervex_env import MakeNervexEnv
from shoal.build import make_pool
from shoal.errors import FaultError, ManagerState, UnknownEnv, WrongSetting
from shoal.faces.ding.failures import either_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.batch import Batch

_log = logging.getLogger("shoal")


class BaseEnvManager:
    """Many envs, one after another.

    Calls without ``env_id`` are for all envs and return lists; calls with ids are for those envs and return dicts. What
    an env raises is raised both as a ``FaultError`` and under its own class; no call has a deadline.

    Args:
        env_fn: Makes an env from a config.
        env_cfg: One config per env.
        env_num: How many there are.

    Example:
        >>> from collections import namedtuple
        >>> class Steps:
        ...     def __init__(self, cfg):
        ...         self.k = cfg
        ...
        ...     def reset(self):
        ...         return self.k
        ...
        ...     def step(self, action):
        ...         return namedtuple("T", "obs done")(self.k + action, False)
        ...
        ...     def close(self):
        ...         pass
        ...
        ...     def pack(self, timesteps=None, obs=None):
        ...         return obs if timesteps is None else timesteps
        ...
        ...     def unpack(self, action):
        ...         return [{"action": a} for a in action]
        >>> manager = BaseEnvManager(Steps, [10, 20], 2)
        >>> manager.reset(), manager.step([1], env_id=[1])[1].obs
        ([10, 20], 21)
        >>> manager.close()
    """

    _engine: ClassVar[str] = "serial"

    def __init__(self, env_fn: Callable[[Any], Any], env_cfg: Iterable[Any], env_num: int) -> None:
        configs = list(env_cfg)
        if len(configs) != env_num:
            raise WrongSetting(f"env_cfg: expected {env_num} configs (env_num), got {len(configs)}")
        self._env_num = env_num
        self._here: tuple[Any, ...] = ()  # the envs that are in this process
        self._env_done = dict.fromkeys(range(env_num), False)
        with either_class():
            self._pool = make_pool(
                [MakeNervexEnv(env_fn, cfg) for cfg in configs],
                engine=self._engine,
                name=getattr(env_fn, "__name__", type(env_fn).__name__),
                num_workers=env_num if self._engine == "process" else None,
                autoreset="disabled",
                check="off",
                on_nan="pass",
                allow_pickle=True,
                construct_timeout=None,
                reset_timeout=None,
                step_timeout=None,
            )
        self._packer = self._first_env(env_fn, configs[0])

    def _first_env(self, env_fn: Callable[[Any], Any], cfg: Any) -> Any:
        """The env whose ``pack`` and ``unpack`` are used."""
        self._here = self._pool.get_attr("env")
        return self._here[0]

    @property
    def env_num(self) -> int:
        """How many envs there are."""
        return self._env_num

    @property
    def env_done(self) -> dict[int, bool]:
        """Whether the episode of each env is over, by its id."""
        return self._env_done

    @property
    def all_done(self) -> bool:
        """Whether the episodes of all envs are over."""
        return all(self._env_done.values())

    def reset(
        self, reset_param: Sequence[Mapping[str, Any] | None] | None = None, env_id: Sequence[int] | None = None
    ) -> Any:
        """Reset all envs, or those in ``env_id``.

        Args:
            reset_param: Keywords for the reset of each of them; None for none.
            env_id: Which envs to reset.

        Returns:
            What the env's ``pack(obs=...)`` makes of the observations.
        """
        ids = self._ids(env_id, None if reset_param is None else len(reset_param), "reset_param")
        keywords = [None] * len(ids) if reset_param is None else [dict(own or {}) or None for own in reset_param]
        for i, own in zip(ids, keywords, strict=True):
            self._pool.async_reset(options=own, env_id=[i])
        found = self._gather(ids)
        self._env_done.update(dict.fromkeys(ids, False))
        return self._packer.pack(obs=_shaped(found, env_id))

    def step(self, action: Any, env_id: Sequence[int] | None = None) -> Any:
        """Step all envs, or those in ``env_id``, whether or not their episodes are over.

        Returns:
            What the env's ``pack(timesteps=...)`` makes of the timesteps.
        """
        self._check_open()
        keywords = self._packer.unpack(action)
        ids = self._ids(env_id, len(keywords), "action")
        if ids:
            self._pool.send(keywords, ids)
        found = self._gather(ids)
        self._env_done.update((i, _is_over(timestep.done)) for i, timestep in found.items())
        return self._packer.pack(timesteps=_shaped(found, env_id))

    def seed(self, seed: Sequence[Any], env_id: Sequence[int] | None = None) -> Any:
        """Seed all envs, or those in ``env_id``, right away."""
        ids = self._ids(env_id, len(seed), "seed")
        with either_class():
            answers = {i: self._pool.call("seed", own, env_id=[i])[0] for i, own in zip(ids, seed, strict=True)}
        return _shaped(answers, env_id)

    def close(self) -> None:
        """End all envs. May be called twice."""
        self._pool.close()

    def __getattr__(self, key: str) -> list[Any]:
        """An attribute of every env; None for those that do not have it."""
        if key.startswith("__") or "_pool" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {key!r}")
        if self._here and self._pool.is_closed:  # envs in this process can still be read
            return [getattr(env, key, None) for env in self._here]
        return list(self._pool.call("read", key))

    def _check_open(self) -> None:
        if self._pool.is_closed:
            raise ManagerState("the env manager is closed")

    def _ids(self, env_id: Sequence[int] | None, given: int | None, what: str) -> list[int]:
        """The envs that a call is for; whatever is wrong with them, no env has moved yet."""
        self._check_open()
        ids = list(range(self._env_num)) if env_id is None else list(env_id)
        for i in ids:
            if i not in self._env_done:
                raise UnknownEnv(f"env_id: there is no env {i!r}: the manager has envs 0 to {self._env_num - 1}")
        if len(set(ids)) != len(ids):
            raise WrongSetting(f"env_id: expected each env once, got {ids}")
        if given is not None and given != len(ids):
            raise WrongSetting(f"{what}: expected {len(ids)} entries, one for each of envs {ids}, got {given}")
        return ids

    def _gather(self, ids: Sequence[int]) -> dict[int, Any]:
        """Wait for the answers of these envs.

        Raises:
            FaultError: If one of them failed, once the others have answered.
        """
        found: dict[int, Any] = {}
        failure: FaultError | None = None
        left = set(ids)
        while left:
            try:
                batch: Batch = self._pool.recv()
                found.update(zip(batch.env_id.tolist(), batch.obs, strict=True))
                left.difference_update(batch.env_id.tolist())
            except FaultError as error:
                failure = failure or error
                left -= self._pool.faulted
        if failure is not None:
            with either_class():
                raise failure
        return {i: found[i] for i in ids}


class SubprocessEnvManager(BaseEnvManager):
    """Many envs, each in a process of its own.

    One more env is built in this process. It packs and unpacks, is never reset, and is closed with the others.
    """

    _engine = "process"

    def _first_env(self, env_fn: Callable[[Any], Any], cfg: Any) -> Any:
        try:
            return env_fn(cfg)
        except BaseException:
            self._pool.close()
            raise

    def close(self) -> None:
        """End all envs. May be called twice."""
        if self._pool.is_closed:
            return
        super().close()
        try:
            self._packer.close()
        except Exception:
            _log.warning("close failed in the env that packs and unpacks", exc_info=True)


def _is_over(done: Any) -> bool:
    """Whether an episode is over; where each agent has its own flag, that is when it is over for all of them."""
    return done if done.__class__ is bool else bool(np.all(done))


def _shaped(found: Mapping[int, Any], env_id: Sequence[int] | None) -> Any:
    return list(found.values()) if env_id is None else found
