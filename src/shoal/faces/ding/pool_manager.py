"""A manager whose envs are made from their id, and run on the fastest engine that has them."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.adapters.ding_timestep import TRUNCATED
from shoal.build import make_pool
from shoal.errors import ManagerState, UnknownEnv, WrongSetting
from shoal.faces.ding.config import Config
from shoal.faces.ding.env import RETURN, BaseEnvTimestep
from shoal.faces.ding.failures import either_class
from shoal.faces.ding.runner import tells_of_fault
from shoal.faces.ding.seeds import seeds_by_env

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.batch import Batch
    from shoal.pool import Pool

_ENV_OPTIONS = ("episodic_life", "reward_clip", "stack_num", "gray_scale", "frame_skip")


class PoolEnvManager:
    """Compiled and native envs by their id.

    ``step`` sends actions and returns a batch of timesteps: of the same envs if ``batch_size`` is ``env_num``, else of
    those that are ready first. ``ready_obs`` has the observations of that batch. As in the other managers, the timestep
    that ends an episode holds its true last observation, and ``ready_obs`` has the first one of the next.

    Args:
        cfg: ``env_id``, ``env_num``, ``batch_size``; ``engine`` and ``seed`` if they matter; options of the env, such
            as ``frame_skip``.

    Example:
        >>> cfg = PoolEnvManager.default_config()
        >>> cfg.update(env_id="CartPole-v1", env_num=2, batch_size=2, engine="serial")
        >>> manager = PoolEnvManager(cfg)
        >>> manager.launch()
        >>> manager.step({0: 1, 1: 0})[0].reward
        array([1.], dtype=float32)
        >>> manager.close()
    """

    config: ClassVar[dict[str, Any]] = {"type": "envpool", "env_num": 8, "batch_size": 8}

    @classmethod
    def default_config(cls) -> Config:
        """A fresh config; ``env_id`` is yours to add."""
        return Config(deepcopy(cls.config), cfg_type=f"{cls.__name__}Dict")

    def __init__(self, cfg: Mapping[str, Any], env_fn: Any = None) -> None:
        self._cfg = cfg = Config(cfg)
        self._env_num = int(cfg.env_num)
        self._batch_size = int(cfg.batch_size)
        if not 0 < self._batch_size <= self._env_num:
            raise WrongSetting(f"batch_size: expected 1 to {self._env_num} (env_num), got {self._batch_size}")
        self._seed: int | list[int | None] | None = cfg.get("seed")
        self._pool: Pool | None = None
        self._ready: dict[int, Any] = {}
        self._returns_N = np.zeros(self._env_num)

    # ------------------------------------------------------------------ life

    def launch(self) -> None:
        """Build all envs and reset them.

        Raises:
            ManagerState: If there are envs already.
        """
        if self._pool is not None:
            raise ManagerState("the env manager is open already: close() it first")
        self._pool = make_pool(
            self._cfg.env_id,
            self._env_num,
            engine=self._cfg.get("engine", "auto"),
            batch_size=self._batch_size,
            autoreset="same_step",
            seed=self._seed,
            env_kwargs={key: self._cfg[key] for key in _ENV_OPTIONS if key in self._cfg},
            bounded_actions=False,
        )
        self.reset()

    def reset(self) -> None:
        """Reset all envs, with the seeds that were last given unless they have been used already.

        All of them are in ``ready_obs`` then, also if steps return fewer at a time.
        """
        pool = self._open()
        self._returns_N[:] = 0.0
        self._ready.clear()
        seed, self._seed = self._seed, None
        pool.async_reset(seed)
        while len(self._ready) < self._env_num:
            self._show(self._receive(pool))

    def step(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        """Send actions to envs, and return the timesteps of the envs that answer first.

        Raises:
            ManagerState: If the manager is closed, or one of the envs is not in ``ready_obs``.
            FaultError: If an env failed, also under the class that it raised; ``reset`` makes all of them ready again.
        """
        pool = self._open()
        ids = [self._known(i) for i in actions]
        if early := [i for i in ids if i not in self._ready]:
            raise ManagerState(
                f"envs {early} have not answered yet: only those in ready_obs, {[*self._ready]}, can be stepped"
            )
        # Policies give a choice as an array of shape (1,) or (); the pool's batch has one number per env.
        leaf = pool.spec.action.leaves[0]
        batch = np.array([np.asarray(action).reshape(leaf.shape) for action in actions.values()], leaf.dtype)
        pool.send(batch, ids)
        for i in ids:
            del self._ready[i]
        return self._show(self._receive(pool))

    def _receive(self, pool: Pool) -> Batch:
        with either_class():
            return pool.recv()

    def _show(self, batch: Batch) -> dict[int, BaseEnvTimestep]:
        infos, ids = dict(batch.infos), batch.env_id.tolist()
        observations = list(_as_float32(batch.obs))
        self._returns_N[batch.env_id] += batch.reward
        timesteps = {}
        for row, i in enumerate(ids):
            self._ready[i] = observations[row]
            terminated, truncated = bool(batch.terminated[row]), bool(batch.truncated[row])
            obs, info = self._ready[i], dict(infos.get(row, {}))
            if row in batch.finals:
                obs, info = _as_float32(batch.finals[row][0]), dict(batch.finals[row][1])
                if tells_of_fault(info):
                    info["abnormal"] = True
                info |= {"terminated": terminated, "truncated": truncated, TRUNCATED: truncated and not terminated}
                info[RETURN] = np.array([self._returns_N[i]], np.float32)
                self._returns_N[i] = 0.0
            reward = np.array([batch.reward[row]], np.float32)
            timesteps[i] = BaseEnvTimestep(obs, reward, terminated or truncated, info)
        return timesteps

    def seed(self, seed: int | Sequence[int] | dict[int, int], dynamic_seed: bool | None = None) -> None:
        """Keep seeds until the next reset of all envs; each episode then gets its own, which follows from these.

        Raises:
            WrongSeed: If it is no int, and no sequence or dict of them.
            WrongSetting: If it is a sequence of the wrong length.
        """
        seeds = seeds_by_env(list(seed) if isinstance(seed, (tuple, np.ndarray)) else seed, self._env_num)
        self._seed = [seeds.get(i) for i in range(self._env_num)]

    def close(self) -> None:
        """End all envs. May be called twice."""
        pool, self._pool = self._pool, None
        self._ready = {}
        if pool is not None:
            pool.close()

    # ------------------------------------------------------------------ what it is

    @property
    def env_num(self) -> int:
        """How many envs there are."""
        return self._env_num

    @property
    def closed(self) -> bool:
        """Whether there are no envs."""
        return self._pool is None

    @property
    def ready_obs(self) -> dict[int, Any]:
        """Observations of the envs that wait for an action, by their ids."""
        self._open()
        return {i: self._ready[i] for i in sorted(self._ready)}

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that wait for an action."""
        return sorted(self._ready)

    @property
    def observation_space(self) -> Any:
        """The observation space of one env."""
        return self._open().spec.observation.space

    @property
    def action_space(self) -> Any:
        """The action space of one env."""
        return self._open().spec.action.space

    def random_action(self) -> dict[int, Any]:
        """A random action for each env that waits for one."""
        return {i: self.action_space.sample() for i in self.ready_obs_id}

    def _open(self) -> Pool:
        if self._pool is None:
            raise ManagerState("the env manager is closed: launch() it first")
        return self._pool

    def _known(self, env_id: int) -> int:
        if not 0 <= env_id < self._env_num:
            raise UnknownEnv(f"there is no env {env_id!r}: the manager has envs 0 to {self._env_num - 1}")
        return env_id


def _as_float32(obs: Any) -> Any:
    if isinstance(obs, dict):
        raise WrongSetting("observations of this manager are single arrays; use another manager for dicts of them")
    return np.asarray(obs, np.float32)
