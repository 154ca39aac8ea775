"""A step of all envs of a lane, in one sweep: in Python, and what the compiled form needs to know.

The usual row has no boundary before it or after it, and an observation that is exactly what its space says. The rest is
the lane's to see to: ``step_slowly``, ``conclude``, ``note_failure``.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from shoal.arrays import words
from shoal.engines.acting import numbers_in
from shoal.engines.base import Extra
from shoal.faults import Fault
from shoal.quick import quick
from shoal.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from shoal.arrays import Rows, RowWriter
    from shoal.engines.lane import Lane

Outcomes = dict[int, Extra | Fault]
_NUMBERS = "?biufc"  # kinds of numbers that are copied byte by byte


def step_in_python(lane: Lane, writer: RowWriter, outcomes: Outcomes, *, has_flags: bool) -> None:
    """Step every env of a lane; ``has_flags`` says that flags of rows may be up from an earlier step."""
    put_obs, elapsed = writer.put_obs, writer.elapsed
    rewards: Any = writer.reward
    flags = (writer.terminated, writer.truncated, writer.first) if has_flags else ()
    running, place, is_plain = words(lane.running), lane.place, lane.is_plain
    for (env_id, slot), action in zip(lane.slots.items(), lane.read_actions(), strict=True):
        running[place] = env_id
        if not slot.is_mid_episode:
            if lane.step_slowly(writer, outcomes, env_id, action):
                continue
            break
        try:
            result = slot.env.step(action)
            if result.__class__ is tuple and len(result) == 5 and is_plain:
                obs, reward, terminated, truncated, info = result
                if (
                    terminated is False
                    and truncated is False
                    and info.__class__ is dict
                    and reward.__class__ is float
                    and isfinite(reward)
                ):
                    # There is no boundary to rule on, and with a single block the flags of the previous row are down.
                    put_obs(env_id, obs)
                    rewards[env_id] = reward
                    elapsed[env_id] = slot.elapsed = slot.elapsed + 1
                    for flag in flags:
                        flag[env_id] = False
                    if info:
                        outcomes[env_id] = lane.extra_of(info)
                    continue
        except BaseException as error:
            goes_on = lane.note_failure(writer, outcomes, env_id, error)
        else:
            goes_on = lane.conclude(writer, outcomes, env_id, result)
        if not goes_on:
            break


def sweeps_of(rows: Rows, writers: Sequence[RowWriter], running: np.ndarray[Any, Any], place: int) -> tuple[Any, ...]:
    """The compiled form of that, one for each block: ``sweep(lane, outcomes)``; empty if it was not built."""
    if quick is None:
        return ()
    tree = rows.spec.observation
    keys = (None,) if tree.is_single else tree.flat_keys or ()
    are_numbers = all(leaf.shape and leaf.dtype.isnative and leaf.dtype.kind in _NUMBERS for leaf in tree.leaves)
    numbers = numbers_in(rows)
    sweeps = []
    for block, writer in enumerate(writers):
        # Other observations are written by the writer alone.
        leaves = tuple(zip(keys, (c[block] for c in rows.obs if c is not None), strict=False)) if are_numbers else ()
        flags = (rows.terminated[block], rows.truncated[block], rows.first[block]) if len(writers) > 1 else ()
        scalars = (rows.reward[block], rows.elapsed[block], flags)
        sweeps.append(quick.Sweep(Slot, writer, leaves, scalars, running, place, numbers))
    return tuple(sweeps)
