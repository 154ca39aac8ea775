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
        self._return += float(reward)
        if terminated or truncated:
            info = {**info, RETURN: np.array([self._return], np.float32)}
        return obs, reward, terminated, truncated, info


class MaxAndSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action ``skip`` times, or until the episode ends; the observation is the maximum of the last two."""

    def __init__(self, env: Any, skip: int = 4) -> None:
        super().__init__(env)
        if skip < 1:
            raise WrongSetting(f"max_and_skip: expected skip to be at least 1, got {skip!r}")
        self._skip = skip

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take up to ``skip`` steps, whose rewards are added up."""
        seen: deque[Any] = deque(maxlen=2)
        total = 0.0
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = super().step(action)
            seen.append(np.array(obs))  # the env may write its next observation over this one
            total += float(reward)
            if terminated or truncated:
                break
        return np.maximum(seen[0], seen[-1]), total, terminated, truncated, info


class UnknownPreset(WrongSetting, NotImplementedError):
    """No wrappers have this name."""


def clip_reward(env: Any) -> Any:
    """Clip rewards to -1, 0 and 1."""
    return gym.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward))))


def frame_stack(env: Any, n_frames: int = 4) -> Any:
    """Stack the last observations into one."""
    return gym.wrappers.FrameStackObservation(env, n_frames)


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
    "max_and_skip": MaxAndSkip,
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
