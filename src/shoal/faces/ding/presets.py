"""Wrappers that go around an env before it is given DI-engine's dialect."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.errors import WrongSetting
from shoal.faces.ding.env import RETURN

Wrap = Callable[[Any], Any]


def as_number(reward: Any) -> float:
    """A reward as a number, also if the env returns an array of one.

    Example:
        >>> as_number(np.array([1.5])), as_number(2)
        (1.5, 2.0)
    """
    return float(reward.item() if isinstance(reward, np.ndarray) else reward)


class HybridActions(gym.ActionWrapper[Any, Any, Any]):
    """Accepts ``{"type": ..., "args": ...}`` for an action that is a choice with parameters.

    Such an action may have a ``mask`` too, which is for learners: it says which parameters matter.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        parts = env.action_space
        if not isinstance(parts, spaces.Tuple) or len(parts) != 2:
            raise WrongSetting(f"gym_hybrid: expected an action space of a choice and its parameters, got {parts}")
        choice, parameters = parts
        mask = spaces.Box(0, 1, parameters.shape, np.int64)
        self.action_space = spaces.Dict({"type": choice, "mask": mask, "args": parameters})

    def action(self, action: Any) -> Any:
        """The pair that the env expects."""
        return (action["type"], action["args"]) if isinstance(action, Mapping) else action


class EpisodeReturn(gym.Wrapper[Any, Any, Any, Any]):
    """Adds up rewards as seen from its place among the wrappers, for the info of the last step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the sum anew."""
        self._return = 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        obs, reward, terminated, truncated, info = super().step(action)
        self._return += as_number(reward)
        if terminated or truncated:
            info = {**info, RETURN: np.array([self._return], np.float32)}
        return obs, reward, terminated, truncated, info


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, or until the episode ends; rewards are added up, and the last observation is shown."""

    def __init__(self, env: Any, action_repeat: int = 1) -> None:
        super().__init__(env)
        if action_repeat < 1:
            raise WrongSetting(f"action_repeat: expected at least 1, got {action_repeat!r}")
        self._times = action_repeat

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take so many steps."""
        seen: deque[Any] = deque(maxlen=2)
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = super().step(action)
            seen.append(np.array(obs))  # the env may write its next observation over this one
            total += as_number(reward)
            if terminated or truncated:
                break
        return self._shown(seen), total, terminated, truncated, info

    def _shown(self, seen: deque[Any]) -> Any:
        return seen[-1]


class MaxAndSkip(ActionRepeat):
    """Repeats each action ``skip`` times, or until the episode ends; the observation is the maximum of the last two."""

    def __init__(self, env: Any, skip: int = 4) -> None:
        if skip < 1:
            raise WrongSetting(f"max_and_skip: expected skip to be at least 1, got {skip!r}")
        super().__init__(env, skip)

    def _shown(self, seen: deque[Any]) -> Any:
        return np.maximum(seen[0], seen[-1])


class DelayReward(gym.Wrapper[Any, Any, Any, Any]):
    """Pays rewards together, every ``delay_reward_step`` steps and when the episode ends."""

    def __init__(self, env: Any, delay_reward_step: int = 0) -> None:
        super().__init__(env)
        self._every = delay_reward_step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Forget what has not been paid."""
        self._unpaid, self._steps = 0.0, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        obs, reward, terminated, truncated, info = super().step(action)
        self._unpaid += as_number(reward)
        self._steps += 1
        paid = 0.0
        if terminated or truncated or self._steps >= self._every:
            paid, self._unpaid, self._steps = self._unpaid, 0.0, 0
        return obs, paid, terminated, truncated, info


class UnknownPreset(WrongSetting, NotImplementedError):
    """No wrappers have this name."""


def clip_reward(env: Any) -> Any:
    """Clip rewards to -1, 0 and 1."""
    return gym.wrappers.TransformReward(env, lambda reward: float(np.sign(as_number(reward))))


def frame_stack(env: Any, n_frames: int = 4) -> Any:
    """Stack the last observations into one."""
    return gym.wrappers.FrameStackObservation(env, n_frames)


def scaled_float_frame(env: Any) -> Any:
    """Scale observations to the range from 0 to 1, by the bounds of their space."""
    low, high = env.observation_space.low.min(), env.observation_space.high.max()
    scale = float(high) - float(low)
    space = spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: ((obs - low) / scale).astype(np.float32), space)


def static_obs_norm(env: Any, mean: Any, std: Any) -> Any:
    """Subtract a mean from observations and divide them by a deviation; no result is further from 0 than 3."""
    space = env.observation_space
    dtype = space.dtype if np.issubdtype(space.dtype, np.floating) else np.float32
    normal = spaces.Box(-3.0, 3.0, space.shape, dtype)
    return gym.wrappers.TransformObservation(
        env, lambda obs: np.clip((obs - mean) / std, -3.0, 3.0).astype(dtype), normal
    )


def obs_transpose(env: Any) -> Any:
    """Move the last axis of images, that of colours, to the front."""
    space = env.observation_space
    turned = spaces.Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=space.dtype)
    return gym.wrappers.TransformObservation(env, lambda obs: obs.transpose(2, 0, 1), turned)


def _atari(caller: str) -> list[Wrap]:
    is_collector = caller == "collector"

    def prepare(env: Any) -> Any:
        return gym.wrappers.AtariPreprocessing(env, noop_max=30, terminal_on_life_loss=is_collector, scale_obs=True)

    return [prepare, frame_stack, *([clip_reward] if is_collector else [])]


PRESETS: dict[str, Callable[[str], list[Wrap]]] = {
    "default": lambda caller: [],
    "mujoco_default": lambda caller: [],
    "atari_default": _atari,
    "gym_hybrid_default": lambda caller: [HybridActions],
}
"""The return of each episode is in the info whatever the preset, after these wrappers."""

WRAPPERS: dict[str, Callable[..., Any]] = {
    "action_repeat": ActionRepeat,
    "clip_reward": clip_reward,
    "delay_reward": DelayReward,
    RETURN: EpisodeReturn,
    "frame_stack": frame_stack,
    "gym_hybrid_dict_action": HybridActions,
    "max_and_skip": MaxAndSkip,
    "obs_transpose": obs_transpose,
    "scaled_float_frame": scaled_float_frame,
    "static_obs_norm": static_obs_norm,
}
"""Wrappers by DI-engine's names for them, with its keywords."""


def wrappers_of(setting: Any, caller: str) -> list[Wrap]:
    """The wrappers that a config asks for: the name of a preset, or a list of functions and dicts.

    A dict names one of ``WRAPPERS``, or one of Gymnasium's wrappers, as ``type``, and has keywords as ``kwargs``.
    """
    if setting is None or isinstance(setting, str):
        if (setting or "default") not in PRESETS:
            raise UnknownPreset(f"env_wrapper: expected one of {list(PRESETS)} or a list, got {setting!r}")
        return PRESETS[setting or "default"](caller)
    return [_wrapper(item) for item in setting]


def _wrapper(item: Any) -> Wrap:
    if not isinstance(item, Mapping):
        if not callable(item):
            raise WrongSetting(f"env_wrapper: expected functions and dicts, got {item!r}")
        return item  # type: ignore[no-any-return]
    name = str(item.get("type"))
    kind = WRAPPERS.get(name) or getattr(gym.wrappers, name, None)
    if kind is None:
        raise WrongSetting(
            f"env_wrapper: Gymnasium has no wrapper {item.get('type')!r}, and of DI-engine's there are {list(WRAPPERS)}"
        )
    kwargs = dict(item.get("kwargs", {}))
    return lambda env: kind(env, **kwargs)
