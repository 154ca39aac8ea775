"""``shoal.quick``: compiled code says what Python says, of columns of numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from shoal import nan_watch
from shoal.arrays import RowLayout, Rows
from shoal.black_box import Tape
from shoal.engines import intake
from shoal.errors import ActionError
from shoal.quick import can_check, can_search, is_compiled, quick
from shoal.reading import _copies_in_python
from shoal.spec import EnvSpec, SpaceTree

compiled = pytest.mark.skipif(not is_compiled, reason="shoal is installed without its compiled part")
ODD = [np.nan, np.inf, -np.inf]


@pytest.mark.skipif(not shutil.which("cc") or "SHOAL_PURE_PYTHON" in os.environ, reason="it was not to be built")
def test_the_compiled_part_is_there_where_it_can_be_built() -> None:
    assert is_compiled


def test_pure_python_can_be_asked_for() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from shoal.quick import is_compiled; print(is_compiled)"],
        env={**os.environ, "SHOAL_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "False"


def rows_of(observation: Any, action: Any, num_envs: int = 3, blocks: int = 1) -> Rows:
    spec = EnvSpec(SpaceTree(observation, "observation"), SpaceTree(action, "action"), "Env")
    layout = RowLayout(spec, num_envs, blocks)
    return Rows(layout, layout.private())


# ---------------------------------------------------------------------- searching for NaN


@compiled
@given(
    blocks=st.integers(1, 2),
    kinds=st.lists(st.sampled_from([np.float32, np.float64, np.int32, np.uint8]), min_size=1, max_size=4),
    odd=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.sampled_from(ODD)), max_size=3),
)
def test_rows_are_as_suspect_as_to_python(blocks: int, kinds: list[Any], odd: list[Any]) -> None:
    space = spaces.Dict({f"o{i}": spaces.Box(0, 1, (2, i + 1), kind) for i, kind in enumerate(kinds)})
    rows = rows_of(space, spaces.Discrete(2), num_envs=40, blocks=blocks)
    columns = [rows.reward, *(column for column in rows.obs if column is not None and column.dtype.kind == "f")]
    for where, block, value in odd:
        columns[where % len(columns)][block % blocks].reshape(-1)[-1] = value
    engine: Any = SimpleNamespace(rows=rows, has_odd_rows=None)
    watch = nan_watch.NanWatch(engine, "raise")
    assert isinstance(watch.is_suspect, quick.Search)
    for block in range(blocks):
        is_odd = not np.isfinite(rows.reward[block]).all() or any(np.isnan(c[block]).any() for c in columns[1:])
        assert watch.is_suspect(block) is is_odd
        assert watch._is_suspect(block) or not is_odd


@compiled
@pytest.mark.parametrize("dtype", ["f2", "g", ">f4", "c8"])
def test_floats_of_rare_kinds_are_left_to_python(dtype: str) -> None:
    assert not can_search(np.dtype(dtype))
    assert can_search(np.dtype("f4"), np.dtype("f8"))


@compiled
def test_a_search_refuses_what_it_cannot_read() -> None:
    reward = np.zeros(3)
    for columns in (
        (),
        (reward.astype(np.float32),),
        (reward, np.zeros(3, np.int32)),
        (reward, np.zeros((3, 2))[:, 0]),
    ):
        with pytest.raises(TypeError):
            quick.Search((columns,))
    for block in (1, -1, "x"):
        with pytest.raises((IndexError, TypeError)):
            quick.Search(((reward,),))(block)


# ---------------------------------------------------------------------- copies


@compiled
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)])
def test_copies_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    arrays = [
        np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind) for kind in ("f4", "i8", "?", "O", ">i2")
    ]
    columns = (*arrays, *(array.T for array in arrays))
    for copy, twin, column in zip(quick.copies(columns), _copies_in_python(columns), columns, strict=True):
        assert copy.dtype == twin.dtype
        assert copy.flags.owndata
        assert copy.flags.writeable
        assert not np.shares_memory(copy, column)
        np.testing.assert_array_equal(copy, twin)


@compiled
def test_only_arrays_are_copied() -> None:
    for columns in ([np.zeros(1)], (np.zeros(1), None)):
        with pytest.raises(TypeError):
            quick.copies(columns)


# ---------------------------------------------------------------------- actions

SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.Discrete(200),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(2),
    spaces.Box(-1, 1, (2,)),
    spaces.Box(np.array([-1.0, 0.0]), np.array([0.0, np.inf]), dtype=np.float64),
    spaces.Box(-1, 1, ()),
    spaces.Box(0, 255, (2,), np.uint8),
    spaces.Box(-3, 3, (2,), np.int16),
]


@compiled
@given(st.data(), st.sampled_from(SPACES), st.booleans())
def test_what_is_taken_is_what_the_checks_let_pass(data: Any, space: Any, bounded: bool) -> None:
    rows = rows_of(spaces.Box(0, 1, (1,)), space)
    tree = rows.spec.action if bounded else rows.spec.action.without_bounds()
    (column,) = rows.action
    assert column is not None
    column[:] = before = column.copy()
    numbers = st.sampled_from([-2, -1, 0, 1, 2, 3, 200, *(ODD if column.dtype.kind == "f" else ())])
    flat = data.draw(st.lists(numbers, min_size=column.size, max_size=column.size))
    with np.errstate(all="ignore"):
        actions = np.array(flat).astype(column.dtype).reshape(column.shape)
    take = intake.intake_of(rows, bounded=bounded)
    assert take is not None
    try:
        (expected,) = tree.fit_batch(actions, 3)
    except ActionError:
        assert not take(actions)
        np.testing.assert_array_equal(column, before)
    else:
        assert take(actions)
        np.testing.assert_array_equal(column, expected)


@compiled
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_batches_of_another_form_are_left_to_the_checks(space: Any) -> None:
    rows = rows_of(spaces.Box(0, 1, (1,)), space)
    (column,) = rows.action
    take = intake.intake_of(rows)
    assert take is not None
    assert column is not None
    good = np.broadcast_to(np.asarray(rows.spec.action.leaves[0].low, column.dtype), column.shape).copy()
    good[~np.isfinite(good)] = 0
    assert take(good)
    assert take(np.stack([good, good], axis=1)[:, 0])  # its rows are apart
    swapped = good.astype(column.dtype.newbyteorder())
    for other in (good[:2], good[None], good.astype("g"), good.tolist(), None, *[swapped] * (swapped.itemsize > 1)):
        assert not take(other)


@compiled
def test_actions_of_no_size_or_of_a_rare_type_go_the_long_way() -> None:
    for space in (spaces.Box(-1, 1, (0,)), spaces.Box(-1, 1, (2,), np.float16)):
        assert intake.intake_of(rows_of(spaces.Box(0, 1, (1,)), space)) is None
    assert not can_check(np.dtype(np.float16))


# ---------------------------------------------------------------------- keeping actions


@compiled
@given(
    kinds=st.lists(st.tuples(st.sampled_from(["i8", ">i4", "f4", "u1", "?"]), st.integers(0, 3)), max_size=3),
    places=st.integers(1, 4),
    steps=st.integers(0, 9),
)
def test_what_is_kept_is_what_python_keeps(kinds: list[tuple[str, int]], places: int, steps: int) -> None:
    columns = [np.zeros((2, width), dtype) for dtype, width in kinds]
    pairs = [tuple((np.zeros((places, *c.shape), c.dtype), c) for c in columns) for _ in range(2)]
    tapes = [Tape(pairs[0], places), quick.Tape(pairs[1], places)]
    for step in range(steps):
        for k, column in enumerate(columns):
            column[:] = step + k
        for tape in tapes:
            tape()
    assert tapes[0].count == tapes[1].count == steps
    for (ours, _), (theirs, _) in zip(*pairs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@compiled
def test_a_tape_refuses_what_does_not_fit() -> None:
    column = np.zeros((2, 3), np.float32)
    unfit: list[Any] = [
        (np.zeros((5, 2, 3), np.float32), column),  # more places
        (np.zeros((4, 2, 2), np.float32), column),  # less room
        (np.zeros((4, 2, 3), np.int32), column),
        (np.zeros((4, 2, 6), np.float32)[..., ::2], column),
        (np.zeros((4, 2, 3), np.float32), column.tolist()),
        (np.zeros((4, 2), object), np.zeros(2, object)),
        column,
    ]
    for pair in unfit:
        with pytest.raises(ValueError, match="expected rings of 4 places"):
            quick.Tape((pair,), 4)
    with pytest.raises(ValueError, match="expected rings of 0 places"):
        quick.Tape((), 0)
    with pytest.raises(RuntimeError, match="it was not made"):
        quick.Tape.__new__(quick.Tape)()
