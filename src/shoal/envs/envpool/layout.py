"""EnvPool's arrays as shoal's spaces and info fields.

EnvPool describes every array of a batch by dtype, shape and bounds, with ``-1`` in place of the number of players,
which is one here. Bounds that an env does not declare are the limits of the C++ type; for floats the lower one is the
smallest positive number, which is no bound at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from shoal.errors import ArgumentError
from shoal.spec import EnvSpec, Field, SpaceTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IDS = ("env_id", "players.env_id")
_MOST_CHOICES = 2**20  # an integer with more values than this is a number rather than a choice
_ELAPSED = "elapsed_step"


@dataclass(frozen=True)
class Layout:
    """Which of EnvPool's arrays is which of shoal's columns.

    Attributes:
        observation: The observation space of one env.
        action: The action space of one env.
        fields: The info fields.
        state_keys: Names of the arrays of a batch, in EnvPool's order.
        obs_keys: Names of the arrays of the observation, in the order of its leaves.
        info_keys: Names of the arrays of the info fields.
        action_dtypes: The dtypes that EnvPool expects, by leaf of the action.
        action_shapes: The shapes of one row that EnvPool expects, by leaf of the action.
        action_order: For each array that an action consists of, in EnvPool's order, the leaf.
    """

    observation: SpaceTree
    action: SpaceTree
    fields: tuple[Field, ...]
    state_keys: tuple[str, ...]
    obs_keys: tuple[str, ...]
    info_keys: Mapping[str, str]
    action_dtypes: Sequence[np.dtype[Any]]
    action_shapes: Sequence[tuple[int, ...]]
    action_order: Sequence[int]

    def describe(self, name: str, metadata: Mapping[str, Any], render_mode: str | None) -> EnvSpec:
        """The contract of one env."""
        return EnvSpec(
            self.observation, self.action, name, metadata=dict(metadata), render_mode=render_mode, info=self.fields
        )


def layout_of(task_id: str, spec: Any, *, tells_discount: bool) -> Layout:
    """How to read and write the arrays that one of EnvPool's specs describes.

    Raises:
        ArgumentError: If several play in one env.
    """
    state, action = spec.state_array_spec, spec.action_array_spec
    players = int(spec.config.max_num_players)
    if players > 1 or "info:players.id" in state:
        raise ArgumentError(
            f"{task_id} is a task for {players} players, and the envpool engine runs those for one: use EnvPool itself "
            "or a PettingZoo env"
        )
    seen = {key.removeprefix("obs").removeprefix(":"): key for key in state if key.split(":")[0] == "obs"}
    looks = {name: _space(state[key], "observation") for name, key in seen.items()}
    observation, seen_names = _tree(looks, "observation")
    if empty := [leaf.path for leaf in observation.leaves if 0 in leaf.shape]:
        raise ArgumentError(f"{task_id}: with these options there is nothing in {', '.join(empty)}")
    acts = {key: action[key] for key in action if key not in _IDS}
    told, act_names = _tree({key: _space(spec, "action") for key, spec in acts.items()}, "action")
    infos = {
        key.removeprefix("info:"): key
        for key in state
        if key.startswith("info:") and key.removeprefix("info:").split(".")[0] not in ("env_id", "players")
    }
    infos[_ELAPSED] = _ELAPSED
    if tells_discount:
        infos["discount"] = "discount"
    return Layout(
        observation,
        told,
        tuple(Field(name, np.dtype(state[key].dtype), _shape(state[key])) for name, key in infos.items()),
        tuple(state),
        tuple(seen[name] for name in seen_names),
        infos,
        [np.dtype(acts[name].dtype) for name in act_names],
        [_shape(acts[name]) for name in act_names],
        [act_names.index(key) for key in acts],
    )


def _tree(named: Mapping[str, Space[Any]], role: str) -> tuple[SpaceTree, list[str]]:
    """Spaces as a tree, nested at dots, and their names in the order of its leaves; a single space is not nested."""
    if len(named) == 1:
        ((name, only),) = named.items()
        return SpaceTree(only, role), [name]
    nested: dict[str, Any] = {}
    for name, space in named.items():
        *parents, last = name.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = space
    space = _dict(nested)
    return SpaceTree(space, role), list(_names(space))


def _dict(nested: Mapping[str, Any]) -> spaces.Dict:
    return spaces.Dict({name: _dict(sub) if isinstance(sub, dict) else sub for name, sub in nested.items()})


def _names(space: spaces.Dict, prefix: str = "") -> Any:
    for name, sub in space.spaces.items():
        if isinstance(sub, spaces.Dict):
            yield from _names(sub, f"{prefix}{name}.")
        else:
            yield prefix + name


def _shape(spec: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in spec.shape if size != -1)


def _space(spec: Any, role: str) -> Space[Any]:
    shape, dtype = _shape(spec), np.dtype(spec.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(shape) if shape else spaces.Discrete(2)
    low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
    is_whole = dtype.kind in "iu" or (spec.is_discrete and role == "action")
    if is_whole and int(np.prod(shape)) == 1 and low.size == high.size == 1 and high.item() < _MOST_CHOICES:
        first = int(low.item())
        return spaces.Discrete(int(high.item()) - first + 1, start=first)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        low = np.where((low == limits.tiny) & (high == limits.max), -np.inf, low)
        high = np.where(high == limits.max, np.inf, high)
    low, high = (np.broadcast_to(_within(bound, dtype), shape) for bound in (low, high))
    return spaces.Box(low, high, shape, dtype.type)


def _within(bound: Any, dtype: np.dtype[Any]) -> Any:
    """A bound in the dtype of what it bounds."""
    with np.errstate(over="ignore"):
        return bound.astype(dtype)
