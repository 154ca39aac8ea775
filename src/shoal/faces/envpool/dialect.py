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

    A config has an option under all its names, and ``make`` takes a whole config.

    Raises:
        ArgumentError: If one has different values under its names.
    """
    own = dict(given)
    for alias, name in kind.option_aliases.items():
        if alias in own and alias not in options:
            value = own.pop(alias)
            if name in own:
                _check_alike(alias, value, name, own[name])
            own[name] = value
    for name, default in options.items():
        if name.endswith(_RANGE) and isinstance(default, (list, tuple)):
            _join_ends(own, name, default)
    return own


def _join_ends(own: dict[str, Any], name: str, default: Any) -> None:
    """Put the ends of a range, if they were given, where the range belongs."""
    stem = name.removesuffix(_RANGE)
    ends = [f"{stem}_min", f"{stem}_max"]
    given = {end: own.pop(end) for end in ends if end in own}
    if not given:
        return
    whole = own.get(name, default)
    is_range = isinstance(whole, (list, tuple)) and len(whole) == len(ends)
    values = dict(zip(ends, whole, strict=True)) if is_range else {}
    if name in own:
        for end, value in given.items():
            _check_alike(end, value, name, values.get(end))
    own[name] = tuple({**values, **given}.values())


def _check_alike(alias: str, value: Any, name: str, other: Any) -> None:
    if not np.array_equal(value, other):
        raise ArgumentError(f"{alias} and {name} were both given, with different values: they are the same")
