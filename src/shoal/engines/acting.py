"""Actions on their way from the columns to the envs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import span
from shoal.spec import FEW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.arrays import Rows
    from shoal.spec import Leaf


def action_reader(rows: Rows) -> Callable[[int, tuple[Any, ...]], Any]:
    """A function that returns an env's action, as a value of the env's own that nobody else will change.

    An action that was sent beside the columns takes their place.
    """
    tree = rows.spec.action
    columns = rows.action
    if tree.is_single:
        column = columns[0]
        if column is None:
            return lambda env_id, objects: objects[0]
        if not tree.leaves[0].shape:
            return lambda env_id, objects: objects[0] if objects else column[env_id]
        return lambda env_id, objects: objects[0] if objects else column[env_id].copy()

    def read_tree(env_id: int, objects: tuple[Any, ...]) -> Any:
        if objects and not tree.has_objects:
            return objects[0]
        rest = iter(objects)
        return tree.unflatten([next(rest) if c is None else np.array(c[env_id])[()] for c in columns])

    return read_tree


def actions_reader(rows: Rows, env_ids: Sequence[int]) -> Callable[[], Iterable[Any]]:
    """A function that returns the actions of a whole lane, each as a value of its env's own."""
    column = rows.action[0] if rows.spec.action.is_single else None
    if column is not None and env_ids:
        together = span(env_ids)
        if together is None:
            index = np.array(env_ids)
            return lambda: list(column[index])
        part = column[together]
        if column.ndim > 1:
            return lambda: list(part.copy())
        numbers = numbers_of(rows.spec.action.leaves[0])
        if numbers is not None:
            return lambda: map(numbers.__getitem__, part.tolist())
        return lambda: list(part)
    read = action_reader(rows)
    return lambda: [read(env_id, ()) for env_id in env_ids]


def numbers_of(leaf: Leaf) -> dict[int, Any] | None:
    """All values of a leaf that has few, as numpy scalars: looking one up takes a fraction of the time of making it."""
    if leaf.shape or leaf.dtype.kind not in "iu" or leaf.low is None or leaf.high - leaf.low >= FEW:
        return None
    return {number: leaf.dtype.type(number) for number in range(leaf.low, leaf.high + 1)}


def numbers_in(rows: Rows) -> tuple[np.ndarray[Any, Any], tuple[Any, ...], int] | None:
    """The column of actions, all numbers that can be in it, and the first of them; None if they are not that few."""
    tree = rows.spec.action
    column = rows.action[0] if tree.is_single else None
    numbers = None if column is None or column.dtype != np.int64 else numbers_of(tree.leaves[0])
    return None if numbers is None or column is None else (column, tuple(numbers.values()), min(numbers))
