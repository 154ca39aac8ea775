"""One seed stream per env id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.errors import ArgumentError
from shoal.seeding import entropy, seeds_for


@pytest.mark.parametrize(
    ("seed", "seeds"),
    [
        (None, [None, None, None]),
        (0, [0, 1, 2]),
        (7, [7, 8, 9]),
        (2**40, [2**40, 2**40 + 1, 2**40 + 2]),
        (np.int64(7), [7, 8, 9]),
        (np.array(7), [7, 8, 9]),
        ([4, 2, 4], [4, 2, 4]),
        ((4, None, 0), [4, None, 0]),
        (range(3), [0, 1, 2]),
        (np.array([4, 2, 9]), [4, 2, 9]),
        ([np.uint8(4), None, np.int64(5)], [4, None, 5]),
    ],
    ids=repr,
)
def test_a_seed_gives_one_per_env(seed: Any, seeds: list[int | None]) -> None:
    found = seeds_for(seed, 3)
    assert found == seeds
    # Gymnasium's envs refuse numpy's ints.
    assert {type(value) for value in found} <= {int, type(None)}


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (-1, "expected an int >= 0, got -1"),
        ([0, -4, 1], "expected an int >= 0, got -4"),
        (1.0, "expected an int, got 1.0"),
        ("7", "expected 3 seeds"),
        ("789", "expected an int, got '7'"),
        ([1, 2], "expected 3 seeds, one per env, got 2"),
        ([], "expected 3 seeds, one per env, got 0"),
        ([1, 2, 3.5], "expected an int, got 3.5"),
        (np.array([1.0, 2.0, 3.0]), "expected an int"),
        ({}, "expected an int"),
    ],
    ids=repr,
)
def test_what_is_no_seed_is_refused(seed: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        seeds_for(seed, 3)


def test_entropy_is_fresh_and_a_seed() -> None:
    roots = {entropy() for _ in range(8)}
    assert len(roots) == 8
    assert all(0 <= root < 2**32 for root in roots)
