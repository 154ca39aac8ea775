"""Classes by their names in a config."""

from __future__ import annotations

import importlib
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.errors import UnknownKind, WrongSetting

if TYPE_CHECKING:
    from collections.abc import KeysView, Mapping

Kind = TypeVar("Kind", bound=type[Any])


class Registry(dict[str, type[Any]]):
    """Classes by name, with a decorator that adds one.

    Example:
        >>> registry = Registry()
        >>> @registry.register("nothing")
        ... class Nothing:
        ...     pass
        >>> type(registry.build("nothing")).__name__
        'Nothing'
    """

    def register(self, name: str | None = None, module: Kind | None = None, force_overwrite: bool = False) -> Any:
        """Register a class, so that configs find it under this name; without a class, return a decorator for one.

        Args:
            name: The name, that of the class by default.
            module: The class.
            force_overwrite: Whether another class may lose this name.

        Raises:
            WrongSetting: If another class has this name.
        """

        def add(kind: Kind) -> Kind:
            key = kind.__name__ if name is None else name
            if not force_overwrite and key in self and self[key] is not kind:
                raise WrongSetting(f"{key!r} is the name of {self[key]} already, so it cannot be that of {kind}")
            self[key] = kind
            return kind

        return add if module is None else add(module)

    def get(self, name: Any) -> type[Any]:  # type: ignore[override]
        """The class with this name.

        Raises:
            UnknownKind: If there is none.
        """
        if name not in self:
            raise UnknownKind(
                f"type: expected one of {sorted(self)}, got {name!r}. A module in import_names may register others"
            )
        return self[name]

    def query(self) -> KeysView[str]:
        """The names there are."""
        return self.keys()

    def build(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        """An object of the class with this name, made with these arguments."""
        return self.get(name)(*args, **kwargs)


def class_named(cfg: Mapping[str, Any], registry: Registry) -> type[Any]:
    """The class that a config names as ``type``, after importing the modules in ``import_names``.

    Raises:
        UnknownKind: If no class has this name.
    """
    for name in cfg.get("import_names", []):
        importlib.import_module(name)
    return registry.get(cfg.get("type"))


ENV_REGISTRY = Registry()
"""Where ``type`` of a config is looked up; modules in ``import_names`` add their classes with ``register``."""


def get_env_cls(cfg: Mapping[str, Any]) -> type[Any]:
    """The class of envs that a config names as ``type``, after importing the modules in ``import_names``.

    Raises:
        UnknownKind: If no class has this name.
    """
    return class_named(cfg, ENV_REGISTRY)


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
