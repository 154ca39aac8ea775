"""Gymnasium envs, or envs of the old gym, in DI-engine's dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.adapters.ding_env import as_gymnasium
from shoal.adapters.ding_timestep import TRUNCATED
from shoal.errors import WrongActionType, WrongSetting
from shoal.faces.ding.config import Config
from shoal.faces.ding.env import RETURN, BaseEnv, BaseEnvTimestep
from shoal.faces.ding.presets import as_number, wrappers_of
from shoal.faces.ding.replay import Recorder, require_video

_WORST_REWARD = -10.0
_INT64 = np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)


class DingEnvWrapper(BaseEnv):
    """A single env as managers expect it.

    Observations are arrays, float32 where the space is float32 or float64; rewards are float32 of shape ``(1,)``;
    ``done`` is True if the episode was terminated or truncated. The info of the last step has both of these flags,
    ``eval_episode_return`` and ``TimeLimit.truncated``.

    Args:
        env: An env, or None if ``cfg["env_id"]`` is to be made when it is first needed.
        cfg: ``env_id``; ``env_wrapper``, a preset or a list of wrappers; ``act_scale``, to take actions from -1 to 1
            whatever the bounds; ``rew_clip``, to raise rewards below -10 to -10.
        seed_api: Whether the env takes seeds; if not, only its action space is seeded.
        caller: ``"collector"`` or ``"evaluator"``; presets may distinguish the two.
        is_gymnasium: Accepted for compatibility: which of the two kinds an env is, is detected.

    Example:
        >>> env = DingEnvWrapper(gym.make("CartPole-v1"))
        >>> env.seed(0, dynamic_seed=False)
        >>> env.reset().dtype, env.step(np.array([1])).reward
        (dtype('float32'), array([1.], dtype=float32))
    """

    def __init__(
        self,
        env: Any = None,
        cfg: Mapping[str, Any] | None = None,
        seed_api: bool = True,
        caller: str = "collector",
        is_gymnasium: bool = False,
    ) -> None:
        self._cfg = Config(cfg)
        if env is None and "env_id" not in self._cfg:
            raise WrongSetting("DingEnvWrapper needs an env, or a config with the key env_id")
        self._raw_env = env
        self._seed_api = seed_api
        self._caller = caller
        self._wrap = wrappers_of(self._cfg.get("env_wrapper"), caller)
        self._has_own_wrappers = isinstance(self._cfg.get("env_wrapper"), (list, tuple))
        self._inner: Any = None
        self._cast: Callable[[Any], Any] | None = None
        # What was made of the env's spaces: a copy that was seeded has to be the one that is sampled later.
        self._spaces: dict[str, tuple[Any, Any]] = {}
        self._seed: int | None = None
        self._dynamic = True
        self._draws = np.random.RandomState()
        self._return = 0.0
        self._replay_path: str | None = None
        self._recorder: Recorder | None = None
        if env is not None:
            self.action_space.seed(0)

    # ------------------------------------------------------------------ life

    @property
    def _env(self) -> Any:
        """The env inside, made when it is first needed."""
        if self._inner is None:
            env = self._raw_env
            if env is None:
                mode: dict[str, Any] = {} if self._replay_path is None else {"render_mode": "rgb_array"}
                env = gym.make(self._cfg.env_id, **mode)
            for wrap in self._wrap:
                env = wrap(env)
            self._inner = env
        return self._inner

    def reset(self) -> Any:  # type: ignore[override]
        """Start an episode."""
        if self._replay_path is not None and self._recorder is None:
            fps = (getattr(self._env, "metadata", None) or {}).get("render_fps", 30)
            self._recorder = Recorder(self._replay_path, fps)
        seed = self._next_seed()
        obs = self._begin(seed)
        if seed is not None:
            self.action_space.seed(seed)
        self._return = 0.0
        if self._recorder is not None:
            self._recorder.finish()
            self._recorder.add(self._env.render())
        return self._observation(obs)

    def _begin(self, seed: int | None) -> Any:
        env = self._env
        if seed is None or not self._seed_api:
            result = env.reset()
        elif not isinstance(env, gym.Env) and hasattr(env, "seed"):
            env.seed(seed)
            result = env.reset()
        else:
            result = env.reset(seed=seed)
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result[0] if is_pair else result

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Seed the episodes to come: each with its own seed derived from this one, or all with this one.

        As DI-engine's envs do, this also seeds numpy's global generator.
        """
        self._seed, self._dynamic = int(seed), dynamic_seed
        # Seeds are drawn from a generator that nobody else uses. The global one is for envs that draw from it.
        self._draws = np.random.RandomState(self._seed % 2**32)
        np.random.seed(self._seed % 2**32)

    def _next_seed(self) -> int | None:
        if self._seed is None or not self._dynamic:
            return self._seed
        return self._seed + 100 * int(self._draws.randint(1, 1000))

    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]
        """Take one step."""
        action = _plain(action)
        if self._cfg.get("act_scale"):
            action = self._scaled(action)
        result = self._env.step(action)
        if len(result) == 5:
            obs, reward, terminated, truncated, info = result
        else:
            obs, reward, done, info = result
            truncated = bool(done) and bool(info.get(TRUNCATED, False))
            terminated = bool(done) and not truncated
        terminated, truncated = bool(terminated), bool(truncated)
        reward = as_number(reward)
        self._return += reward
        if self._cfg.get("rew_clip"):
            reward = max(_WORST_REWARD, reward)
        done = terminated or truncated
        if done:
            told = {"terminated": terminated, "truncated": truncated, TRUNCATED: truncated and not terminated}
            own = {RETURN: np.array([self._return], np.float32)}
            info = {**own, **info, **told} if self._has_own_wrappers else {**info, **own, **told}
        if self._recorder is not None:
            self._recorder.add(self._env.render())
            if done:
                self._recorder.finish()
        return BaseEnvTimestep(self._observation(obs), np.array([reward], np.float32), done, info)

    def close(self) -> None:
        """Close the env, and write what is left of a replay."""
        if self._recorder is not None:
            self._recorder.finish()
        if self._inner is not None or self._raw_env is not None:
            self._env.close()
        if self._raw_env is None:
            self._inner = None

    def enable_save_replay(self, replay_path: str | None = None) -> None:
        """Write each episode, from the next reset on, to an mp4 file in this folder.

        Raises:
            BackendUnavailable: If moviepy is not installed.
        """
        require_video()
        self._replay_path = "./video" if replay_path is None else replay_path

    def render(self) -> Any:
        """What the env looks like."""
        return self._env.render()

    def clone(self, caller: str = "collector") -> DingEnvWrapper:
        """An env of the same kind and config that shares nothing with this one."""
        return DingEnvWrapper(deepcopy(self._raw_env), deepcopy(self._cfg), self._seed_api, caller)

    @staticmethod
    def create_collector_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """A config with ``is_train`` for each env that collects; removes ``collector_env_num`` from the given one."""
        count = cfg.pop("collector_env_num")
        return [_with(cfg, is_train=True)] * count

    @staticmethod
    def create_evaluator_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """A config for each env that evaluates, not ``is_train``; removes ``evaluator_env_num`` from the given one."""
        count = cfg.pop("evaluator_env_num")
        return [_with(cfg, is_train=False)] * count

    # ------------------------------------------------------------------ values

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        """The env's own, with float32 in place of float64."""
        return self._space("observation_space", lambda space: _in_float32(as_gymnasium(space)))

    @property
    def action_space(self) -> Any:  # type: ignore[override]
        """The env's own."""
        return self._space("action_space", as_gymnasium)

    def _space(self, name: str, convert: Callable[[Any], Any]) -> Any:
        own = getattr(self._env, name)
        known = self._spaces.get(name)
        if known is None or known[0] is not own:
            known = self._spaces[name] = (own, convert(own))
        return known[1]

    @property
    def reward_space(self) -> spaces.Box:
        """The env's own range of rewards; -1 to 1 if it has none."""
        low, high = getattr(self._env, "reward_range", (-1.0, 1.0))
        return spaces.Box(float(low), float(high), (1,), np.float32)

    def random_action(self) -> Any:
        """A random action; for a choice among n, an array of shape ``(1,)``; in a dict, all values are arrays."""
        action = self.action_space.sample()
        if isinstance(action, Mapping):
            return _arrays(action)
        return np.array([action], np.int64) if isinstance(action, (int, np.integer)) else action

    def _observation(self, obs: Any) -> Any:
        if self._cast is None:  # before the first reset there may be no env, and hence no space
            self._cast = caster(self.observation_space)
        return self._cast(obs)

    def _scaled(self, action: Any) -> Any:
        space = self.action_space
        share = (np.clip(action, -1.0, 1.0) + 1.0) / 2.0
        return (space.low + share * (space.high - space.low)).astype(space.dtype)

    def __repr__(self) -> str:
        return f"DingEnvWrapper({self._cfg.get('env_id', self._raw_env)})"


def _with(cfg: dict[str, Any], *, is_train: bool) -> dict[str, Any]:
    copied = deepcopy(cfg)
    copied["is_train"] = is_train
    return copied


def _plain(action: Any) -> Any:
    """An action as an env takes it: numbers taken out of their arrays, in dicts too."""
    if isinstance(action, np.ndarray):
        is_number = action.shape == () or (action.shape == (1,) and action.dtype == _INT64)
        return action.item() if is_number else action
    if isinstance(action, np.integer):
        return int(action)
    if isinstance(action, int):
        return action
    if isinstance(action, Mapping):
        return {key: _plain(item) for key, item in action.items()}
    raise WrongActionType(
        f"action: expected an int, an array, or a dict of these, got {type(action).__name__} {action!r}"
    )


def caster(space: Any) -> Callable[[Any], Any]:
    """A function that turns what an env returns for this space into arrays: float32 where the space is.

    Example:
        >>> caster(spaces.Box(-1, 1, (2,)))([0, 1])
        array([0., 1.], dtype=float32)
    """
    if isinstance(space, spaces.Dict):
        children = {key: caster(child) for key, child in space.spaces.items()}
        return lambda obs: (
            {key: children.get(key, _arrays)(item) for key, item in obs.items()}
            if isinstance(obs, Mapping)
            else _arrays(obs)
        )
    if isinstance(space, spaces.Tuple):
        parts = [caster(child) for child in space.spaces]
        return lambda obs: (
            tuple(part(item) for part, item in zip(parts, obs, strict=True))
            if isinstance(obs, (tuple, list)) and len(obs) == len(parts)
            else _arrays(obs)
        )
    return _float32 if space.dtype == _FLOAT32 else _arrays


def _float32(obs: Any) -> Any:
    return np.array(obs, _FLOAT32)  # a copy: envs may write the next observation over this one


def _arrays(obs: Any) -> Any:
    if isinstance(obs, Mapping):
        return {key: _arrays(item) for key, item in obs.items()}
    return tuple(_arrays(item) for item in obs) if isinstance(obs, tuple) else np.array(obs)


def _in_float32(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _in_float32(child) for key, child in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_in_float32(child) for child in space.spaces])
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), space.shape, np.float32)
    return space
