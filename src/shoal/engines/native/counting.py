"""Counting a step in every row that one was taken in, and finding the rows in which it was the last.

In numpy, that takes some ten calls, each of which takes a microsecond or more right after a simulator has used the
caches. So it is one compiled call if numba is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import span
from shoal.engines.kernel.installed import has_numba

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.native import Array, Ids

    Counter = Callable[[Ids | None], Ids]

_IDS, _COUNT = 2, 3  # words in the block of a call


@dataclass(frozen=True)
class Counted:
    """What is counted, in one row per env.

    Attributes:
        steps: Steps of the episode, as the boundary rule counts them.
        elapsed: The same, as rows report it.
        first: Whether a row is the first of its episode.
        terminated: Whether the episode has terminated; the simulator has written it.
        truncated: Whether it was cut short.
        limit: Steps after which an episode is cut short.
        cuts: Whether the simulator, too, cuts episodes short, and has written ``truncated``.
    """

    steps: Array
    elapsed: Array
    first: Array
    terminated: Array
    truncated: Array
    limit: int | None
    cuts: bool


def step_counter(counted: Counted) -> Counter:
    """A function that counts a step of these envs, or of all, and returns those whose episodes have ended."""
    return compiled_counter(counted) if has_numba() else plain_counter(counted)


def plain_counter(counted: Counted) -> Counter:
    """The counter in numpy."""
    steps, truncated, limit = counted.steps, counted.truncated, counted.limit
    everyone = np.arange(len(steps), dtype=np.int32)

    def count(ids: Ids | None) -> Ids:
        if ids is None:
            ids = everyone
        which: Any = span(ids) or ids
        steps[which] += 1
        counted.elapsed[which] = steps[which]
        counted.first[which] = False
        if not counted.cuts:
            truncated[which] = False
        if limit is not None:
            truncated[which] |= steps[which] >= limit
        ended: Ids = ids[counted.terminated[which] | truncated[which]]
        return ended

    return count


def compiled_counter(counted: Counted) -> Counter:
    """The same, compiled."""
    from shoal.engines.kernel.loading import own_function

    arrays = (counted.steps, counted.elapsed, counted.first, counted.terminated, counted.truncated)
    size = len(counted.steps)
    ended = np.zeros(size, np.int32)
    rule = (size, counted.limit or 0, int(counted.cuts))
    call = own_function("count_steps").bind(0, 0, *(a.ctypes.data for a in arrays), *rule, ended.ctypes.data)
    block = call.block

    def count(ids: Ids | None) -> Ids:
        block[_IDS], block[_COUNT] = (0, size) if ids is None else (id(ids), len(ids))
        num_ended = call()
        return ended[:num_ended].copy() if num_ended else ended[:0]

    return count
