"""Array specs as dm_env specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from shoal.errors import BackendUnavailable
from shoal.faces.envpool.trees import as_tuple

try:
    from dm_env import specs
except ImportError as error:
    raise BackendUnavailable("dm_env is not installed: pip install 'shoal[dm]'") from error

if TYPE_CHECKING:
    from shoal.faces.envpool.arrayspec import ArraySpec
    from shoal.faces.envpool.spec import EnvSpec


def observation_spec(spec: EnvSpec) -> Any:
    """Ids, observation and info of one env, as the namedtuple ``State``."""
    fields: dict[str, Any] = {}
    for key, array in spec.state_array_spec.items():
        kind, _, name = key.partition(":")
        if kind in ("obs", "info"):
            _put(fields, (name or "obs").split("."), _dm_spec(array, name or "obs"))
    return as_tuple("State", fields)


def action_spec(spec: EnvSpec) -> Any:
    """The action alone if it is a single array; else all its parts, ids included."""
    arrays = spec.action_array_spec
    if not isinstance(spec.action_space, (spaces.Dict, spaces.Tuple)):
        return _dm_spec(arrays["action"], "action")
    fields: dict[str, Any] = {}
    for name, array in arrays.items():
        _put(fields, name.split("."), _dm_spec(array, name))
    return as_tuple("Action", fields)


def reward_spec() -> Any:
    """The reward of one env."""
    return specs.Array((), np.float32, "reward")


def discount_spec() -> Any:
    """The discount of one env: 0 where an episode ends, else 1."""
    return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")


def _put(fields: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        fields = fields.setdefault(name, {})
    fields.setdefault(path[-1], value)


def _dm_spec(array: ArraySpec, path: str) -> Any:
    name = path.rpartition(".")[2]
    # One row per player is one row per env here.
    shape = [size for size in array.shape if size != -1]
    if array.is_discrete and array.minimum == 0:
        return specs.DiscreteArray(array.maximum + 1, array.dtype, name)
    if array.minimum is None:
        return specs.Array(shape, array.dtype, name)
    return specs.BoundedArray(shape, array.dtype, array.minimum, array.maximum, name)
