"""Taking a batch of actions in one go, if they are a handful of integers and plainly valid.

The kernel engine has compiled code for actions of every form (``kernel.actions``); this is Python, for the engines that
run Python envs. It spares a step of few envs the long way through the checks, whose purpose is to explain errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import words
from shoal.spec import FEW

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.arrays import Rows


def intake_of(rows: Rows) -> Callable[[Any], bool] | None:
    """A function that writes all envs' actions to their column, or returns False; None if they are of another kind.

    It accepts only arrays with exactly the column's dtype and shape. For anything else it returns False, and the pool
    goes the long way, which casts or explains.
    """
    tree = rows.spec.action
    column = rows.action[0] if tree.is_single else None
    if column is None or column.dtype.kind not in "iu":
        return None
    leaf = tree.leaves[0].without_bounds()  # which forgets bounds that are those of the dtype
    if leaf.low is None:
        return _take_any(column)
    return _take_numbers(column, int(leaf.low), int(leaf.high)) if column.ndim == 1 and len(column) <= FEW else None


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
