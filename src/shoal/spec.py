"""What one env takes and returns: spaces as named leaves, with the checks and casts that enforce them.

A space is a tree whose inner nodes are ``Dict`` and ``Tuple``. Its leaves are of two kinds:

    array leaf    Box, Discrete, MultiDiscrete, MultiBinary: a fixed shape and dtype, so a column in memory
    object leaf   Text, Sequence, Graph, OneOf and users' own spaces: carried beside the columns, as they are

``SpaceTree`` knows the leaves and converts between a nested value and the flat list of its leaves; ``Leaf`` knows
what one leaf may hold. Nothing is ever broadcast, and a cast must not overflow: a float32 column refuses 1.5e300
instead of storing infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from shoal.errors import ActionError, SpecError, WrongShape

OBJECT = np.dtype(object)
FEW = 64  # up to this many numbers, Python's own min and max are quicker than numpy's
_NESTED_SPACES = (spaces.Dict, spaces.Tuple)
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a space: its place in the tree and, for an array leaf, its shape, dtype and bounds."""

    path: str
    space: Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Any = None
    high: Any = None

    @property
    def is_array(self) -> bool:
        """Whether the leaf is a column in memory; otherwise its values are Python objects."""
        return self.dtype != OBJECT

    def blank(self) -> np.ndarray[Any, Any]:
        """A neutral value for an array leaf: zero, or the value closest to it that the bounds allow."""
        zero = np.zeros(self.shape, self.dtype)
        return zero if self.low is None else np.clip(zero, self.low, self.high).astype(self.dtype)

    def without_bounds(self) -> Leaf:
        """The same leaf, but continuous values may leave the space, and bounds that nothing can exceed are dropped."""
        if self.dtype.kind == "f":
            return replace(self, low=-np.inf, high=np.inf)
        if self.dtype.kind in "iu" and self.low is not None:
            limits = np.iinfo(self.dtype)
            if np.all(self.low == limits.min) and np.all(self.high == limits.max):
                return replace(self, low=None, high=None)
        return self

    def fit(self, value: Any) -> Any:
        """One env's value as this leaf stores it.

        Raises:
            SpecError: If shape or dtype do not fit, or a value would overflow in the cast. For an object leaf: if the
                value is not in the space.
        """
        if not self.is_array:
            if not self.space.contains(value):
                raise SpecError(f"{self.path}: expected a value of {self.space}, got {_brief(value)}")
            return value
        array = self._as_array(value, self.shape, SpecError)
        if array.shape != self.shape:
            raise SpecError(f"{self.path}: expected shape {self.shape}, got {array.shape} ({_brief(value)})")
        return self._cast(array, SpecError)

    def fit_batch(self, values: Any, rows: int, ids: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """A batch of actions for this leaf, checked for count, shape, dtype, range and NaN.

        Raises:
            ActionError: With the path, what was expected, and which row is wrong; with ``ids``, also whose row it is.
        """
        if not self.is_array:
            return self._object_batch(values, rows, ids)
        expected = (rows, *self.shape)
        array = values if values.__class__ is np.ndarray else self._as_array(values, expected, ActionError)
        if array.shape != expected:
            raise WrongShape(f"{self.path}: expected shape {expected}, got {array.shape}{self._shape_hint(array)}")
        array = self._cast(array, ActionError)
        if self.low is not None:
            self._check_range(array, ids)
        return array

    def _as_array(
        self, value: Any, shape: tuple[int, ...], error: type[SpecError | ActionError]
    ) -> np.ndarray[Any, Any]:
        try:
            return np.asarray(value)
        except ValueError as cause:
            raise error(f"{self.path}: expected shape {shape}, got a ragged {_brief(value)}") from cause

    def _object_batch(self, values: Any, rows: int, ids: Sequence[int] | None) -> np.ndarray[Any, Any]:
        # A string has a length too, and its characters may well be texts of the space.
        if isinstance(values, (str, bytes)) or not hasattr(values, "__len__") or len(values) != rows:
            got = _brief(values) if isinstance(values, (str, bytes)) or not hasattr(values, "__len__") else len(values)
            raise ActionError(f"{self.path}: expected {rows} values, got {got}")
        batch = np.empty(rows, OBJECT)
        for row, value in enumerate(values):
            if not self.space.contains(value):
                raise ActionError(f"{self.path}: {_row(row, ids)}: {_brief(value)} is not in {self.space}")
            # A copy, because the caller may change the object before its env has seen it.
            batch[row] = deepcopy(value)
        return batch

    def _shape_hint(self, array: np.ndarray[Any, Any]) -> str:
        if array.ndim == len(self.shape) + 2 and array.shape[-1] == 1:
            return "; drop the last axis of size 1, for example with actions[..., 0]"
        if array.ndim and array.shape[1:] == self.shape:
            return "; one action per env is needed"
        return ""

    def _cast(self, array: np.ndarray[Any, Any], error: type[SpecError | ActionError]) -> np.ndarray[Any, Any]:
        """The same values in this leaf's dtype, or an error that says what does not fit."""
        if array.dtype == self.dtype:
            return array
        integers = array.dtype.kind in "iu" and self.dtype.kind in "iu"
        if not integers and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise error(f"{self.path}: expected dtype {self.dtype}, got {array.dtype} ({_brief(array)})")
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(self.dtype)
        lost = np.isfinite(cast) != np.isfinite(array) if self.dtype.kind == "f" else (cast != array) & integers
        if lost.any():
            place = np.argwhere(lost)[0].tolist()
            what = f"{array[tuple(place)]}{f' at {place}' * bool(place)}"
            raise error(f"{self.path}: a value of dtype {array.dtype} overflows {self.dtype} ({what})")
        return cast

    def _check_range(self, array: np.ndarray[Any, Any], ids: Sequence[int] | None) -> None:
        if array.size <= FEW and not self.shape and self.dtype.kind in "iu":
            # For a handful of scalars, Python's min and max take a third of the time of two numpy reductions.
            values = array.tolist()
            if self.low <= min(values) and max(values) <= self.high:
                return
        # Written so that NaN, for which every comparison is false, counts as outside.
        inside = (array >= self.low) & (array <= self.high)
        if b"\0" not in inside.tobytes():
            return
        row = int(np.argwhere(~inside)[0][0])
        hint = ""
        if self.dtype.kind == "f":
            is_number = not np.isnan(array[row]).any()
            advice = "clip the action or wrap the env in gymnasium.wrappers.ClipAction"
            hint = f"; {advice}" if is_number else "; NaN is no action, and comes from whoever chose it"
        raise ActionError(f"{self.path}: {_row(row, ids)}: {_brief(array[row])} is outside {self.space}{hint}")


class RawActions(list[Any]):
    """Actions, one per env, that go to their envs as they are: unchecked, and not through the columns.

    Example:
        >>> RawActions(["left", None])
        ['left', None]
    """


class Field(NamedTuple):
    """An info field that an env reports with every row, so that it can be a column.

    Attributes:
        name: Its key.
        dtype: Of its numbers.
        shape: Of one row.
        at_reset: Whether the first row of an episode has it too; if not, the column is zero there.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at_reset: bool = True


class SpaceTree:
    """A space taken apart into leaves, in a fixed order.

    Attributes:
        space: The space itself.
        leaves: Its leaves, in the order of ``flatten``.
        is_single: Whether the space is one leaf and nothing else, so that the nested value is the leaf's value.
        flat_keys: The keys of a Dict whose items are leaves; None for everything else.
    """

    def __init__(self, space: Space[Any], name: str) -> None:
        self.space = space
        self.name = name
        self.leaves: tuple[Leaf, ...] = tuple(_leaves(space, name))
        self.is_single = not isinstance(space, _NESTED_SPACES)
        self.has_objects = any(not leaf.is_array for leaf in self.leaves)
        self.flat_keys = _flat_keys(space)

    def __reduce__(self) -> tuple[type[SpaceTree], tuple[Space[Any], str]]:
        return SpaceTree, (self.space, self.name)

    def without_bounds(self) -> SpaceTree:
        """The same tree for callers whose continuous values may leave the space; NaN is still refused."""
        tree = copy(self)
        tree.leaves = tuple(leaf.without_bounds() for leaf in self.leaves)
        return tree

    def flatten(self, value: Any) -> list[Any]:
        """The leaves of a nested value.

        Raises:
            SpecError: If the value does not have the structure of the space.
        """
        return [value] if self.is_single else list(_flatten(self.space, value, self.name, SpecError))

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The nested value made of the given leaves."""
        if self.is_single:
            return leaves[0]
        if self.flat_keys is not None:
            return dict(zip(self.flat_keys, leaves, strict=True))
        return _unflatten(self.space, iter(leaves))

    def fit_batch(self, actions: Any, rows: int, ids: Sequence[int] | None = None) -> list[np.ndarray[Any, Any]]:
        """A batch of actions as one checked array per leaf, each with ``rows`` rows.

        ``ids`` are the envs that the rows are for, so that an error can name them.
        """
        if self.is_single:
            return [self.leaves[0].fit_batch(actions, rows, ids)]
        flat = _flatten(self.space, actions, self.name, ActionError)
        return [leaf.fit_batch(values, rows, ids) for leaf, values in zip(self.leaves, flat, strict=True)]


@dataclass(frozen=True)
class EnvSpec:
    """The contract of one env, as every engine and face sees it.

    Attributes:
        observation: The observation space, as leaves.
        action: The action space, as leaves.
        id: What to call the env in messages.
        metadata: The env's own metadata.
        render_mode: The env's render mode.
        registered: Gymnasium's ``EnvSpec`` of a registered env, if it has one.
        info: Info fields that come with every row. Other infos take the side channel.
        players: Names of the players of a multi-player env; empty for all others.
        player: The contract of one player, the same for all of them, if there are players.
    """

    observation: SpaceTree
    action: SpaceTree
    id: str
    metadata: dict[str, Any] = field(default_factory=dict)
    render_mode: str | None = None
    registered: Any = None
    info: tuple[Field, ...] = ()
    players: tuple[str, ...] = ()
    player: EnvSpec | None = None

    def difference(self, other: EnvSpec) -> str | None:
        """What in ``other`` differs from this spec, in words; None if the two agree."""
        for mine, theirs in ((self.observation, other.observation), (self.action, other.action)):
            if not same_space(mine.space, theirs.space):
                return f"its {mine.name} space is {_first_difference(theirs, mine)}"
        if self.players != other.players:
            return f"its players are {list(other.players)}, not {list(self.players)}"
        return None


def _first_difference(theirs: SpaceTree, mine: SpaceTree) -> str:
    for a, b in zip(theirs.leaves, mine.leaves, strict=False):
        if a.path != b.path:
            return f"{a.space} at {a.path}, not {b.space} at {b.path}"
        if not same_space(a.space, b.space):
            return f"{a.space} at {a.path}, not {b.space}{_equality_hint(a.space, b.space)}"
    return f"{theirs.space}, not {mine.space}"


def _equality_hint(a: Space[Any], b: Space[Any]) -> str:
    if type(a) is not type(b) or type(a).__eq__ is not object.__eq__:
        return ""
    return f"; {type(a).__name__} has no __eq__, without which no two of them are the same: give it one"


def same_space(a: Space[Any], b: Space[Any]) -> bool:
    """``a == b``, but for large boxes in a fraction of the time."""
    if a is b:
        return True
    if type(a) is type(b) is spaces.Dict:
        return a.spaces.keys() == b.spaces.keys() and all(same_space(a[key], b[key]) for key in a.spaces)
    if type(a) is type(b) is spaces.Tuple:
        return len(a.spaces) == len(b.spaces) and all(map(same_space, a.spaces, b.spaces))
    if type(a) is type(b) is spaces.Box and a.dtype == b.dtype:
        # As a rule, bounds are equal to the last bit. Where they are not, Gymnasium's comparison has a tolerance.
        return (np.array_equal(a.low, b.low) and np.array_equal(a.high, b.high)) or a == b
    return bool(a == b)


def _leaves(space: Space[Any], path: str) -> list[Leaf]:
    if isinstance(space, spaces.Dict):
        return [leaf for key, child in space.spaces.items() for leaf in _leaves(child, f"{path}[{key!r}]")]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, child in enumerate(space.spaces) for leaf in _leaves(child, f"{path}[{i}]")]
    if not isinstance(space, _ARRAY_SPACES):
        return [Leaf(path, space, (), OBJECT)]
    low, high = _bounds(space)
    return [Leaf(path, space, tuple(space.shape or ()), numpys_own(space.dtype), low, high)]


def numpys_own(dtype: Any) -> np.dtype[Any]:
    """The dtype as numpy's own object; one that was pickled is equal to it, but another object.

    It would always fail the check for identity, which is all that a row has time for.
    """
    own: np.dtype[Any] = np.dtype(dtype)
    return np.dtype(own.str) if own.fields is None else own


def _bounds(space: Space[Any]) -> tuple[Any, Any]:
    """Inclusive limits of an array space; infinite ones still refuse NaN."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if isinstance(space, spaces.Box) and not space.shape:
        return space.low.item(), space.high.item()
    bounds = (getattr(space, "low", None), getattr(space, "high", None))
    # A bound that is the same everywhere is one number: to compare with that takes a tenth of the time.
    low, high = (np.array(b.flat[0]) if b is not None and b.size and (b == b.flat[0]).all() else b for b in bounds)
    return low, high


def _flatten(space: Space[Any], value: Any, path: str, error: type[SpecError | ActionError]) -> list[Any]:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            raise error(f"{path}: expected a dict with keys {list(space.spaces)}, got {_brief(value)}")
        if value.keys() != space.spaces.keys():
            missing, extra = space.spaces.keys() - value.keys(), value.keys() - space.spaces.keys()
            told = [
                f"{word} {sorted(map(str, keys))}" for word, keys in (("missing", missing), ("extra", extra)) if keys
            ]
            raise error(f"{path}: keys do not match: {', '.join(told)}")
        parts: Any = ((child, value[key], f"{path}[{key!r}]") for key, child in space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            raise error(f"{path}: expected a tuple of {len(space.spaces)}, got {_brief(value)}")
        parts = ((child, item, f"{path}[{i}]") for i, (child, item) in enumerate(zip(space.spaces, value, strict=True)))
    else:
        return [value]
    return [leaf for child, item, below in parts for leaf in _flatten(child, item, below, error)]


def _unflatten(space: Space[Any], leaves: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _unflatten(child, leaves) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_unflatten(child, leaves) for child in space.spaces)
    return next(leaves)


def _flat_keys(space: Space[Any]) -> tuple[str, ...] | None:
    if not isinstance(space, spaces.Dict) or any(isinstance(s, _NESTED_SPACES) for s in space.spaces.values()):
        return None
    return tuple(space.spaces)


def flattener(tree: SpaceTree) -> Callable[[Any], list[Any]]:
    """A fast form of ``tree.flatten`` for the shapes that matter: one leaf, or a flat Dict.

    For a flat Dict it takes the keys in order, and leaves anything unusual to ``tree.flatten``, which explains it.
    """
    keys = tree.flat_keys
    if keys is not None:
        size = len(keys)

        def flatten_dict(value: Any) -> list[Any]:
            if type(value) is dict and len(value) == size:
                try:
                    return [value[key] for key in keys]
                except KeyError:
                    pass
            return tree.flatten(value)

        return flatten_dict
    return tree.flatten


def _row(row: int, ids: Sequence[int] | None) -> str:
    return f"row {row}" if ids is None else f"row {row}, env {ids[row]}"


def _brief(value: Any) -> str:
    """A value for an error text: its type and the start of its repr."""
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
