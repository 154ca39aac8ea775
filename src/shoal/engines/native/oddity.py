"""Whether rows hold NaN or rewards that are not finite, in one compiled look at a whole block.

Without numba, the pool does the looking (``nan_watch``), which takes a few microseconds more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.engines.kernel.installed import FLOATS
from shoal.engines.kernel.loading import own_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.arrays import Rows


def odd_rows(rows: Rows) -> Callable[[int], bool] | None:
    """A function that says whether a block holds NaN or a reward that is not finite; None for unusual columns."""
    obs, finals = ([column for column in columns if column is not None] for columns in (rows.obs, rows.final))
    if any(column.dtype.kind in "fc" and column.dtype not in FLOATS for column in obs):
        return None
    floats = [column for column in obs if column.dtype.kind == "f"]
    refuse_infinite = own_function("refuse_infinite")
    refuse_nan = {dtype: own_function("refuse_nan", dtype) for dtype in {column.dtype for column in floats}}

    def looks(block: int) -> list[Callable[[], int]]:
        reward = rows.reward[block]
        own = [column[block] for column in floats] + [column for column in finals if column.dtype.kind == "f"]
        calls = [refuse_nan[column.dtype].bind(column.ctypes.data, column.size) for column in own]
        return [call.run for call in (refuse_infinite.bind(reward.ctypes.data, len(reward)), *calls)]

    looks_at = [looks(block) for block in range(rows.layout.blocks)]

    def has_odd_rows(block: int) -> bool:
        return any([look() for look in looks_at[block]])

    return has_odd_rows
