"""Finding numbers that are none: in which rows, at which place, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.arrays import RowLayout, Rows
from shoal.errors import SpecError
from shoal.nan_watch import NanWatch
from shoal.spec import EnvSpec, SpaceTree

SPACE = spaces.Dict(
    {
        "small": spaces.Box(-np.inf, np.inf, (2,), np.float16),
        "large": spaces.Box(-np.inf, np.inf, (3, 4), np.float32),
        "one": spaces.Box(-np.inf, np.inf, (), np.float64),
        "count": spaces.Discrete(5),
        "word": spaces.Text(4),
    }
)


def rows_for(blocks: int = 1, with_final: bool = False) -> Rows:
    spec = EnvSpec(SpaceTree(SPACE, "observation"), SpaceTree(spaces.Discrete(2), "action"), "test")
    layout = RowLayout(spec, 4, blocks, with_final=with_final)
    return Rows(layout, layout.private())


def watch(rows: Rows, policy: str = "raise") -> NanWatch:
    return NanWatch(SimpleNamespace(rows=rows, has_odd_rows=None), policy)  # type: ignore[arg-type]


def column(rows: Rows, name: str, which: str = "obs") -> Any:
    paths = [leaf.path for leaf in rows.spec.observation.leaves]
    (place,) = [j for j, path in enumerate(paths) if name in path]
    return getattr(rows, which)[place]


@pytest.mark.parametrize("name", ["small", "large", "one"])
@pytest.mark.parametrize("block", [0, 2])
def test_nan_in_any_leaf_is_found_in_its_row_and_block(name: str, block: int) -> None:
    rows = rows_for(blocks=3)
    column(rows, name)[block, 2, ...] = np.nan
    found = watch(rows)
    assert [found.is_suspect(b) for b in range(3)] == [b == block for b in range(3)]
    (place,) = found.faults(block, [0, 1, 2, 3])
    assert place == 2
    assert found.faults(block, [0, 1, 3]) == {}
    assert found.faults((block + 1) % 3, [0, 1, 2, 3]) == {}
    assert found.found == 1


def many_rows(num_keys: int) -> Rows:
    space = spaces.Dict({f"key{i}": spaces.Box(-np.inf, np.inf, (3,), np.float32) for i in range(num_keys)})
    spec = EnvSpec(SpaceTree(space, "observation"), SpaceTree(spaces.Discrete(2), "action"), "test")
    layout = RowLayout(spec, 5)
    return Rows(layout, layout.private())


@pytest.mark.parametrize("key", range(6))
@pytest.mark.parametrize("row", [0, 4])
def test_columns_that_are_looked_at_together_hide_nothing(key: int, row: int) -> None:
    rows = many_rows(6)
    found = watch(rows)
    assert [len(flats) for flats in found._flat_obs] == [1]
    for column in rows.obs:
        assert column is not None
        column[:] = 7.0
    assert not found.is_suspect(0)
    rows.obs[key][0, row, 2] = np.nan  # type: ignore[index]
    assert found.is_suspect(0)
    assert list(found.faults(0, range(5))) == [row]


def test_a_fault_says_where_and_what() -> None:
    rows = rows_for()
    column(rows, "large")[0, 1, 2, 3] = np.nan
    rows.elapsed[0, 1] = 7
    found = watch(rows)
    fault = found.faults(0, [1])[1]
    # Six steps were taken; the seventh is the one that failed.
    assert (fault.where.env_ids, fault.where.phase, fault.where.episode_step) == ((1,), "step", 6)
    assert "large" in fault.summary
    assert "NaN in" in fault.summary
    assert isinstance(fault.cause, SpecError)
    assert not fault.spares_env
    assert found.faults(0, [1], resetting={1})[1].where.phase == "reset"


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_a_reward_must_be_finite(reward: float) -> None:
    rows = rows_for()
    rows.reward[0, 3] = reward
    found = watch(rows)
    assert found.is_suspect(0)
    assert found.faults(0, [3])[3].summary == f"SpecError: reward: expected a finite number, got {reward}"


def test_the_reward_is_told_before_the_observation() -> None:
    rows = rows_for()
    rows.reward[0, 0] = np.nan
    column(rows, "one")[0, 0] = np.nan
    found = watch(rows)
    assert "reward" in found.faults(0, [0])[0].summary
    assert found.found == 1


@pytest.mark.parametrize(("policy", "spares"), [("raise", False), ("truncate", True)])
def test_the_policy_says_whether_the_env_is_spared(policy: str, spares: bool) -> None:
    rows = rows_for()
    column(rows, "one")[0, 0] = np.nan
    assert watch(rows, policy).faults(0, [0])[0].spares_env is spares


def test_what_passes_is_counted() -> None:
    rows = rows_for()
    column(rows, "one")[0, :2] = np.nan
    found = watch(rows, "pass")
    assert (found.faults(0, [0, 1, 2, 3]), found.found) == ({}, 2)


@pytest.mark.parametrize("value", [np.inf, -np.inf, "max", "min"])
def test_large_numbers_are_numbers_and_warn_of_nothing(value: Any) -> None:
    rows = rows_for()
    for name in ("small", "large", "one"):
        leaf = column(rows, name)
        leaf[:] = getattr(np.finfo(leaf.dtype), value) if isinstance(value, str) else value
    rows.reward[:] = np.finfo(np.float64).max
    found = watch(rows)
    with np.errstate(all="raise"):
        found.is_suspect(0)
    assert found.faults(0, [0, 1, 2, 3]) == {}


def test_a_last_observation_counts_only_in_a_row_that_has_one() -> None:
    rows = rows_for(with_final=True)
    column(rows, "large", "final")[1] = np.nan
    found = watch(rows)
    assert found.is_suspect(0)
    assert found.faults(0, [0, 1, 2, 3]) == {}  # what is left of an episode that ended long ago
    rows.terminated[0, 1] = True
    assert "final" in found.faults(0, [0, 1, 2, 3])[1].summary


def test_clean_rows_are_not_suspect() -> None:
    found = watch(rows_for(blocks=2, with_final=True))
    assert [found.is_suspect(b) for b in range(2)] == [False, False]
    assert found.found == 0


def test_it_lets_go_of_the_memory() -> None:
    rows = rows_for()
    found = watch(rows)
    found.release()
    assert not any(isinstance(value, list) and value for value in vars(found).values())
