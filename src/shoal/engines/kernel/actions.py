"""Taking a batch of actions into the engine's memory in one go: range check and copy, compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

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
        self._column = column
        is_bounded = bounded or column.dtype.kind != "f"
        low, high = (
            np.ascontiguousarray(np.broadcast_to(bound if is_bounded else infinity, leaf.shape or (1,)), column.dtype)
            for bound, infinity in ((leaf.low, -np.inf), (leaf.high, np.inf))
        )
        is_one_range = bool((low == low.flat[0]).all() and (high == high.flat[0]).all())
        self._low, self._high = (low.reshape(-1)[:1], high.reshape(-1)[:1]) if is_one_range else (low, high)
        arguments = tuple(numba.typeof(array) for array in (column, column, self._low, self._high))
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
            and self._take(action, self._column, self._low, self._high)
        )


@numba.njit(nogil=True, cache=True)
def _take(action: Any, column: Any, low: Any, high: Any) -> bool:
    given, taken = action.reshape(-1), column.reshape(-1)
    lowest, highest = low.reshape(-1), high.reshape(-1)
    width = len(lowest)
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
