"""Nested arrays whose keys are attributes, as returned by the array versions of the managers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_OF_EACH = ("shape", "dtype")  # of a tree, these are trees of those of its arrays
_NO_LETTER = re.compile(r"[^0-9A-Za-z_]")


class TreeArray(Mapping[str, Any]):
    """A mapping of arrays, or of further mappings, whose keys are attributes too.

    Example:
        >>> tree = TreeArray({"obs": {"pos": np.zeros(2)}, "done": np.array(True)})
        >>> tree.obs.pos, tree.done.item(), "done" in tree, tree.shape.obs.pos
        (array([0., 0.]), True, True, (2,))
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        own = {key: TreeArray(value) if isinstance(value, Mapping) else value for key, value in items.items()}
        object.__setattr__(self, "_items", own)

    @classmethod
    def of(cls, items: dict[str, Any]) -> TreeArray:
        """A tree around a dict whose values are all arrays or trees already."""
        tree = _new(cls)
        _set_items(tree, items)
        return tree

    def __getattr__(self, key: str) -> Any:
        # During unpickling there are no items to look into yet.
        items = {} if key.startswith("__") else object.__getattribute__(self, "_items")
        if key in items:
            return items[key]
        if key in _OF_EACH and items:
            return TreeArray.of({name: getattr(value, key) for name, value in items.items()})
        raise AttributeError(f"no {key!r} here, only {list(self)}")

    def json(self) -> dict[str, Any]:
        """The same as nested dicts of arrays."""
        return {key: value.json() if isinstance(value, TreeArray) else value for key, value in self._items.items()}

    def __setattr__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __getitem__(self, key: Any) -> Any:
        """The item of this name; or, for a row or a slice, the same tree with that part of every array."""
        if isinstance(key, str):
            return self._items[key]
        return TreeArray({name: value[key] for name, value in self._items.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        return TreeArray, (dict(self._items),)

    def __repr__(self) -> str:
        return f"TreeArray({self._items!r})"


# Managers make two trees per env and step, and this takes half the time of calling the class.
_new = object.__new__
_set_items = vars(TreeArray)["_items"].__set__


def stack(rows: Sequence[Any]) -> Any:
    """Rows as one array; a ``TreeArray`` of arrays if they are dicts."""
    if rows[0].__class__ is not np.ndarray and isinstance(rows[0], Mapping):
        return TreeArray({key: stack([row[key] for row in rows]) for key in rows[0]})
    return np.array(rows)


def rows_of(batch: Any) -> list[Any]:
    """A batch of actions, row by row."""
    if isinstance(batch, Mapping):
        columns = {key: rows_of(value) for key, value in batch.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return list(batch)


def tree_of(value: Any) -> Any:
    """An observation or reward as an array, or as a ``TreeArray`` of arrays."""
    if value.__class__ is np.ndarray:
        return value
    if isinstance(value, Mapping):
        return TreeArray({key: tree_of(item) for key, item in value.items()})
    return None if value is None else np.asarray(value)


def info_tree(info: Mapping[str, Any], *, keeps_text: bool = False) -> TreeArray:
    """An info as arrays, under names that can be attributes. What is no number is an array of objects.

    Args:
        info: The info.
        keeps_text: Whether strings are kept too; if not, they are left out.

    Example:
        >>> info_tree({"TimeLimit.truncated": True, "9lives": 9, "note": "text"})
        TreeArray({'TimeLimit_truncated': array(True), '_9lives': array(9)})
    """
    made: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, Mapping):
            made[identifier(key)] = info_tree(value, keeps_text=keeps_text)
        elif keeps_text or not isinstance(value, str):
            made[identifier(key)] = _array_of(value)
    return TreeArray(made)


def _array_of(value: Any) -> np.ndarray[Any, Any]:
    """A value as an array; one without dimensions around lists that do not fit together."""
    try:
        return np.asarray(value)
    except ValueError:
        around = np.empty((), object)
        around[()] = value
        return around


def identifier(key: Any) -> str:
    """A key as a name that can be an attribute in Python."""
    name = _NO_LETTER.sub("_", str(key))
    return f"_{name}" if name[:1].isdigit() else name
