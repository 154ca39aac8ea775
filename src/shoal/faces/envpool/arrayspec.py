"""Spaces in EnvPool's terms: which arrays they become, and how those are described.

EnvPool knows only arrays and dicts of arrays, and its whole numbers are int32. So

    int64 that fits int32         becomes int32 (a Discrete stays a Discrete)
    a Tuple of Discretes          becomes one int32 array with an element for each (Blackjack)
    any other Tuple               becomes a Dict with the keys "0", "1", ...
    everything else               stays as it is; what is not an array (Text, Graph, ...) is an object array

``form_of`` does this for observations: it returns the new space, and a function that converts a batch. Actions keep
their space, since either way of nesting them is accepted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INT32 = np.dtype(np.int32)
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_FITS_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class ArraySpec:
    """One array: its type, shape and bounds. A first dimension of -1 means one row per player.

    Attributes:
        dtype: The type of its elements.
        shape: Its shape in one env.
        minimum: Lower bound, a number or an array; None if the elements are not numbers.
        maximum: Upper bound, inclusive.
        is_discrete: Whether it is one of a few whole numbers.
    """

    dtype: np.dtype[Any]
    shape: list[int]
    minimum: Any = None
    maximum: Any = None
    is_discrete: bool = False


class Form(NamedTuple):
    """How observations look from outside: their space, and the function that converts them (None: none needed)."""

    space: Space[Any]
    convert: Callable[[Any], Any] | None

    def given(self, obs: Any) -> Any:
        """Observations of a batch in this form."""
        return obs if self.convert is None else self.convert(obs)


def form_of(space: Space[Any]) -> Form:
    """The form in which observations of this space are handed out."""
    if isinstance(space, spaces.Tuple):
        if space.spaces and all(isinstance(child, spaces.Discrete) and _fits(child) for child in space.spaces):
            return _stacked([child for child in space.spaces if isinstance(child, spaces.Discrete)])
        return _named({str(i): child for i, child in enumerate(space.spaces)}, is_tuple=True)
    if isinstance(space, spaces.Dict):
        return _named(space.spaces, is_tuple=False)
    if space.dtype != np.int64 or not _fits(space):
        return Form(space, None)
    return Form(_as_int32(space), lambda array: array.astype(INT32))


def face_dtype(space: Space[Any]) -> np.dtype[Any]:
    """The type in which actions of a leaf are expected."""
    if not isinstance(space, _ARRAYS):
        return np.dtype(object)
    return INT32 if space.dtype == np.int64 and _fits(space) else np.dtype(space.dtype)


def named_leaves(space: Space[Any], name: str = "") -> Iterator[tuple[str, Space[Any]]]:
    """The leaves of a space with their names, nested ones joined by dots."""
    children: Any = ()
    if isinstance(space, spaces.Dict):
        children = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
    else:
        yield name, space
    for key, child in children:
        yield from named_leaves(child, f"{name}.{key}" if name else str(key))


def describe_leaf(space: Space[Any], *, per_player: bool = False) -> ArraySpec:
    """The array of one leaf."""
    dtype, shape = face_dtype(space), list(space.shape or ())
    if per_player or isinstance(space, spaces.Discrete):
        shape = [-1, *shape]
    if isinstance(space, spaces.Discrete):
        return ArraySpec(dtype, shape, int(space.start), int(space.start + space.n - 1), is_discrete=True)
    if isinstance(space, spaces.MultiDiscrete):
        return ArraySpec(dtype, shape, *_bounds(space.start, space.start + space.nvec - 1))
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(dtype, shape, 0, 1)
    if isinstance(space, spaces.Box):
        return ArraySpec(dtype, shape, *_bounds(space.low, space.high))
    return ArraySpec(dtype, shape)


def _stacked(parts: list[spaces.Discrete]) -> Form:
    # One pair of bounds for all elements, as in EnvPool.
    low = min(int(part.start) for part in parts)
    high = max(int(part.start + part.n) for part in parts) - 1
    size = len(parts)

    def stack(columns: tuple[Any, ...]) -> Any:
        rows = np.empty((len(columns[0]), size), INT32)
        for j, column in enumerate(columns):
            rows[:, j] = column
        return rows

    return Form(spaces.Box(low, high, (size,), np.int32), stack)


def _named(children: dict[str, Space[Any]], *, is_tuple: bool) -> Form:
    forms = {key: form_of(child) for key, child in children.items()}
    space = spaces.Dict(OrderedDict((key, form.space) for key, form in forms.items()))
    if not is_tuple and all(form.convert is None for form in forms.values()):
        return Form(space, None)
    parts = [(key, form.convert) for key, form in forms.items()]

    def convert(value: Any) -> dict[str, Any]:
        items = value if is_tuple else [value[key] for key, _ in parts]
        return {key: item if change is None else change(item) for (key, change), item in zip(parts, items, strict=True)}

    return Form(space, convert)


def _fits(space: Space[Any]) -> bool:
    """Whether every value of an integer space is an int32."""
    spec = _limits(space)
    return spec is not None and spec[0] >= _FITS_INT32.min and spec[1] <= _FITS_INT32.max


def _limits(space: Space[Any]) -> tuple[int, int] | None:
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.start.min()), int((space.start + space.nvec - 1).max())
    if isinstance(space, spaces.Box) and space.low.size:
        return int(space.low.min()), int(space.high.max())
    return None


def _as_int32(space: Space[Any]) -> Space[Any]:
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low.astype(INT32), space.high.astype(INT32), dtype=np.int32)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec, dtype=np.int32, start=space.start)
    return space


def _bounds(low: Any, high: Any) -> tuple[Any, Any]:
    """Both bounds as numbers if each is the same everywhere, else both as arrays."""
    arrays = np.asarray(low), np.asarray(high)
    if all(array.size and (array == array.flat[0]).all() for array in arrays):
        return arrays[0].flat[0].item(), arrays[1].flat[0].item()
    return arrays
