"""Taking a batch of actions into the engine's memory in one go: range check and copy, compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.kernel.loading import own_function

if TYPE_CHECKING:
    from shoal.spec import Leaf

_ACTIONS = 2  # the word of a call that says where the array object is


class ActionIntake:
    """Copies batches of actions into a column if every value is in range.

    It accepts only arrays with exactly the column's shape, and with its dtype or a smaller one of the same kind, such
    as the float32 of most policies where the column is float64. For anything else it returns False, and the pool goes
    the long way, which casts or explains.
    """

    def __init__(self, leaf: Leaf, column: np.ndarray[Any, Any], *, bounded: bool) -> None:
        self._dtype = column.dtype
        numbers = [np.dtype(code) for code in np.typecodes["AllInteger"] + np.typecodes["Float"]]
        self._smaller = frozenset(d for d in numbers if d.kind == self._dtype.kind and np.can_cast(d, self._dtype))
        self._shape = column.shape
        self._column = column  # written to by address, so it has to stay alive
        is_bounded = bounded or column.dtype.kind != "f"
        low, high = (
            np.ascontiguousarray(np.broadcast_to(bound if is_bounded else infinity, leaf.shape or (1,)), column.dtype)
            for bound, infinity in ((leaf.low, -np.inf), (leaf.high, np.inf))
        )
        is_one_range = bool((low == low.flat[0]).all() and (high == high.flat[0]).all())
        self._bounds = (low.reshape(-1)[:1], high.reshape(-1)[:1]) if is_one_range else (low, high)
        places = [array.ctypes.data for array in (column, *self._bounds)]
        call = own_function("take", column.dtype).bind(0, column.size, *places, self._bounds[0].size)
        self._run, self._block = call.run, call.block

    def __call__(self, action: Any) -> bool:
        """Take the actions; returns False, and takes nothing, if they need a closer look."""
        if action.__class__ is not np.ndarray or action.shape != self._shape:
            return False
        if action.dtype is not self._dtype:
            if action.dtype not in self._smaller:
                return False
            action = action.astype(self._dtype)
        self._block[_ACTIONS] = id(action)
        return not self._run()
