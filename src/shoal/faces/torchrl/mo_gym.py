"""MO-Gymnasium's envs, whose rewards are vectors, in TorchRL's dialect."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError, BackendUnavailable
from shoal.faces.torchrl.gym import GymEnv, GymWrapper
from shoal.faces.torchrl.gym_making import ClassProperty

if TYPE_CHECKING:
    from types import ModuleType


class MOGymWrapper(GymWrapper):
    """An MO-Gymnasium env: ``reward`` has one component per objective, like the env's ``reward_space``.

    Args:
        env: The env.
        categorical_action_encoding: Whether discrete actions and observations are integers; otherwise they are one-hot.
        **kwargs: See ``GymWrapper``.
    """

    libname = "mo-gymnasium"
    git_url = "https://github.com/Farama-Foundation/MO-Gymnasium"

    @property
    def lib(self) -> ModuleType:
        """The library."""
        return _library()

    @ClassProperty
    def available_envs(cls) -> list[str]:
        """The ids that can be made."""
        return sorted(name for name, spec in _registry().items() if "mo_gymnasium" in str(spec.entry_point))


class MOGymEnv(MOGymWrapper, GymEnv):
    """An MO-Gymnasium env, made from its id.

    Args:
        env_name: Its id.
        **kwargs: See ``GymEnv``. A pool has no vector rewards, so there is no ``num_envs``; use ``num_workers``.
    """

    def __init__(self, env_name: str, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("num_envs"):
            raise ArgumentError("num_envs: rewards that are vectors do not fit a pool; take ParallelEnv or num_workers")
        GymEnv.__init__(self, env_name, *args, **kwargs)


def _library() -> ModuleType:
    if find_spec("mo_gymnasium") is None:
        raise BackendUnavailable("MOGymEnv needs mo-gymnasium: pip install mo-gymnasium")
    return importlib.import_module("mo_gymnasium")


def _registry() -> dict[str, Any]:
    _library()
    import gymnasium

    return dict(gymnasium.registry)
