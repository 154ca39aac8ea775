"""Whether rows hold numbers that are none, in one compiled look at a whole block.

Without numba the pool looks by itself (``nan_watch``), which takes a few microseconds more.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.arrays import Rows
    from shoal.native import Array

_COMPILED = (np.dtype(np.float32), np.dtype(np.float64))


def odd_rows(rows: Rows) -> Callable[[int], bool] | None:
    """A function that says whether a block holds NaN, or a reward that is not finite; None for unusual columns."""
    obs, finals = ([column for column in columns if column is not None] for columns in (rows.obs, rows.final))
    if any(column.dtype.kind in "fc" and column.dtype not in _COMPILED for column in obs):
        return None
    blocks = range(rows.layout.blocks)
    columns = [[_flat(column[block]) for column in obs if _is_float(column)] for block in blocks]
    for own in columns:
        own += [_flat(column) for column in finals if _is_float(column)]
    rewards = [rows.reward[block] for block in blocks]

    def has_odd_rows(block: int) -> bool:
        return _is_odd(rewards[block]) or any([_has_nan(column) for column in columns[block]])

    return has_odd_rows


def _flat(column: Array) -> Array:
    return column.reshape(-1)


def _is_float(column: Array) -> bool:
    return column.dtype.kind == "f"


@numba.njit(nogil=True, cache=True)
def _has_nan(column: Any) -> bool:
    found = False
    for number in column:  # without a way out, so that several are looked at in one go
        found |= number != number
    return found


@numba.njit(nogil=True, cache=True)
def _is_odd(rewards: Any) -> bool:
    found = False
    for reward in rewards:
        found |= not isfinite(reward)
    return found
