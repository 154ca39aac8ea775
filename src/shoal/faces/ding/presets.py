"""Wrappers that go around an env before it is given DI-engine's dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.errors import WrongSetting
from shoal.faces.ding.env import RETURN

Wrap = Callable[[Any], Any]


class HybridActions(gym.ActionWrapper[Any, Any, Any]):
    """Accepts ``{"type": ..., "args": ...}`` for an action that is a choice with parameters."""

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
        self._return += float(reward)
        if terminated or truncated:
            info = {**info, RETURN: np.array([self._return], np.float32)}
        return obs, reward, terminated, truncated, info


def clip_reward(env: Any) -> Any:
    """Clip rewards to -1, 0 and 1."""
    return gym.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward))))


def frame_stack(env: Any, n_frames: int = 4) -> Any:
    """Stack the last observations into one."""
    return gym.wrappers.FrameStackObservation(env, n_frames)


def max_and_skip(env: Any, skip: int = 4) -> Any:
    """Repeat each action ``skip`` times; the observation is the maximum of the last two."""
    return gym.wrappers.MaxAndSkipObservation(env, skip)


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
    "clip_reward": clip_reward,
    RETURN: EpisodeReturn,
    "frame_stack": frame_stack,
    "gym_hybrid_dict_action": HybridActions,
    "max_and_skip": max_and_skip,
}
"""Wrappers by DI-engine's names for them, with its keywords."""


def wrappers_of(setting: Any, caller: str) -> list[Wrap]:
    """The wrappers that a config asks for: the name of a preset, or a list of functions and dicts.

    A dict names one of ``WRAPPERS``, or one of Gymnasium's wrappers, as ``type``, and has keywords as ``kwargs``.
    """
    if setting is None or isinstance(setting, str):
        if (setting or "default") not in PRESETS:
            raise WrongSetting(f"env_wrapper: expected one of {list(PRESETS)} or a list, got {setting!r}")
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
