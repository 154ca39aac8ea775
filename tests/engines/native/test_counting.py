"""Counting steps: in numpy and compiled, the same for every batch of envs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engines.native.counting import Counted, compiled_counter, plain_counter

SIZE = 7
FLAGS = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)


def counted(steps: list[int], flags: list[list[bool]], limit: int | None, cuts: bool) -> Counted:
    first, terminated, truncated = (np.array(flag) for flag in flags)
    return Counted(np.array(steps, np.int64), np.zeros(SIZE, np.int32), first, terminated, truncated, limit, cuts)


def columns(given: Counted) -> list[Any]:
    return [given.steps, given.elapsed, given.first, given.terminated, given.truncated]


@settings(deadline=None)
@given(
    steps=st.lists(st.integers(0, 5), min_size=SIZE, max_size=SIZE),
    flags=st.lists(FLAGS, min_size=3, max_size=3),
    limit=st.none() | st.integers(1, 6),
    cuts=st.booleans(),
    batches=st.lists(st.none() | st.sets(st.integers(0, SIZE - 1)), max_size=4),
)
def test_both_count_alike(
    steps: list[int], flags: list[list[bool]], limit: int | None, cuts: bool, batches: list[set[int] | None]
) -> None:
    pytest.importorskip("numba")
    plain, compiled = counted(steps, flags, limit, cuts), counted(steps, flags, limit, cuts)
    count_plain, count_compiled = plain_counter(plain), compiled_counter(compiled)
    for batch in batches:
        ids = None if batch is None else np.array(sorted(batch), np.int32)
        assert count_plain(ids).tolist() == count_compiled(ids).tolist()
        for one, other in zip(columns(plain), columns(compiled), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("make", [plain_counter, compiled_counter])
def test_a_step_is_counted_and_the_last_one_found(make: Any) -> None:
    if make is compiled_counter:
        pytest.importorskip("numba")
    none = [False] * SIZE
    given = counted([0, 1, 2, 3, 4, 0, 1], [[True] * SIZE, [True, *none[1:]], [*none[:6], True]], 4, cuts=False)
    assert make(given)(np.array([0, 3, 6], np.int32)).tolist() == [0, 3]
    assert given.steps.tolist() == [1, 1, 2, 4, 4, 0, 2]
    assert given.elapsed.tolist() == [1, 0, 0, 4, 0, 0, 2]
    assert given.first.tolist() == [False, True, True, False, True, True, False]
    assert given.truncated.tolist() == [False, False, False, True, False, False, False]
