"""Gymnasium's envs from their ids: one, or many on a pool."""

from __future__ import annotations

import importlib
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from shoal.build import make_pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from shoal.pool import Pool


def make_gym_env(library: ModuleType, name: str, kwargs: dict[str, Any], frame_skip: int) -> tuple[Any, int]:
    """An env, and how many times the wrapper has to apply each action: once if the env itself repeats it."""
    repeats = frame_skip
    if frame_skip > 1 and takes_frameskip(library, name):
        kwargs, repeats = {**kwargs, "frameskip": frame_skip}, 1
    return library.make(name, **kwargs), repeats


def make_gym_pool(
    name: str, num_envs: int, kwargs: dict[str, Any], frame_skip: int, pool_kwargs: dict[str, Any]
) -> Pool:
    """Many envs on a pool that leaves it to the caller when to reset each.

    Actions are passed on as they are, even out of bounds: many envs clip them, and a policy may rely on it.
    """
    own = {key: value for key, value in kwargs.items() if key != "disable_env_checker" or not value}
    limit = own.pop("max_episode_steps", None)
    wrappers: list[Callable[[Any], Any]] = []
    if frame_skip > 1:
        if takes_frameskip(gym, name):
            own["frameskip"] = frame_skip
        else:
            wrappers.append(partial(RepeatedActions, times=frame_skip))
    options: dict[str, Any] = {
        "autoreset": "disabled",
        "bounded_actions": False,
        "env_kwargs": own,
        "wrappers": wrappers,
        "max_episode_steps": limit,
        **pool_kwargs,
    }
    return make_pool(name, num_envs, **options)


def takes_frameskip(library: ModuleType, name: str) -> bool:
    """Whether the env of an id can repeat actions itself: its constructor takes a ``frameskip``."""
    try:
        entry_point = library.spec(name).entry_point
    except library.error.Error:  # perhaps an id that only shoal knows; if not, making it will say so
        return False
    if isinstance(entry_point, str):
        module, _, attribute = entry_point.partition(":")
        entry_point = getattr(importlib.import_module(module), attribute)
    return entry_point is not None and "frameskip" in inspect.signature(entry_point).parameters


class RepeatedActions(gym.Wrapper[Any, Any, Any, Any]):
    """Gives the env each action several times, adds up the rewards, and stops where an episode ends.

    Args:
        env: The env.
        times: How many times.
    """

    def __init__(self, env: Any, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take ``times`` steps, or fewer if the episode ends."""
        total: Any = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class ClassProperty:
    """A property of a class, read from the class or from its instances."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: object, owner: type) -> Any:
        return self._function(owner)
