"""The manager that runs its envs in the caller's process, and what all managers share."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.errors import ManagerState, UnknownEnv, WrongSetting
from shoal.faces.ding.config import Config, Manners, Settings
from shoal.faces.ding.core import Core
from shoal.faces.ding.reference import Reference
from shoal.faces.ding.seeds import seeds_by_env
from shoal.faces.ding.states import EnvState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("shoal")


class BaseEnvManager:
    """Many envs, one after another, addressed by their ids.

    Construction builds one env, to learn its spaces; ``launch`` builds all envs and resets them. Then ``ready_obs`` has
    the observations to act on, and ``step`` takes a dict of actions. The timestep that ends an episode holds its true
    last observation; ``ready_obs`` has the first one of the next episode.

    Args:
        env_fn: One function per env.
        cfg: A complete config, like the one that ``default_config()`` returns.

    Example:
        >>> import gymnasium
        >>> from shoal.faces.ding import BaseEnvManager, DingEnvWrapper
        >>> fns = [lambda: DingEnvWrapper(gymnasium.make("CartPole-v1"))] * 2
        >>> manager = BaseEnvManager(fns, BaseEnvManager.default_config())
        >>> manager.seed(0)
        >>> manager.launch()
        >>> timesteps = manager.step(manager.random_action())
        >>> sorted(timesteps), timesteps[0].reward
        ([0, 1], array([1.], dtype=float32))
        >>> manager.close()
    """

    config: ClassVar[dict[str, Any]] = {
        "episode_num": float("inf"),
        "max_retry": 1,
        "retry_type": "reset",
        "auto_reset": True,
        "step_timeout": None,
        "reset_timeout": None,
        "retry_waiting_time": 0.1,
    }
    _has_processes: ClassVar[bool] = False

    @classmethod
    def default_config(cls) -> Config:
        """A fresh config, with every key there is."""
        return Config(deepcopy(cls.config), cfg_type=f"{cls.__name__}Dict")

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._cfg = cfg
        self._env_fn = list(env_fn)
        settings = self._settings(cfg)
        self._core = Core(len(self._env_fn), settings, self._manners(settings))
        self._reference = Reference(self._env_fn[0])
        # It is looked at again when the manager is launched again, so it is closed when nobody can do that any more.
        weakref.finalize(self, self._reference.close)
        self._replay_paths: list[str | None] = [None] * len(self._env_fn)
        # Whether ``reset`` leaves running envs alone, so that no recording is cut short.
        self._keeps_recording = False

    def _settings(self, cfg: Mapping[str, Any]) -> Settings:
        return Settings.of(cfg, has_processes=self._has_processes)

    def _manners(self, settings: Settings) -> Manners:
        # An env that can be abandoned at its deadline must not run in our own thread.
        # Each has a thread of its own then, so that no env is lost with one that hangs; they still take turns.
        return Manners(engine="thread" if settings.has_deadline else "serial", in_turn=settings.has_deadline)

    # ------------------------------------------------------------------ what it is

    @property
    def env_num(self) -> int:
        """How many envs there are."""
        return len(self._env_fn)

    @property
    def env_ref(self) -> Any:
        """The env that was built to learn the spaces from."""
        return self._reference.env

    @property
    def observation_space(self) -> Any:
        """The observation space of one env."""
        return self._reference.observation_space

    @property
    def action_space(self) -> Any:
        """The action space of one env."""
        return self._reference.action_space

    @property
    def reward_space(self) -> Any:
        """The reward space of one env."""
        return self._reference.reward_space

    @property
    def closed(self) -> bool:
        """Whether there are no envs: before ``launch``, after ``close``, and after a reset that failed for good."""
        if self._core.is_open:
            self._core.catch_up(wait=False)
        return not self._core.is_open

    @property
    def done(self) -> bool:
        """Whether every env has used up its episodes."""
        return all(state is EnvState.DONE for state in self._core.states.values())

    @property
    def method_name_list(self) -> list[str]:
        """Methods of envs that may be called through the manager; subclasses may add more."""
        return [
            "reset",
            "step",
            "seed",
            "close",
            "enable_save_replay",
            "render",
            "reward_shaping",
            "enable_save_figure",
        ]

    @property
    def _env_states(self) -> dict[int, EnvState]:
        if self._core.is_open:
            self._core.catch_up()
        return self._core.states

    def env_state_done(self, env_id: int) -> bool:
        """Whether this env has used up its episodes."""
        return self._core.states[self._known(env_id)] is EnvState.DONE

    # ------------------------------------------------------------------ who is ready

    @property
    def ready_obs(self) -> Any:
        """Observations of the envs that wait for an action, by their ids.

        Raises:
            ManagerState: If the manager is closed.
            FaultError: If the manager has closed because the automatic reset of an env failed for good.
        """
        core = self._core
        if core.are_all_ready():
            return core.ready_obs.copy()
        ids = self._ready()
        return {i: core.ready_obs[i] for i in ids}

    def _ready(self) -> list[int]:
        """Ids of the envs that wait for an action. If there are no envs any more, the error says why."""
        if self._core.are_all_ready():  # and then nothing can be wrong
            return [*self._core.states]
        ids = self.ready_env
        if self._core.failure is not None:
            raise self._core.failure.with_traceback(None)
        self._check_open()
        return ids

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that wait for an action."""
        return self.ready_env

    @property
    def ready_env(self) -> list[int]:
        """Ids of the envs that wait for an action."""
        return self._core.ready() if self._core.is_open else []

    @property
    def ready_imgs(self) -> dict[int, Any]:
        """Pictures of the envs that wait for an action."""
        ids = self._ready()
        self._core.settle()
        return self._core.runner.pictures(ids)

    def random_action(self) -> dict[int, Any]:
        """A random action for each env that waits for one."""
        return {i: self.action_space.sample() for i in self.ready_env}

    # ------------------------------------------------------------------ life

    def launch(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Build all envs and reset them.

        Args:
            reset_param: Keywords for the reset of each env, by its id.

        Raises:
            ManagerState: If there are envs already.
            WrongSetting: If ``reset_param`` does not have one entry per env.
            FaultError: If an env cannot be built or reset; the manager is then closed.
        """
        self._prepare_launch(reset_param)
        self.reset(reset_param)

    def _prepare_launch(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None) -> None:
        if self._core.is_open:
            raise ManagerState("the env manager is open already: close() it first")
        if reset_param is not None:
            if isinstance(reset_param, Mapping) and reset_param.keys() != self._core.states.keys():
                raise WrongSetting(
                    f"reset_param: expected one entry for each of {self.env_num} envs, got {[*reset_param]}"
                )
            self._check_reset_param(reset_param)
        spaces = (self.observation_space, self.action_space)
        self._core.launch(self._env_fn, spaces, self._replay_paths)

    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Reset all envs, or those in ``reset_param``, and wait for them; ``ready_obs`` has the observations.

        Args:
            reset_param: Keywords for the reset of each env, which its automatic resets will use again.
        """
        self._check_open()
        ids = self._asked_for(reset_param)
        self._core.reset(self._not_recorded(ids) if self._keeps_recording else ids)

    def _not_recorded(self, ids: list[int]) -> list[int]:
        """Those of these envs that do not run. The others are not reset, but get the seeds that wait for them."""
        core = self._core
        core.settle()
        kept = [i for i in core.progress.running() if i in ids]
        if kept:
            _log.warning("envs %s are being recorded and run, so they are not reset", kept)
        for i in kept:
            if (seed := core.seeds.take(i)) is not None:
                core.runner.seed(i, seed, core.seeds.dynamic)
        return [i for i in ids if i not in kept]

    def _asked_for(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None) -> list[int]:
        """The envs to be reset, once it is noted with which keywords. If something is wrong, nothing is noted."""
        if reset_param is None:
            return [*range(self.env_num)]
        self._check_reset_param(reset_param)
        self._core.reset_param.update(reset_param)
        return [*reset_param]

    def _check_reset_param(self, reset_param: Mapping[int, Mapping[str, Any] | None]) -> None:
        if not isinstance(reset_param, Mapping):
            raise WrongSetting(f"reset_param: expected a dict of keywords by env id, got {type(reset_param).__name__}")
        for i, keywords in reset_param.items():
            self._known(i)
            if not (keywords is None or isinstance(keywords, Mapping)):
                raise WrongSetting(f"reset_param: expected a dict of keywords or None for env {i}, got {keywords!r}")

    def step(self, actions: Any) -> Any:
        """Step envs and return their timesteps, by their ids.

        Raises:
            ManagerState: If the manager is closed, or one of the envs is not running. No env has moved in that case.
            FaultError: If an env has failed for good. Its ``timesteps`` holds the answers of the others.
        """
        if actions.__class__ is not dict and not isinstance(actions, Mapping):
            self._check_open()
            raise WrongSetting(f"actions: expected a dict of actions by env id, got {type(actions).__name__}")
        return self._core.step(actions)

    def seed(self, seed: int | list[int | None] | dict[int, int | None], dynamic_seed: bool | None = None) -> None:
        """Keep seeds, each until its env is reset by ``reset`` or ``launch``; automatic resets leave them alone.

        Args:
            seed: An int, of which env ``i`` gets ``seed + i``; or a list with one per env; or a dict for some of them.
                None leaves an env as it is.
            dynamic_seed: Whether each episode gets its own seed or all get the same one; None leaves that to the env.

        Raises:
            WrongSeed: If it is none of these.
            WrongSetting: If it is a list of the wrong length.
            UnknownEnv: If it is for an env that does not exist.
        """
        seeds = seeds_by_env(seed, self.env_num)
        self._core.seeds.keep(seeds, dynamic_seed)
        if seeds:
            self._seed_action_space(next(iter(seeds.values())))

    def _seed_action_space(self, seed: int) -> None:
        """Have ``random_action`` follow from a seed, if its space can be seeded: seeds are for envs, not for spaces."""
        try:
            self.action_space.seed(seed)
        except Exception:
            _log.info("the action space takes no seed %d", seed, exc_info=True)

    def close(self) -> None:
        """End all envs. May be called twice; ``launch`` builds new ones."""
        self._core.close()

    # ------------------------------------------------------------------ extras

    def enable_save_replay(self, replay_path: str | Sequence[str]) -> None:
        """Have envs keep videos of their episodes: all in one folder, or each in a folder of its own.

        Envs are told when they are built, so call this before ``launch``. While they record, ``reset`` leaves running
        envs alone; only the managers with worker processes reset them all the same.
        """
        paths = [replay_path] * self.env_num if isinstance(replay_path, str) else list(replay_path)
        if len(paths) != self.env_num:
            raise WrongSetting(f"replay_path: expected {self.env_num} paths, one per env, got {len(paths)}")
        self._replay_paths = [*paths]
        self._keeps_recording = self._core.manners.spares_recordings

    def enable_save_figure(self, env_id: int, figure_path: str) -> None:
        """Have an env draw figures, in this folder."""
        if figure_path is None:
            raise WrongSetting("figure_path: expected a folder, got None")
        self._call(env_id, "enable_save_figure", figure_path)

    def reward_shaping(self, env_id: int, transitions: Sequence[Any]) -> Any:
        """What an env makes of the rewards of its transitions."""
        return self._call(env_id, "reward_shaping", transitions)

    def _call(self, env_id: int, name: str, *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        self._core.settle()
        return self._core.runner.call(self._known(env_id), name, args, kwargs)

    def __getattr__(self, key: str) -> Any:
        """An attribute of every env, or a method of every env if it is one that may be called."""
        reference = self.__dict__.get("_reference")
        if reference is None or key.startswith("__") or not reference.has(key):
            raise AttributeError(f"neither {type(self).__name__} nor its envs have an attribute {key!r}")
        if reference.has_method(key):
            if key not in self.method_name_list:
                raise RuntimeError(
                    f"{key!r} is a method of the envs, and not one of those that may be called through a manager: "
                    f"{self.method_name_list}. A subclass may have more of them in its method_name_list"
                )
            self._check_open()
            return [partial(self._call, i, key) for i in range(self.env_num)]
        self._check_open()
        self._core.settle()
        return self._core.runner.read(key)

    def _check_open(self) -> None:
        self._core.check_open()

    def _known(self, env_id: int) -> int:
        if env_id not in self._core.states:
            raise UnknownEnv(f"there is no env {env_id!r}: the manager has envs 0 to {self.env_num - 1}")
        return env_id

    def __repr__(self) -> str:
        state = "open" if self._core.is_open else "closed"
        return f"{type(self).__name__}({self.env_num} envs, {state})"
