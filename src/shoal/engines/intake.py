"""Taking a batch of actions in one go, where they are a handful of whole numbers and plainly right.

The kernel engine has a compiled way for actions of every form (``kernel.actions``); this one is Python, for the engines
that run Python envs. It saves a step of few envs the long way through the checks, which are there to explain.
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
    """A function that puts the actions of all envs in their column, or says no; None if they are not of this kind.

    It judges only what comes in the very form of the column. For anything else it says no, and the pool goes the long
    way, which casts or explains.
    """
    tree = rows.spec.action
    column = rows.action[0] if tree.is_single else None
    if column is None or column.ndim != 1 or column.dtype.kind not in "iu" or len(column) > FEW:
        return None
    leaf, dtype, shape = tree.leaves[0], column.dtype, column.shape
    if leaf.low is None:
        return None
    low, high = int(leaf.low), int(leaf.high)
    # Whether all numbers are in a small set takes a third of the time of a look for the smallest and the largest.
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
