"""Spaces as leaves: what fits, what is cast, and what the errors say."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ActionError, SpecError
from shoal.spec import EnvSpec, Leaf, SpaceTree, flattener, same_space
from shoal.testing import InventorySpace


def leaf_of(space: spaces.Space[Any], name: str = "observation") -> Leaf:
    (leaf,) = SpaceTree(space, name).leaves
    return leaf


NESTED = spaces.Dict(
    {
        "box": spaces.Box(-1, 1, (2,), np.float32),
        "pair": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"text": spaces.Text(4, min_length=0)}))),
    }
)


# ---------------------------------------------------------------------- trees


def test_leaves_are_named_by_their_path() -> None:
    tree = SpaceTree(NESTED, "observation")
    assert [leaf.path for leaf in tree.leaves] == [
        "observation['box']",
        "observation['pair'][0]",
        "observation['pair'][1]['text']",
    ]
    assert [leaf.is_array for leaf in tree.leaves] == [True, True, False]
    assert tree.has_objects
    assert not tree.is_single


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "low", "high"),
    [
        (spaces.Discrete(3, start=-1), (), np.int64, -1, 1),
        (spaces.MultiDiscrete([3, 4], start=[1, 0]), (2,), np.int64, [1, 0], [3, 3]),
        (spaces.MultiBinary((2, 2)), (2, 2), np.int8, 0, 1),
        (spaces.Box(-2, 5, (), np.float32), (), np.float32, -2, 5),
        (spaces.Box(0, 255, (2,), np.uint8), (2,), np.uint8, [0, 0], [255, 255]),
    ],
    ids=repr,
)
def test_array_spaces_are_columns(space: Any, shape: Any, dtype: Any, low: Any, high: Any) -> None:
    leaf = leaf_of(space)
    assert (leaf.shape, leaf.dtype, leaf.is_array) == (shape, dtype, True)
    np.testing.assert_array_equal(leaf.low, low)
    np.testing.assert_array_equal(leaf.high, high)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
        InventorySpace(),
    ],
    ids=lambda space: type(space).__name__,
)
def test_all_other_spaces_are_objects(space: Any) -> None:
    tree = SpaceTree(space, "observation")
    assert tree.has_objects
    assert tree.is_single
    value = space.sample()
    assert tree.leaves[0].fit(value) is value


LEAF_SPACES = st.sampled_from(
    [spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.Text(3), spaces.MultiBinary(2), spaces.Box(0, 1, ())]
)
SPACES: st.SearchStrategy[spaces.Space[Any]] = st.recursive(
    LEAF_SPACES,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict)
        | st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(space=SPACES, seed=st.integers(0, 2**31))
def test_flatten_and_unflatten_are_each_others_inverse(space: spaces.Space[Any], seed: int) -> None:
    tree = SpaceTree(space, "observation")
    space.seed(seed)
    value = space.sample()
    leaves = tree.flatten(value)
    assert len(leaves) == len(tree.leaves)
    for mine, fast in zip(leaves, flattener(tree)(value), strict=True):
        assert mine is fast
    for leaf, item in zip(tree.leaves, leaves, strict=True):
        assert item in leaf.space
    again = tree.unflatten(leaves)
    assert repr(again) == repr(value)
    assert all(mine is other for mine, other in zip(tree.flatten(again), leaves, strict=True))


def test_a_dict_that_has_as_many_leaves_as_keys_may_be_nested_all_the_same() -> None:
    space = spaces.Dict({"none": spaces.Dict({}), "two": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))})
    tree = SpaceTree(space, "observation")
    assert tree.unflatten([0, 1]) == {"none": {}, "two": (0, 1)}


def test_the_dtypes_of_a_tree_that_was_sent_are_numpys_own() -> None:
    tree = pickle.loads(
        pickle.dumps(SpaceTree(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1)}), "action"))
    )
    assert tree.leaves[0].dtype is np.zeros(1, np.int64).dtype
    assert tree.leaves[1].dtype is np.zeros(1, np.float32).dtype


def test_a_tree_can_be_sent_to_a_worker() -> None:
    tree = pickle.loads(pickle.dumps(SpaceTree(NESTED, "action")))
    assert tree.space == NESTED
    assert [leaf.path for leaf in tree.leaves] == [leaf.path for leaf in SpaceTree(NESTED, "action").leaves]


STRUCTURE_ERRORS = [
    ({"pair": (0, {"text": ""})}, r"observation: keys do not match: missing \['box'\]"),
    (
        {"box": 0, "pair": (0, {"text": ""}), "more": 1, "most": 2},
        r"observation: keys do not match: extra \['more', 'most'\]",
    ),
    ({"pear": (0, {"text": ""}), "box": 0}, r"missing \['pair'\], extra \['pear'\]"),
    ([0, 1], r"observation: expected a dict with keys \['box', 'pair'\], got list"),
    (None, r"observation: expected a dict .* got NoneType None"),
    ({"box": 0, "pair": (0,)}, r"observation\['pair'\]: expected a tuple of 2, got tuple \(0,\)"),
    ({"box": 0, "pair": 7}, r"observation\['pair'\]: expected a tuple of 2, got int 7"),
    ({"box": 0, "pair": (0, "x")}, r"observation\['pair'\]\[1\]: expected a dict with keys \['text'\], got str 'x'"),
]


@pytest.mark.parametrize(("value", "message"), STRUCTURE_ERRORS, ids=lambda value: str(value)[:30])
def test_a_value_of_another_structure_is_refused_with_its_path(value: Any, message: str) -> None:
    tree = SpaceTree(NESTED, "observation")
    for flatten in (tree.flatten, flattener(tree)):
        with pytest.raises(SpecError, match=message):
            flatten(value)
    with pytest.raises(ActionError, match=message):
        tree.fit_batch(value, 2)


@pytest.mark.parametrize("value", [{"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}, (1, 2), None], ids=repr)
def test_the_fast_way_through_a_flat_dict_refuses_what_the_slow_one_refuses(value: Any) -> None:
    tree = SpaceTree(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}), "observation")
    with pytest.raises(SpecError, match="observation"):
        flattener(tree)(value)


def test_a_subclass_of_dict_is_a_dict_too() -> None:
    class Lazy(dict[str, Any]):
        pass

    tree = SpaceTree(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}), "observation")
    assert flattener(tree)(Lazy(b=1, a=0)) == [0, 1]


# ---------------------------------------------------------------------- one env's value


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, 1], np.array([0.5, 1], np.float32)),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([1, 0], np.int8), np.array([1, 0], np.float32)),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([np.inf, np.nan]), np.array([np.inf, np.nan], np.float32)),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([255]), np.array([255], np.uint8)),
        (spaces.Box(-9, 9, (1,), np.int64), np.array([7], np.uint8), np.array([7])),
        (spaces.Discrete(3), 2, np.array(2)),
        (spaces.Discrete(3), np.int8(2), np.array(2)),
        (spaces.Discrete(3), True, np.array(1)),
        (spaces.MultiBinary(2), np.array([True, False]), np.array([1, 0], np.int8)),
        (spaces.Box(0, 1, (), np.float64), 0.25, np.array(0.25)),
        (spaces.Box(0, 1, (0, 2)), np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)),
    ],
    ids=repr,
)
def test_a_value_is_stored_in_the_leafs_dtype(space: Any, value: Any, stored: Any) -> None:
    fitted = leaf_of(space).fit(value)
    assert (fitted.dtype, fitted.shape) == (stored.dtype, stored.shape)
    np.testing.assert_array_equal(fitted, stored)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(-1, 1, (2,)), np.zeros(3), r"observation: expected shape \(2,\), got \(3,\)"),
        (spaces.Box(-1, 1, (2,)), 0.0, r"expected shape \(2,\), got \(\) \(float 0.0\)"),
        (spaces.Box(-1, 1, (2,)), np.zeros((1, 2)), r"expected shape \(2,\), got \(1, 2\)"),
        (spaces.Box(-1, 1, (2,)), None, r"expected shape \(2,\), got \(\) \(NoneType None\)"),
        (spaces.Box(-1, 1, (2,)), np.array([1.5e300, 0]), "a value of dtype float64 overflows float32"),
        (spaces.Box(-1, 1, (2,)), np.zeros(2, complex), "expected dtype float32, got complex128"),
        (spaces.Box(-1, 1, (2,)), ["a", "b"], "expected dtype float32, got <U1"),
        (spaces.Box(-1, 1, (2,)), np.array([1, 2], object), "expected dtype float32, got object"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([256]), "a value of dtype int64 overflows uint8"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([-1]), "a value of dtype int64 overflows uint8"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([1.0]), "expected dtype uint8, got float64"),
        (spaces.Box(0, 9, (1,), np.int64), np.array([2**63], np.uint64), "uint64 overflows int64"),
        (spaces.Discrete(3), 1.0, "expected dtype int64, got float64"),
        (spaces.Discrete(3), [1], r"expected shape \(\), got \(1,\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_value_that_does_not_fit_is_refused(space: Any, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        leaf_of(space).fit(value)


def test_an_action_that_overflows_is_named_by_its_place() -> None:
    leaf = leaf_of(spaces.Box(-1, 1, (2,)))
    with pytest.raises(ActionError, match=r"overflows float32 \(1e\+300 at \[1, 0\]\)"):
        leaf.fit_batch(np.array([[0.0, 0.0], [1e300, 0.0]]), 2)


@pytest.mark.parametrize("value", [[[1.0, 2.0], [3.0]], [np.zeros(2), np.zeros(3)]], ids=["lists", "arrays"])
def test_a_ragged_value_is_refused_like_any_other(value: Any) -> None:
    leaf = leaf_of(spaces.Box(-1, 1, (2, 2)))
    with pytest.raises(SpecError, match=r"observation: expected shape \(2, 2\)"):
        leaf.fit(value)
    with pytest.raises(ActionError, match=r"observation: expected shape \(2, 2, 2\)"):
        leaf.fit_batch(value, 2)


@given(value=st.floats(width=64))
def test_a_float_keeps_its_kind_in_the_cast(value: float) -> None:
    leaf = leaf_of(spaces.Box(-np.inf, np.inf, (), np.float32))
    with np.errstate(over="ignore"):
        overflows = np.isfinite(value) and not np.isfinite(np.float32(value))
    if overflows:
        with pytest.raises(SpecError, match="overflows"):
            leaf.fit(value)
    else:
        np.testing.assert_array_equal(leaf.fit(value), np.float32(value))


@given(value=st.integers(-(2**63), 2**63 - 1), dtype=st.sampled_from([np.int8, np.uint8, np.int16, np.uint32]))
def test_an_int_keeps_its_value_in_the_cast(value: int, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    leaf = leaf_of(spaces.Box(limits.min, limits.max, (1,), dtype))
    if limits.min <= value <= limits.max:
        assert leaf.fit(np.array([value])).tolist() == [value]
    else:
        with pytest.raises(SpecError, match="overflows"):
            leaf.fit(np.array([value]))


# ---------------------------------------------------------------------- batches of actions


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3), [0, 2]),
        (spaces.Discrete(3), (np.int64(0), np.int64(2))),
        (spaces.Discrete(3), np.array([0, 2], np.int8)),
        (spaces.Discrete(3, start=-1), [-1, 1]),
        (spaces.Box(-1, 1, (2,)), [[0, 1], [1, -1]]),
        (spaces.Box(-1, 1, ()), [0.5, -0.5]),
        (spaces.Box(-np.inf, np.inf, (1,)), [[np.inf], [0]]),
        (spaces.MultiDiscrete([2, 3]), [[1, 2], [0, 0]]),
        (spaces.MultiBinary(2), [[True, False], [False, False]]),
    ],
    ids=repr,
)
def test_actions_that_fit_become_an_array(space: Any, actions: Any) -> None:
    leaf = leaf_of(space, "action")
    batch = leaf.fit_batch(actions, 2)
    assert (batch.dtype, batch.shape) == (space.dtype, (2, *space.shape))
    np.testing.assert_array_equal(batch, np.asarray(actions).astype(space.dtype))


ACTION_ERRORS = [
    (spaces.Discrete(3), [0], r"action: expected shape \(2,\), got \(1,\); one action per env is needed"),
    (spaces.Discrete(3), 0, r"expected shape \(2,\), got \(\)$"),
    (spaces.Discrete(3), None, r"expected shape \(2,\), got \(\)$"),
    (spaces.Discrete(3), [[0], [1]], r"got \(2, 1\); drop the last axis of size 1, .* actions\[\.\.\., 0\]"),
    (spaces.Discrete(3), [0.0, 1.0], "expected dtype int64, got float64"),
    (spaces.Discrete(3), ["0", "1"], "expected dtype int64, got <U1"),
    (spaces.Discrete(3), [0, 3], r"action: row 1: .*3.* is outside Discrete\(3\)$"),
    (spaces.Discrete(3), [-1, 0], r"action: row 0: .*-1.* is outside Discrete\(3\)$"),
    (spaces.Discrete(3, start=5), [5, 4], r"row 1: .*4.* is outside Discrete\(3, start=5\)$"),
    (spaces.Box(-1, 1, (2,)), np.zeros(2), r"expected shape \(2, 2\), got \(2,\)"),
    (spaces.Box(-1, 1, (2,)), np.zeros((3, 2)), r"got \(3, 2\); one action per env is needed"),
    (spaces.Box(-1, 1, (2,)), [[0, 0], [0, 1.5]], r"row 1: .* is outside Box.*; clip the action or wrap"),
    (spaces.Box(-1, 1, (2,)), [[np.nan, 0], [0, 0]], r"row 0: .*nan.* is outside Box"),
    (spaces.Box(-1, 1, (2,)), [[0, 0], [0, np.nan]], r"row 1: .*nan.* is outside Box"),
    (spaces.Box(-np.inf, np.inf, (1,)), [[0], [np.nan]], r"row 1: .*nan.* is outside Box"),
    (spaces.Box(-1, 1, (2,)), np.full((2, 2), 1e300), "a value of dtype float64 overflows float32"),
    (spaces.MultiDiscrete([2, 3]), [[0, 0], [1, 3]], r"row 1: .* is outside MultiDiscrete"),
    (spaces.MultiBinary(2), [[0, 2], [0, 0]], r"row 0: .* is outside MultiBinary"),
    (spaces.Text(3), ["ab"], "action: expected 2 values, got 1"),
    (spaces.Text(3), ["ab", "abcd"], r"action: row 1: str 'abcd' is not in Text"),
    (spaces.Text(3), ["ab", 5], r"action: row 1: int 5 is not in Text"),
]


@pytest.mark.parametrize(("space", "actions", "message"), ACTION_ERRORS, ids=lambda value: str(value)[:40])
def test_actions_that_do_not_fit_are_refused_with_their_row(space: Any, actions: Any, message: str) -> None:
    with pytest.raises(ActionError, match=message):
        leaf_of(space, "action").fit_batch(actions, 2)


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("rows", [3, 100], ids=["few", "many"])
def test_nan_is_refused_in_every_row_of_scalars(rows: int, row: int) -> None:
    actions = np.zeros(rows, np.float32)
    actions[row] = np.nan
    with pytest.raises(ActionError, match=rf"action: row {row}: .*nan"):
        leaf_of(spaces.Box(-1, 1, ()), "action").fit_batch(actions, rows)


@given(
    low=st.lists(st.integers(-2, 0), min_size=3, max_size=3),
    high=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    rows=st.lists(st.lists(st.sampled_from([-2.5, -2.0, -1, 0, 1, 2, 2.5]), min_size=3, max_size=3), min_size=1),
)
def test_bounds_of_vectors_are_judged_as_the_space_judges_them(
    low: list[int], high: list[int], rows: list[list[float]]
) -> None:
    space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    leaf, actions = leaf_of(space, "action"), np.array(rows, np.float32)
    bad = [row for row, action in enumerate(actions) if action not in space]
    if bad:
        with pytest.raises(ActionError, match=f"action: row {bad[0]}: "):
            leaf.fit_batch(actions, len(rows))
    else:
        np.testing.assert_array_equal(leaf.fit_batch(actions, len(rows)), actions)


@given(
    values=st.lists(st.one_of(st.integers(-3, 6), st.just(2**62)), min_size=1, max_size=80),
    start=st.integers(-2, 2),
)
def test_the_range_of_ints_is_judged_as_the_space_judges_it(values: list[int], start: int) -> None:
    space = spaces.Discrete(4, start=start)
    leaf = leaf_of(space, "action")
    bad = [row for row, value in enumerate(values) if np.int64(value) not in space]
    if bad:
        with pytest.raises(ActionError, match=f"row {bad[0]}:"):
            leaf.fit_batch(np.array(values), len(values))
    else:
        assert leaf.fit_batch(np.array(values), len(values)).tolist() == values


@given(values=st.lists(st.floats(-2, 2, width=32) | st.just(float("nan")), min_size=1, max_size=80))
def test_the_range_of_floats_is_judged_as_the_space_judges_it(values: list[float]) -> None:
    space = spaces.Box(-1, 1, ())
    array = np.array(values, np.float32)
    bad = [row for row, value in enumerate(array) if np.asarray(value) not in space]
    leaf = leaf_of(space, "action")
    if bad:
        with pytest.raises(ActionError, match=f"row {bad[0]}:"):
            leaf.fit_batch(array, len(values))
    else:
        np.testing.assert_array_equal(leaf.fit_batch(array, len(values)), array)


@pytest.mark.parametrize("actions", [5, None, 0.5], ids=repr)
def test_what_has_no_length_is_no_batch_of_objects(actions: Any) -> None:
    with pytest.raises(ActionError, match="action: expected 2 values"):
        leaf_of(spaces.Text(3), "action").fit_batch(actions, 2)


def test_objects_are_kept_as_they_are() -> None:
    batch = leaf_of(spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True), "action").fit_batch(
        (np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)), 2
    )
    assert batch.shape == (2,)
    assert [item.shape for item in batch] == [(2, 2), (2, 2)]


def test_a_nested_batch_has_one_array_per_leaf() -> None:
    tree = SpaceTree(NESTED, "action")
    actions = {"box": np.zeros((3, 2)), "pair": ([0, 1, 2], {"text": ("a", "", "bc")})}
    box, choice, text = tree.fit_batch(actions, 3)
    assert (box.dtype, box.shape) == (np.float32, (3, 2))
    assert choice.tolist() == [0, 1, 2]
    assert text.tolist() == ["a", "", "bc"]


def test_a_nested_batch_names_the_leaf_that_does_not_fit() -> None:
    tree = SpaceTree(NESTED, "action")
    with pytest.raises(ActionError, match=r"action\['pair'\]\[0\]: row 2: .*9"):
        tree.fit_batch({"box": np.zeros((3, 2)), "pair": ([0, 1, 9], {"text": ("a", "", "bc")})}, 3)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(SpecError) as caught:
        leaf_of(spaces.Box(-1, 1, (2,))).fit(np.zeros(1000))
    assert len(str(caught.value)) < 200
    assert str(caught.value).endswith("...)")


# ---------------------------------------------------------------------- whole specs


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> EnvSpec:
    return EnvSpec(SpaceTree(observation, "observation"), SpaceTree(action or spaces.Discrete(2), "action"), "env")


def test_equal_specs_do_not_differ() -> None:
    assert spec_of(NESTED).difference(spec_of(NESTED)) is None
    named = EnvSpec(SpaceTree(NESTED, "observation"), SpaceTree(spaces.Discrete(2), "action"), "other name")
    assert spec_of(NESTED).difference(named) is None


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (spec_of(spaces.Discrete(3)), "its observation space is Discrete(3) at observation, not Discrete(2)"),
        (
            spec_of(spaces.Discrete(2), spaces.Text(4)),
            f"its action space is {spaces.Text(4)} at action, not Discrete(2)",
        ),
        (
            spec_of(spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))),
            "its observation space is Discrete(2) at observation[0], not Discrete(2) at observation",
        ),
    ],
    ids=["observation", "action", "structure"],
)
def test_a_difference_is_told_from_the_others_side(other: EnvSpec, text: str) -> None:
    assert spec_of(spaces.Discrete(2)).difference(other) == text


class Mine(spaces.Space[Any]):
    """A space of a user's own, who has thought of everything but ``__eq__``."""

    def __init__(self) -> None:
        super().__init__()

    def __repr__(self) -> str:
        return "Mine()"


def test_a_space_that_cannot_be_compared_is_named() -> None:
    told = spec_of(Mine()).difference(spec_of(Mine()))
    assert told is not None
    assert "Mine has no __eq__" in told
    one = Mine()
    assert spec_of(one).difference(spec_of(one)) is None
    assert "__eq__" not in str(spec_of(spaces.Discrete(2)).difference(spec_of(Mine())))


BOX = spaces.Box(-1, 1, (2, 3), np.float32)
SAME_SPACES = [
    (BOX, spaces.Box(-1, 1, (2, 3), np.float32), True),
    (BOX, spaces.Box(-1, 1 + 1e-7, (2, 3), np.float32), True),  # as near as makes no difference to Gymnasium
    (BOX, spaces.Box(-1, 2, (2, 3), np.float32), False),
    (BOX, spaces.Box(-1, 1, (2, 3), np.float64), False),
    (BOX, spaces.Box(-1, 1, (3, 2), np.float32), False),
    (spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-np.inf, np.inf, (2,)), True),
    (spaces.Dict({"a": BOX}), spaces.Dict({"a": spaces.Box(-1, 1, (2, 3), np.float32)}), True),
    (spaces.Dict({"a": BOX}), spaces.Dict({"b": BOX}), False),
    (spaces.Dict(a=BOX, b=BOX), spaces.Dict(b=BOX, a=BOX), True),
    (spaces.Tuple((BOX, BOX)), spaces.Tuple((BOX,)), False),
    (spaces.Tuple((BOX,)), spaces.Dict({"a": BOX}), False),
    (spaces.Discrete(2), spaces.Discrete(2), True),
    (spaces.Discrete(2), spaces.Discrete(2, start=1), False),
]


@pytest.mark.parametrize(("one", "other", "same"), SAME_SPACES)
def test_spaces_are_the_same_as_in_gymnasium(one: spaces.Space[Any], other: spaces.Space[Any], same: bool) -> None:
    assert same_space(one, other) is same_space(other, one) is bool(one == other) is same


@pytest.mark.parametrize(
    ("space", "actions"),
    [(spaces.Discrete(3), [0, 7]), (spaces.Box(-1, 1, ()), [0.0, np.nan]), (spaces.Text(3), ["a", 5])],
)
def test_an_error_names_the_env_that_the_row_is_for(space: spaces.Space[Any], actions: list[Any]) -> None:
    with pytest.raises(ActionError, match=r"^action: row 1, env 40: "):
        SpaceTree(space, "action").fit_batch(actions, 2, [30, 40])
