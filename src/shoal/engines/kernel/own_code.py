"""What shoal compiles whatever the env: seeding, waiting for bells, checking actions and rows.

Like the loops of envs, these functions take nothing but addresses and numbers, so they need no numba once compiled.
Parameters whose names end in ``_at`` are addresses. A function that depends on a dtype is made for each dtype.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from shoal.engines.kernel.bells import BELL_WORDS, DONE, POSTED
from shoal.engines.kernel.intrinsics import array_at, data_of, flags_of, read_word
from shoal.engines.kernel.random import seed_words
from shoal.seeding import WORDS

_IN_A_ROW = 1  # numpy's flag of C-contiguous arrays


def seed_rows(seeds_at: Any, words_at: Any, count: int) -> None:
    """Write the first words of the generators for ``count`` seeds; the row after them is scratch space."""
    words = array_at(words_at, (count + 1, WORDS), np.uint64)
    seed_words(array_at(seeds_at, (count,), np.uint64), words[:count], words[count])


def await_done(bells_at: Any, count: int, looks: int) -> int:
    """Wait until every helper is done; 0 if that takes too many looks."""
    bells = array_at(bells_at, (count, BELL_WORDS), np.int64)
    for k in range(count):
        bell = bells[k]
        while read_word(bell, DONE) != read_word(bell, POSTED):
            looks -= 1
            if looks < 0:
                return 0
    return 1


def count_steps(
    ids_at: Any,
    count: int,
    steps_at: Any,
    elapsed_at: Any,
    first_at: Any,
    terminated_at: Any,
    truncated_at: Any,
    size: int,
    limit: int,
    cuts: int,
    ended_at: Any,
) -> int:
    """Count a step of some rows, whose ids are given as an array object, or of all if that is 0.

    A row at the limit of steps is truncated; others are not, unless the simulator ``cuts`` episodes itself. Writes the
    ids of rows that have ended, and returns how many there are.
    """
    steps, elapsed = array_at(steps_at, (size,), np.int64), array_at(elapsed_at, (size,), np.int32)
    first, ended = array_at(first_at, (size,), np.bool_), array_at(ended_at, (size,), np.int32)
    terminated, truncated = array_at(terminated_at, (size,), np.bool_), array_at(truncated_at, (size,), np.bool_)
    ids = array_at(data_of(ids_at) if ids_at else ended_at, (count,), np.int32)
    num_ended = 0
    for k in range(count):
        i = ids[k] if ids_at else k
        steps[i] += 1
        elapsed[i] = steps[i]
        first[i] = False
        truncated[i] = (truncated[i] if cuts else False) or 0 < limit <= steps[i]
        if terminated[i] or truncated[i]:
            ended[num_ended] = i
            num_ended += 1
    return num_ended


def refuse_infinite(rewards_at: Any, count: int) -> None:
    """Fail if a reward is not finite."""
    is_odd = False
    for reward in array_at(rewards_at, (count,), np.float64):  # no early exit, so that several are checked at once
        is_odd |= not isfinite(reward)
    if is_odd:
        raise ValueError("not finite")


def refuse_nan(dtype: np.dtype[Any]) -> Any:
    """A function that fails if any of an array's numbers, of this dtype, is NaN."""

    def refuse(numbers_at: Any, size: int) -> None:
        is_odd = False
        for number in array_at(numbers_at, (size,), dtype):
            is_odd |= number != number
        if is_odd:
            raise ValueError("not a number")

    return refuse


def take(dtype: np.dtype[Any]) -> Any:
    """A function that takes in actions of this dtype."""

    def take_batch(object_at: Any, size: int, column_at: Any, lowest_at: Any, highest_at: Any, width: int) -> None:
        """Copy the numbers of an array object, of this size and dtype, to a column.

        It fails, and copies nothing, if the array is not contiguous, or a number is out of range.
        """
        if not flags_of(object_at) & _IN_A_ROW:
            raise ValueError("not in a row")
        given = array_at(data_of(object_at), (size,), dtype)
        taken = array_at(column_at, (size,), dtype)
        lowest = array_at(lowest_at, (width,), dtype)
        highest = array_at(highest_at, (width,), dtype)
        # Written so that NaN, for which every comparison is false, is out of range.
        if width == 1:
            inside = 0
            for number in given:  # no early exit, so that several are checked at once
                inside += (lowest[0] <= number) & (number <= highest[0])
            if inside < size:
                raise ValueError("out of range")
        else:
            for i in range(0, size, width):
                for j in range(width):
                    if not (lowest[j] <= given[i + j] <= highest[j]):
                        raise ValueError("out of range")
        for i in range(size):
            taken[i] = given[i]

    return take_batch
