"""Every value of a space survives the way into a tensor and back, alone and in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gym_cases import Echo
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ActionError, SpecError
from shoal.faces.torchrl import (
    Binary,
    Composite,
    GymWrapper,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    check_env_specs,
    gym_to_torchrl_spec_transform,
)
from shoal.faces.torchrl.codecs import codec_for


def boxes() -> st.SearchStrategy[Any]:
    shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    dtypes = st.sampled_from([np.float32, np.float64, np.uint8, np.int32, np.int64])
    return st.builds(lambda shape, dtype: spaces.Box(0, 100, shape, dtype), shapes, dtypes)


def counts() -> st.SearchStrategy[Any]:
    return st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 6), st.integers(-4, 4))


def many_counts() -> st.SearchStrategy[Any]:
    def make(sizes: list[int], start: int, is_square: bool) -> spaces.MultiDiscrete:
        nvec = np.array([sizes, sizes[::-1]]) if is_square else np.array(sizes)
        return spaces.MultiDiscrete(nvec, start=np.full_like(nvec, start))

    return st.builds(make, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(-2, 2), st.booleans())


def bits() -> st.SearchStrategy[Any]:
    return st.sampled_from([spaces.MultiBinary(3), spaces.MultiBinary((2, 3))])


LEAVES = st.one_of(boxes(), counts(), many_counts(), bits())
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=2).map(spaces.Tuple),
    ),
    max_leaves=4,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, str):
        return a == b
    return np.shape(a) == np.shape(b) and bool(np.all(np.asarray(a) == np.asarray(b)))


@given(space=SPACES, is_categorical=st.booleans(), seed=st.integers(0, 9))
def test_there_and_back(space: Any, is_categorical: bool, seed: int) -> None:
    space.seed(seed)
    spec = gym_to_torchrl_spec_transform(space, categorical_action_encoding=is_categorical)
    codec = codec_for(space, spec, "x")
    value = space.sample()
    read = codec.read(value)
    assert spec.is_in(read)
    back = codec.write(read)
    assert same(back, value)
    assert space.contains(back)


@given(space=SPACES, is_categorical=st.booleans(), seed=st.integers(0, 9))
def test_there_and_back_in_a_batch(space: Any, is_categorical: bool, seed: int) -> None:
    whole = batch_space(space, 3)
    whole.seed(seed)
    spec = gym_to_torchrl_spec_transform(space, categorical_action_encoding=is_categorical)
    batched = spec.expand(3, *spec.shape)
    codec = codec_for(space, batched, "x", (3,))
    value = whole.sample()
    read = codec.read(value)
    assert batched.is_in(read)
    assert same(codec.write(read), value)


@given(space=SPACES, is_categorical=st.booleans())
def test_what_a_spec_draws_is_a_value_of_the_space(space: Any, is_categorical: bool) -> None:
    spec = gym_to_torchrl_spec_transform(space, categorical_action_encoding=is_categorical)
    assert space.contains(codec_for(space, spec, "x").write(spec.rand()))


@pytest.mark.parametrize("space", [spaces.Text(6), spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True)], ids=str)
def test_values_of_no_fixed_size(space: Any) -> None:
    spec = gym_to_torchrl_spec_transform(space)
    codec = codec_for(space, spec, "x")
    for _ in range(8):
        value = space.sample()
        assert same(codec.write(codec.read(value)), value)


def test_sequences_that_are_not_stacked() -> None:
    space = spaces.Sequence(spaces.Discrete(4, start=1))
    codec = codec_for(space, gym_to_torchrl_spec_transform(space, categorical_action_encoding=True), "x")
    assert codec.read((1, 4, 2)).tolist() == [0, 3, 1]
    assert codec.write(torch.tensor([0, 3, 1])) == (1, 4, 2)
    assert codec.read(()).shape == (0,)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.MultiDiscrete([2, 3]), MultiOneHot),
        (spaces.MultiBinary(4), Binary),
        (spaces.Text(4), NonTensor),
        (spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)]), Composite),
        (spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True), None),
        (spaces.Box(-1, 1, ()), None),
    ],
    ids=str,
)
def test_envs_with_such_spaces(space: Any, kind: Any) -> None:
    inner = Echo(space, space)
    env = GymWrapper(inner)
    if kind is not None:
        assert isinstance(env.observation_spec["observation"], kind)
    check_env_specs(env)
    env.rand_step(env.reset())
    assert all(space.contains(action) for action in inner.taken)


def test_integers_for_several_choices() -> None:
    env = GymWrapper(Echo(action=spaces.MultiDiscrete([2, 3])), categorical_action_encoding=True)
    assert isinstance(env.action_spec, MultiCategorical)
    assert env.action_spec.shape == (2,)


def test_values_outside_their_space_are_refused() -> None:
    space = spaces.Discrete(3)
    codec = codec_for(space, gym_to_torchrl_spec_transform(space), "observation")
    with pytest.raises(SpecError, match="observation: 3 is not one of the 3 values"):
        codec.read(3)
    with pytest.raises(SpecError, match="-1"):
        codec.read(-1)
    assert codec.read(True).tolist() == [0, 1, 0]
    with pytest.raises(ActionError, match="expected a tensor"):
        codec.write("left")
    nested = spaces.Dict(a=space)
    whole = codec_for(nested, gym_to_torchrl_spec_transform(nested), "observation")
    with pytest.raises(SpecError, match="'a' is missing"):
        whole.read({"b": 1})
