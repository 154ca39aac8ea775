"""EnvPool's names for the options of native envs, and its types of info fields, where they differ from shoal's.

healthy_z_min, healthy_z_max     both ends of ``healthy_z_range``, and likewise for every range
ctrl_cost_weight                 whatever the env's ``option_aliases`` says it means
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.envs import TASKS
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.registry import Task

# Continuous actions are float64 here.
FIXED: Mapping[str, Any] = {"action_dtype": np.float64}
_RANGE = "_range"
_TYPES = {"prob": np.dtype(np.float32)}  # float64 in Gymnasium's toy texts


def info_types(task: Task) -> Mapping[str, np.dtype[Any]]:
    """The types of a task's info fields that differ from the env's own."""
    return _TYPES if task.id in TASKS else {}


def settled(kind: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their defaults, or where these are None, with what a kind of env takes in place of them."""
    settle = getattr(kind, "settled_options", None)
    own = {} if settle is None else settle({**options, **given})
    return {name: own.get(name) if value is None else value for name, value in options.items()}


def known_options(kind: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind of env with their defaults, and EnvPool's names for them with their values.

    Where the default is None, the kind's own value is shown.
    """
    ends: dict[str, Any] = {}
    for name, default in options.items():
        if name.endswith(_RANGE) and isinstance(default, (list, tuple)):
            stem = name.removesuffix(_RANGE)
            ends[f"{stem}_min"], ends[f"{stem}_max"] = given.get(name, default)
    named = {**options, **ends}
    aliases = {
        alias: given.get(name, named[name]) for alias, name in kind.option_aliases.items() if alias not in options
    }
    own = {name: _by_itself(kind, name) if value is None else value for name, value in options.items()}
    return {**{name: value for name, value in own.items() if name not in FIXED}, **ends, **aliases}


def _by_itself(kind: Any, name: str) -> Any:
    value = getattr(kind, name, None)
    return value if isinstance(value, (int, float, str)) else None


def own_options(kind: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options under the names that the kind of env has for them.

    Raises:
        ArgumentError: If one is given under two names.
    """
    own = dict(given)
    for alias, name in kind.option_aliases.items():
        if alias in own and alias not in options:
            _refuse_both(own, alias, name)
            own[name] = own.pop(alias)
    for name, default in options.items():
        stem = name.removesuffix(_RANGE)
        ends = [f"{stem}_min", f"{stem}_max"]
        if name.endswith(_RANGE) and isinstance(default, (list, tuple)) and any(end in own for end in ends):
            for end in ends:
                _refuse_both(own, end, name)
            own[name] = tuple(own.pop(end, value) for end, value in zip(ends, default, strict=True))
    return own


def _refuse_both(given: Mapping[str, Any], alias: str, name: str) -> None:
    if alias in given and name in given:
        raise ArgumentError(f"{alias} and {name} were both given: they are the same")
