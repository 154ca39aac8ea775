"""Infos of single rows merge into arrays: as Gymnasium merges them where that loses nothing, and else without loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batch import Batch, merge_infos

KEYS = st.sampled_from(["x", "y", "final_obs", "final_info"])
NUMBERS = st.one_of(
    st.integers(-(2**31), 2**31),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.integers(-100, 100).map(np.int64),
    st.integers(0, 100).map(np.uint8),
    st.floats(width=32).map(np.float32),
    st.booleans().map(np.bool_),
)
ARRAYS = st.one_of(
    st.lists(st.floats(), min_size=2, max_size=2).map(np.array),
    st.lists(st.integers(0, 255), min_size=3, max_size=3).map(lambda items: np.array(items, np.uint8)),
    st.integers(0, 9).map(lambda n: np.array(n)),
    st.text(max_size=2).map(np.array),
)
OBJECTS = st.one_of(st.none(), st.text(max_size=3), st.binary(max_size=2), st.lists(st.integers(), max_size=2))
VALUES = st.one_of(NUMBERS, ARRAYS, OBJECTS, st.tuples(st.integers(), st.text(max_size=1)))
INFOS = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=3), lambda inner: st.dictionaries(KEYS, VALUES | inner, max_size=3)
)


def merged_by_gymnasium(rows: int, infos: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    envs: VectorEnv[Any, Any, Any] = VectorEnv()
    envs.num_envs = rows
    merged: dict[str, Any] = {}
    for row, info in infos:
        merged = envs._add_info(merged, info, row)
    return merged


def keeps(merged: Any, infos: list[tuple[int, dict[str, Any]]]) -> bool:
    """Whether the infos can be had back from the merged ones, each with its own keys and values."""
    rows = {row for row, _ in infos}
    for key in {key for _, info in infos for key in info}:
        has = {row: info[key] for row, info in infos if key in info}
        if not set(np.flatnonzero(merged[f"_{key}"])) == has.keys() <= rows:
            return False
        if isinstance(merged[key], dict):
            if not all(isinstance(value, dict) for value in has.values()) or not keeps(merged[key], [*has.items()]):
                return False
        elif not all(is_same(merged[key][row], value) for row, value in has.items()):
            return False
    return True


def is_same(stored: Any, value: Any) -> bool:
    """Whether they are the same to somebody who does not ask for the exact type of a number."""
    if isinstance(stored, np.ndarray) or isinstance(value, np.ndarray):
        stored, value = as_number(stored), as_number(value)
    if isinstance(stored, np.ndarray) and isinstance(value, np.ndarray):
        return stored.shape == value.shape and all(map(is_same, stored.ravel().tolist(), value.ravel().tolist()))
    numbers = (int, float, np.number, np.bool_)
    if isinstance(stored, numbers) and isinstance(value, numbers):
        # Python compares an int with a float exactly; numpy rounds first.
        stored, value = getattr(stored, "item", lambda: stored)(), getattr(value, "item", lambda: value)()
        return bool(stored == value or (stored != stored and value != value))
    return type(stored) is type(value) and repr(stored) == repr(value)


def as_number(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and value.shape == () else value


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        for mine, yours in zip(ours.ravel(), theirs.ravel(), strict=True):
            assert type(mine) is type(yours)
            assert_same(mine, yours)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert repr(ours) == repr(theirs)


# Gymnasium casts NaN and infinity to int, and takes the only number out of an array.
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Conversion of an array:DeprecationWarning")
@settings(max_examples=400, deadline=None)
@given(infos=st.lists(INFOS, min_size=1, max_size=4), data=st.data())
def test_infos_merge_without_loss_and_as_in_gymnasium_if_that_has_none(
    infos: list[dict[str, Any]], data: st.DataObject
) -> None:
    rows = len(infos) + data.draw(st.integers(0, 2))
    ids = sorted(data.draw(st.permutations(range(rows)))[: len(infos)])
    parts = list(zip(ids, infos, strict=True))
    merged = merge_infos(rows, parts)
    assert keeps(merged, parts)
    try:
        theirs = merged_by_gymnasium(rows, parts)
        theirs_keep = keeps(theirs, parts)
    except Exception:  # no common array
        return
    if theirs_keep:
        assert_same(merged, theirs)


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ((1, 1.5), np.array([1.0, 1.5])),
        ((1.5, 1), np.array([1.5, 1.0])),
        ((True, 3), np.array([1, 3])),
        ((np.uint8(200), 300), np.array([200, 300])),
        ((np.float32(0.5), 0.25), np.array([0.5, 0.25], np.float32)),
        ((np.float32(0.5), 0.1), np.array([0.5, 0.1])),
        ((np.zeros(2, int), np.full(2, 0.5)), np.array([[0, 0], [0.5, 0.5]])),
        ((0.5, 2**53 + 1), np.array([0.5, 2**53 + 1], object)),
        ((1, 2**70), np.array([1, 2**70], object)),
        ((2**70, 1), np.array([2**70, 1], object)),
        ((1, "fast"), np.array([1, "fast"], object)),
        (("fast", 1), np.array(["fast", 1], object)),
        ((1, "7"), np.array([1, "7"], object)),
        ((1, None), np.array([1, None], object)),
        ((1, {"x": 1}), np.array([1, {"x": 1}], object)),
        (({"x": 1}, 1), np.array([{"x": 1}, 1], object)),
    ],
    ids=str,
)
def test_values_of_different_kinds_all_stay_what_they_are(values: tuple[Any, Any], column: Any) -> None:
    merged = merge_infos(3, [(0, {"x": values[0]}), (1, {"x": values[1]})])
    nothing = None if column.dtype == object else np.zeros_like(column[0])
    assert_same(merged["x"], np.array([*column, nothing], column.dtype))
    assert merged["_x"].tolist() == [True, True, False]


@pytest.mark.parametrize("other", [np.zeros(3), np.zeros((1, 2)), np.array("ab"), 5.0, [0.0, 0.0], None])
def test_an_array_beside_what_is_none_of_its_shape_stays_an_array(other: Any) -> None:
    merged = merge_infos(2, [(0, {"x": np.zeros(2)}), (1, {"x": other})])
    assert merged["x"].dtype == object
    assert merged["x"][0].tolist() == [0.0, 0.0]
    assert repr(merged["x"][1]) == repr(other)


def test_a_key_that_is_called_like_a_mask_keeps_its_values() -> None:
    merged = merge_infos(2, [(0, {"x": 1, "_x": 0.5}), (1, {"x": 2, "_x": 0.25})])
    assert merged["x"].tolist() == [1, 2]
    assert merged["_x"].tolist() == [0.5, 0.25]
    assert merged["__x"].tolist() == [True, True]


def test_a_key_says_who_has_it() -> None:
    merged = merge_infos(3, [(0, {"x": 1}), (2, {"x": 5, "name": "c"})])
    assert merged["x"].tolist() == [1, 0, 5]
    assert merged["_x"].tolist() == [True, False, True]
    assert merged["name"].tolist() == [None, None, "c"]
    assert merged["_name"].tolist() == [False, False, True]


def test_nested_infos_stay_nested() -> None:
    merged = merge_infos(2, [(1, {"outer": {"inner": np.ones(2)}})])
    assert merged["_outer"].tolist() == [False, True]
    assert merged["outer"]["_inner"].tolist() == [False, True]
    assert merged["outer"]["inner"].tolist() == [[0, 0], [1, 1]]


def test_merged_arrays_are_copies() -> None:
    vector = np.ones(2)
    nested = {"vector": vector}
    merged = merge_infos(1, [(0, {"vector": vector, "nested": nested})])
    vector[:] = 7
    assert merged["vector"].tolist() == [[1, 1]]
    assert merged["nested"]["vector"].tolist() == [[1, 1]]
    assert nested.keys() == {"vector"}


def test_no_infos_are_an_empty_dict() -> None:
    assert merge_infos(4, []) == {}


def test_a_batch_is_as_long_as_its_ids() -> None:
    flags = np.zeros(2, np.bool_)
    batch = Batch(np.zeros((2, 3)), np.zeros(2), flags, flags, np.array([4, 1], np.int32), np.zeros(2, np.int32), flags)
    assert len(batch) == 2
    assert not batch.infos
    assert not batch.finals


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (7, 2**63 + 5, "O"),
        (np.uint8(3), np.int8(-1), "i"),
        (2**53 + 1, 0.5, "O"),
        (np.timedelta64(3, "s"), np.timedelta64(3, "ms"), "O"),
    ],
    ids=repr,
)
def test_numbers_that_would_not_survive_in_an_array_are_kept_as_they_are(first: Any, second: Any, kind: str) -> None:
    column = merge_infos(2, [(0, {"x": first}), (1, {"x": second})])["x"]
    assert column.dtype.kind == kind
    assert column.tolist() == [first, second]


def test_times_of_some_rows_have_their_unit() -> None:
    assert merge_infos(2, [(1, {"x": np.timedelta64(3, "s")})])["x"].dtype == np.dtype("m8[s]")
