"""Classes of envs by their names in a config."""

from __future__ import annotations

import importlib
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.errors import WrongSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = TypeVar("Kind", bound=type[Any])


class EnvRegistry(dict[str, type[Any]]):
    """Classes of envs by name, with a decorator that adds one.

    Example:
        >>> registry = EnvRegistry()
        >>> @registry.register("nothing")
        ... class Nothing:
        ...     pass
        >>> registry["nothing"].__name__
        'Nothing'
    """

    def register(self, name: str) -> Callable[[Kind], Kind]:
        """Register the decorated class, so that configs find it under this name.

        Raises:
            WrongSetting: If another class has this name.
        """

        def add(kind: Kind) -> Kind:
            if self.setdefault(name, kind) is not kind:
                raise WrongSetting(f"{name!r} is the name of {self[name]} already, so it cannot be that of {kind}")
            return kind

        return add


ENV_REGISTRY = EnvRegistry()
"""Where ``type`` of a config is looked up; modules in ``import_names`` add their classes with ``register``."""


def get_env_cls(cfg: Mapping[str, Any]) -> type[Any]:
    """The class that a config names as ``type``, after importing the modules in ``import_names``.

    Raises:
        WrongSetting: If no class has this name.
    """
    for name in cfg.get("import_names", []):
        importlib.import_module(name)
    kind = str(cfg.get("type"))
    if kind not in ENV_REGISTRY:
        raise WrongSetting(
            f"type: no env is registered as {kind!r}, only {sorted(ENV_REGISTRY)}. A module in import_names adds one "
            "with @ENV_REGISTRY.register(name)"
        )
    return ENV_REGISTRY[kind]


def get_vec_env_setting(
    cfg: dict[str, Any], collect: bool = True, eval_: bool = True
) -> tuple[type[Any], list[dict[str, Any]] | None, list[dict[str, Any]] | None]:
    """The class that a config names, a config for each env that collects, and one for each that evaluates.

    The class makes the configs, in its ``create_collector_env_cfg`` and ``create_evaluator_env_cfg``. Those of
    ``BaseEnv`` remove the numbers of envs from ``cfg``.

    Args:
        cfg: The config of the envs.
        collect: Whether there are envs that collect; if not, None stands in for their configs.
        eval_: Likewise for envs that evaluate.
    """
    kind = get_env_cls(cfg)
    collector_cfg = kind.create_collector_env_cfg(cfg) if collect else None
    evaluator_cfg = kind.create_evaluator_env_cfg(cfg) if eval_ else None
    return kind, collector_cfg, evaluator_cfg


def create_model_env(cfg: Mapping[str, Any]) -> Any:
    """The env that a config names, made with the rest of the config as keywords. The config itself is not changed."""
    kind = get_env_cls(cfg)
    own = dict(deepcopy(cfg))
    for key in ("type", "import_names"):
        own.pop(key, None)
    return kind(**own)
