"""Infos of single rows merge into arrays exactly as Gymnasium merges them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batch import Batch, merge_infos

KEYS = st.sampled_from(["x", "y", "_x", "final_obs", "final_info"])
NUMBERS = st.one_of(
    st.integers(-(2**31), 2**31),
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


def outcome(merge: Any, rows: int, infos: Any) -> dict[str, Any] | type[Exception]:
    """The merged infos, or the kind of error: values that fit no common array fail in both."""
    try:
        return dict(merge(rows, infos))
    except Exception as error:
        return type(error)


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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and infinity cast to int, in both
@settings(max_examples=400, deadline=None)
@given(infos=st.lists(INFOS, min_size=1, max_size=4), data=st.data())
def test_infos_merge_as_in_gymnasium(infos: list[dict[str, Any]], data: st.DataObject) -> None:
    rows = len(infos) + data.draw(st.integers(0, 2))
    ids = sorted(data.draw(st.permutations(range(rows)))[: len(infos)])
    parts = list(zip(ids, infos, strict=True))
    assert_same(outcome(merge_infos, rows, parts), outcome(merged_by_gymnasium, rows, parts))


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
