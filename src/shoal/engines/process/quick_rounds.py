"""What compiled code needs to know in order to serve rounds, which are steps of all envs of a lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.engines.process.wake import waiter_of
from shoal.quick import quick

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from shoal.engines.lane import Lane
    from shoal.engines.sweeping import Outcomes

    Column = np.ndarray[Any, Any]

# What a server of a lane remembers, in an array that compiled code reads and writes, too.
CALLS, ROUNDS, POSITION = range(3)


def rounds_of(
    columns: Mapping[str, Column],
    lane: Lane,
    note: Callable[[Outcomes], bool],
    written: set[int],
    seen: Column,
    idle_slice_s: float,
) -> Any:
    """Serves rounds of a lane, one after another, for as long as what its envs have to say needs no message.

    Its ``serve()`` returns None when the worker is to stop, False when there is something else to do, and True for a
    round that is finished, but not published yet, because messages go with it.

    Args:
        columns: The control words.
        lane: The lane, which has compiled sweeps.
        note: Takes what goes beyond the rows of a round, and says whether it can be read without a message.
        written: Envs whose slips have to be emptied before they step; it empties them, and the set.
        seen: What the server remembers.
        idle_slice_s: How long to sleep without a look at whether to stop.
    """
    index, worker, first = lane.place, lane.worker or 0, lane.env_ids[0]

    def word(name: str, place: int = index) -> Column:
        return columns[name][place : place + 1]

    pools = (word("leaving", worker), word("block", first), word("calls"), word("rounds"), columns["wanted"])
    ours = (word("running"), word("ends"), columns["told"], word("progress"), columns["progress"], columns["done"])
    waiter = waiter_of(columns, "go", "calls", "awaited", index)
    return quick.Rounds(lane, note, waiter, lane.sweeps, written, seen, (columns["stop"], *pools), ours, idle_slice_s)
