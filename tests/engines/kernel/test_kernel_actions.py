"""``shoal.engines.kernel.actions``: what is plainly right is taken, in the column's dtype or a smaller one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("numba")
from shoal.engines.kernel.actions import ActionIntake
from shoal.spec import SpaceTree

BOX = spaces.Box(-1, 1, (2,), np.float64)
NARROW = spaces.Box(-1, 1, (2,), np.float32)
FIVE = spaces.Discrete(5)


def intake(space: spaces.Space[Any], rows: int = 3) -> tuple[ActionIntake, np.ndarray[Any, Any]]:
    leaf = SpaceTree(space, "action").leaves[0]
    column = np.full((rows, *leaf.shape), 1, leaf.dtype)
    return ActionIntake(leaf, column, bounded=True), column


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        *[(BOX, "float64"), (BOX, "float32"), (BOX, "float16"), (NARROW, "float32"), (NARROW, "float16")],
        *[(FIVE, "int64"), (FIVE, "int32"), (FIVE, "int8")],
    ],
)
def test_no_value_changes_on_the_way(space: spaces.Space[Any], dtype: str) -> None:
    take, column = intake(space)
    given = np.random.default_rng(1).uniform(0, 1, column.shape).astype(dtype)
    assert take(given)
    assert (column == given).all()


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (NARROW, np.zeros((3, 2))),  # may overflow: the long way looks
        (BOX, np.zeros((3, 2), np.int64)),
        (BOX, np.zeros((3, 2), ">f8")),
        (BOX, np.zeros((3, 2), bool)),
        (BOX, np.zeros((3, 2), np.longdouble)),
        (BOX, np.full((3, 2), 1.5, np.float32)),
        (BOX, np.full((3, 2), np.nan, np.float32)),
        (BOX, np.zeros((2, 2), np.float32)),
        (BOX, [[0.0, 0.0]] * 3),
        (FIVE, np.full(3, 5, np.int32)),
        (FIVE, np.full(3, -1, np.int8)),
        (FIVE, np.zeros(3, np.float32)),
    ],
)
def test_everything_else_is_left_to_the_long_way(space: spaces.Space[Any], given: Any) -> None:
    take, column = intake(space)
    assert not take(given)
    assert (column == 1).all()
