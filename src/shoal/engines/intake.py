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
    if column is None or column.ndim != 1 or column.dtype.kind not in "iu" or len(column) > FEW:
        return None
    leaf, dtype, shape = tree.leaves[0], column.dtype, column.shape
    if leaf.low is None:
        return None
    low, high = int(leaf.low), int(leaf.high)
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
