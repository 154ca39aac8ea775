"""Managers by their names in a config."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.errors import WrongSetting
from shoal.faces.ding.base import BaseEnvManager
from shoal.faces.ding.env_classes import Registry, class_named
from shoal.faces.ding.gym_vector import GymVectorEnvManager
from shoal.faces.ding.pool_manager import PoolEnvManager
from shoal.faces.ding.processes import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from shoal.faces.ding.v2 import BaseEnvManagerV2, SubprocessEnvManagerV2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.faces.ding.wrapper import DingEnvWrapper

ENV_MANAGER_REGISTRY = Registry(
    {
        "base": BaseEnvManager,
        "async_subprocess": AsyncSubprocessEnvManager,
        "subprocess": SyncSubprocessEnvManager,
        "base_v2": BaseEnvManagerV2,
        "subprocess_v2": SubprocessEnvManagerV2,
        "gym_vector": GymVectorEnvManager,
        "env_pool": PoolEnvManager,
    }
)
"""Classes by the name that a config has as ``type``; modules in ``import_names`` may add their own."""


def get_env_manager_cls(cfg: Mapping[str, Any]) -> type[Any]:
    """The class that a config names.

    Example:
        >>> get_env_manager_cls({"type": "subprocess"}).__name__
        'SyncSubprocessEnvManager'
    """
    return class_named(cfg, ENV_MANAGER_REGISTRY)


def create_env_manager(manager_cfg: Mapping[str, Any], env_fn: Sequence[Callable[[], Any]]) -> Any:
    """The manager that a config describes. The config itself is not changed.

    Args:
        manager_cfg: A complete config of the manager, with its name as ``type`` and modules to import in
            ``import_names``.
        env_fn: One function per env.
    """
    cls = get_env_manager_cls(manager_cfg)
    cfg = deepcopy(manager_cfg)
    for key in ("type", "import_names"):
        cfg.pop(key, None)  # type: ignore[attr-defined]
    return cls(env_fn=env_fn, cfg=cfg)


def setup_ding_env_manager(
    env: DingEnvWrapper, env_num: int, context: str | None = None, debug: bool = False, caller: str = "collector"
) -> Any:
    """A manager of ``env_num`` clones of an env, in worker processes, or in this process if ``debug``."""
    if caller not in ("collector", "evaluator"):
        raise WrongSetting(f"caller: expected 'collector' or 'evaluator', got {caller!r}")
    cls = BaseEnvManagerV2 if debug else SubprocessEnvManagerV2
    cfg = cls.default_config()
    if context is not None and not debug:
        cfg["context"] = context
    return cls([partial(env.clone, caller)] * env_num, cfg)
