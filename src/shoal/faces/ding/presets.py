"""What is wrapped around an env before DI-engine's dialect is spoken to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.errors import WrongSetting

Wrap = Callable[[Any], Any]


class HybridActions(gym.ActionWrapper[Any, Any, Any]):
    """Takes ``{"type": ..., "args": ...}`` for an action that is a choice with parameters."""

    def action(self, action: Any) -> Any:
        """The pair that the env wants."""
        return (action["type"], action["args"]) if isinstance(action, Mapping) else action


def _atari(caller: str) -> list[Wrap]:
    is_collector = caller == "collector"

    def prepare(env: Any) -> Any:
        return gym.wrappers.AtariPreprocessing(env, noop_max=30, terminal_on_life_loss=is_collector, scale_obs=True)

    def stack(env: Any) -> Any:
        return gym.wrappers.FrameStackObservation(env, 4)

    def clip(env: Any) -> Any:
        return gym.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward))))

    return [prepare, stack, *([clip] if is_collector else [])]


PRESETS: dict[str, Callable[[str], list[Wrap]]] = {
    "default": lambda caller: [],
    "mujoco_default": lambda caller: [],
    "atari_default": _atari,
    "gym_hybrid_default": lambda caller: [HybridActions],
}
"""The return of each episode is in the info whatever the preset; these are the wrappers that they add."""


def wrappers_of(setting: Any, caller: str) -> list[Wrap]:
    """The wrappers that a config asks for: the name of a preset, or a list of functions and dicts.

    A dict has the name of one of Gymnasium's wrappers as ``type``, and its arguments as ``kwargs``.
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
    kind = getattr(gym.wrappers, str(item.get("type")), None)
    if kind is None:
        raise WrongSetting(f"env_wrapper: Gymnasium has no wrapper {item.get('type')!r}")
    kwargs = dict(item.get("kwargs", {}))
    return lambda env: kind(env, **kwargs)
