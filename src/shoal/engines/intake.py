"""Taking a batch of actions in one go, if they are plainly valid.

It spares a step the long way through the checks, whose purpose is to explain errors. Compiled code takes numbers of
most kinds; in Python it pays for a handful of integers. The kernel engine has compiled code of its own
(``kernel.actions``), which also casts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import words
from shoal.quick import can_check, quick
from shoal.spec import FEW

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.arrays import Rows
    from shoal.spec import Leaf


def intake_of(rows: Rows, *, bounded: bool = True) -> Callable[[Any], bool] | None:
    """A function that writes all envs' actions to their column, or returns False; None if they are of another kind.

    It accepts only arrays with exactly the column's dtype and shape. For anything else it returns False, and the pool
    goes the long way, which casts or explains. ``bounded`` says whether continuous actions have to be in their space.
    """
    tree = rows.spec.action
    column = rows.action[0] if tree.is_single else None
    if column is None:
        return None
    leaf = tree.leaves[0]
    if not bounded or column.dtype.kind in "iu":
        leaf = leaf.without_bounds()  # of integers, that forgets bounds which nothing can exceed
    if leaf.low is None:
        return _take_any(column) if column.dtype.kind in "iu" else None
    if can_check(column.dtype) and column.size:
        take: Callable[[Any], bool] = quick.Intake(column, *_bounds_of(leaf))
        return take
    is_handful = column.dtype.kind in "iu" and column.ndim == 1 and len(column) <= FEW
    return _take_numbers(column, int(leaf.low), int(leaf.high)) if is_handful else None


def _bounds_of(leaf: Leaf) -> list[np.ndarray[Any, Any]]:
    """The lowest and highest values, one pair if it is the same for all numbers of an action."""
    bounds = [np.broadcast_to(bound, leaf.shape or (1,)).reshape(-1) for bound in (leaf.low, leaf.high)]
    width = 1 if all((bound == bound[:1]).all() for bound in bounds) else None
    return [np.ascontiguousarray(bound[:width], leaf.dtype) for bound in bounds]


def _take_any(column: np.ndarray[Any, Any]) -> Callable[[Any], bool]:
    """For integers that have no bounds but those of their dtype."""
    dtype, shape = column.dtype, column.shape

    def take(action: Any) -> bool:
        if action.__class__ is not np.ndarray or action.dtype is not dtype or action.shape != shape:
            return False
        column[:] = action
        return True

    return take


def _take_numbers(column: np.ndarray[Any, Any], low: int, high: int) -> Callable[[Any], bool]:
    """For a handful of integers, one per env, with bounds."""
    dtype, shape = column.dtype, column.shape
    # Testing whether all numbers are in a small set takes a third of the time of finding their minimum and maximum.
    right = frozenset(range(low, high + 1)) if high - low < FEW else None
    places: Any = words(column)

    def take(action: Any) -> bool:
        if action.__class__ is not np.ndarray or action.dtype is not dtype or action.shape != shape:
            return False
        values = action.tolist()
        if not (low <= min(values) and max(values) <= high if right is None else right.issuperset(values)):
            return False
        places[:] = action
        return True

    return take
