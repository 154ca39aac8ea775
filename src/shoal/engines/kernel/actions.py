"""Taking a batch of actions into the engine's memory in one go: range check and copy, compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba import carray

from shoal.engines.kernel.compiling import pointer

if TYPE_CHECKING:
    from shoal.spec import Leaf


class ActionIntake:
    """Copies batches of actions into a column if every value is in range.

    It judges only what comes in the very form of the column; for anything else it says no, and the pool goes the
    long way, which casts or explains.
    """

    def __init__(self, leaf: Leaf, column: np.ndarray[Any, Any], *, bounded: bool) -> None:
        self._dtype = column.dtype
        self._shape = column.shape
        self._column = column  # written to by its address: it must not go
        is_bounded = bounded or column.dtype.kind != "f"
        low, high = (
            np.ascontiguousarray(np.broadcast_to(bound if is_bounded else infinity, leaf.shape or (1,)), column.dtype)
            for bound, infinity in ((leaf.low, -np.inf), (leaf.high, np.inf))
        )
        is_one_range = bool((low == low.flat[0]).all() and (high == high.flat[0]).all())
        self._bounds = (low.reshape(-1)[:1], high.reshape(-1)[:1]) if is_one_range else (low, high)
        # One array that says where everything lies: unpacking four of them would take longer than the look.
        places = [array.ctypes.data for array in (column, *self._bounds)]
        self._plan = np.array([*places, self._bounds[0].size], np.uint64)
        arguments = (numba.typeof(column), numba.typeof(self._plan))
        _take.compile(arguments)
        # The dispatcher itself would look at the types of the arguments again on every call.
        self._take = _take.overloads[arguments].entry_point

    def __call__(self, action: Any) -> bool:
        """Take the actions; False, and nothing taken, if they need a closer look."""
        return (
            action.__class__ is np.ndarray
            and action.dtype is self._dtype
            and action.shape == self._shape
            and action.flags.c_contiguous
            and self._take(action, self._plan)
        )


@numba.njit(nogil=True, cache=True)
def _take(action: Any, plan: Any) -> bool:
    given = action.reshape(-1)
    width = np.int64(plan[3])
    taken = carray(pointer(plan[0]), (given.size,), given.dtype)
    lowest = carray(pointer(plan[1]), (width,), given.dtype)
    highest = carray(pointer(plan[2]), (width,), given.dtype)
    # Written so that NaN, for which every comparison is false, is out of range.
    if width == 1:
        inside = 0
        for number in given:  # without a way out, so that several are looked at in one go
            inside += (lowest[0] <= number) & (number <= highest[0])
        if inside < len(given):
            return False
    else:
        for i in range(0, len(given), width):
            for j in range(width):
                if not (lowest[j] <= given[i + j] <= highest[j]):
                    return False
    taken[:] = given
    return True
