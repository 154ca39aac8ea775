"""TorchRL's dialect: specs of single tensors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tensordict import NonTensorData  # noqa: E402
from torchrl_specs import FLOATS, LEAVES, SHAPES  # noqa: E402

from shoal.faces.torchrl import (  # noqa: E402
    Binary,
    Bounded,
    BoundedContinuous,
    BoundedDiscrete,
    Categorical,
    Choice,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
    UnboundedContinuous,
    UnboundedDiscrete,
)
from shoal.faces.torchrl.specs import ContinuousBox  # noqa: E402

LAWS = settings(max_examples=60, deadline=None)


@LAWS
@given(LEAVES, SHAPES)
def test_what_a_spec_draws_is_in_it(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    value = spec.rand(shape)
    assert value.shape == (*shape, *spec.shape)
    assert value.dtype == spec.dtype
    assert spec.is_in(value) is True
    assert spec.project(value) is value
    spec.assert_is_in(value)
    spec.type_check(value)


@LAWS
@given(LEAVES)
def test_to_numpy_and_encode_are_inverse(spec: TensorSpec) -> None:
    value = spec.rand()
    back = spec.encode(spec.to_numpy(value))
    assert back.shape == spec.shape
    assert torch.equal(back.to(value.dtype), value)


@LAWS
@given(LEAVES)
def test_a_clone_is_equal_and_its_own(spec: TensorSpec) -> None:
    for other in (spec.clone(), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert other == spec
        assert other is not spec
        assert type(other) is type(spec)
        assert spec.is_in(other.rand())
    assert spec.to("cpu") is spec
    assert spec.to(spec.dtype) is spec


@LAWS
@given(LEAVES, SHAPES.filter(bool))
def test_expand_then_index_gives_the_spec_back(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    wide = spec.expand(*shape, *spec.shape)
    assert wide.shape == (*shape, *spec.shape)
    assert wide.is_in(wide.rand())
    assert wide[(0,) * len(shape)] == spec
    assert wide.unbind(0)[-1] == wide[-1]
    assert wide.flatten(0, len(shape) - 1).shape[0] == torch.Size(shape).numel()
    assert wide.unsqueeze(0).squeeze(0) == wide


@LAWS
@given(LEAVES, st.integers(1, 3))
def test_equal_specs_stack_to_one_with_a_dim_more(spec: TensorSpec, count: int) -> None:
    stacked = torch.stack([spec.clone() for _ in range(count)], 0)
    assert type(stacked) is type(spec)
    assert stacked.shape == (count, *spec.shape)
    assert all(part == spec for part in stacked.unbind(0))


@LAWS
@given(LEAVES, SHAPES)
def test_a_shape_that_does_not_fit_is_not_in_and_no_error(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    value = torch.zeros((*shape, *(dim + 1 for dim in spec.shape)), dtype=spec.dtype)
    if any(dim > 1 for dim in spec.shape):
        assert spec.is_in(value) is False
    assert spec.is_in("text") is False
    assert spec.is_in(None) is False


@LAWS
@given(LEAVES)
def test_filled_tensors_have_the_form_of_the_spec(spec: TensorSpec) -> None:
    for value, content in ((spec.zero((2,)), 0), (spec.one((2,)), 1)):
        assert value.shape == (2, *spec.shape)
        assert value.dtype == spec.dtype
        assert bool((value == content).all())


@LAWS
@given(LEAVES.filter(lambda spec: spec.domain == "discrete" and not isinstance(spec, (Bounded, Unbounded))))
def test_a_discrete_spec_can_list_its_values(spec: TensorSpec) -> None:
    if getattr(spec, "mask", None) is not None:
        spec.update_mask(None)  # type: ignore[attr-defined]
    values = spec.enumerate()
    assert values.shape == (int(spec.cardinality()), *spec.shape)
    assert spec.is_in(values)
    assert len({tuple(value.reshape(-1).tolist()) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("spec", "value", "projected"),
    [
        (Categorical(3), torch.tensor(7), 2),
        (Categorical(3), torch.tensor(-2), 0),
        (Categorical(3), torch.tensor(1.6), 2),
        (Bounded(0, 10, shape=(), dtype=torch.uint8), torch.tensor(300), 10),
        (Bounded(-1.0, 1.0, shape=()), torch.tensor(-9.0), -1),
        (MultiCategorical((3, 2)), torch.tensor([9, -1]), [2, 0]),
        (Unbounded((2,)), torch.ones(2, dtype=torch.int64), [1, 1]),
    ],
)
def test_project_gives_the_nearest_value(spec: TensorSpec, value: torch.Tensor, projected: object) -> None:
    before = value.clone()
    assert spec.project(value).tolist() == projected
    assert spec.is_in(spec.project(value))
    assert torch.equal(value, before)


def test_one_hot_projects_to_a_choice_that_has_weight() -> None:
    spec = OneHot(4)
    assert {int(spec.project(torch.tensor([0.0, 1.0, 0.0, 2.0])).nonzero()) for _ in range(50)} == {1, 3}
    assert spec.is_in(spec.project(torch.zeros(4)))


def test_the_class_of_a_bounded_spec_follows_its_dtype() -> None:
    assert type(Bounded(0, 1, shape=(2,))) is BoundedContinuous
    assert type(Bounded(0, 1, shape=(2,), dtype=torch.int64)) is BoundedDiscrete
    assert type(Bounded(0, 1, shape=(2,), dtype=torch.int64).to(torch.float32)) is BoundedContinuous
    assert type(Unbounded((2,))) is UnboundedContinuous
    assert type(UnboundedDiscrete((2,))) is UnboundedDiscrete
    assert isinstance(UnboundedDiscrete((2,)), Unbounded)
    assert UnboundedDiscrete((2,)).dtype is torch.int64


def test_wide_and_infinite_bounds_are_drawn_from_without_nan() -> None:
    top = torch.finfo(torch.float32).max
    for low, high in ((-top, top), (-torch.inf, 1.0), (0.0, torch.inf), (-torch.inf, torch.inf)):
        spec = Bounded(low, high, shape=(3,))
        assert spec.is_in(spec.rand((100,))), (low, high)
    spec = Bounded(torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf, 1.0]))
    assert spec.is_in(spec.rand((100,)))


def test_bounds_are_those_of_the_space_however_they_are_changed() -> None:
    spec = Bounded(-1, 1, shape=(3,))
    before = spec.clone()
    spec.rand()
    spec.space.low = spec.space.low * 5  # type: ignore[union-attr]
    assert spec.low.tolist() == [-5, -5, -5]
    assert spec.is_in(torch.full((3,), -4.0))
    assert bool((spec.rand((100,)) < -1).any())
    spec.space.high.fill_(9)  # type: ignore[union-attr]
    assert bool((spec.rand((100,)) > 1).any())
    assert spec != before
    assert before == Bounded(-1, 1, shape=(3,))
    spec.space = ContinuousBox(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert spec.project(torch.full((3,), 9.0)).tolist() == [1, 2, 3]
    assert spec.rand().dtype is torch.float32
    with pytest.raises(AttributeError, match="low"):
        spec.low = torch.zeros(3)  # type: ignore[misc]


def test_other_bounds_and_another_shape_come_in_any_order() -> None:
    low, high = torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3)
    for bounds_first in (True, False):
        spec = Bounded(-1, 1, shape=(3,))
        box = spec.space
        if not bounds_first:
            spec.shape = torch.Size([2, 3])
        box.low, box.high = low, high
        if bounds_first:
            spec.shape = (2, 3)
        assert spec == Bounded(low, high)
        assert spec.is_in(spec.rand())


@LAWS
@given(LEAVES.filter(lambda spec: getattr(spec, "mask", None) is None), FLOATS)
def test_shape_and_dtype_can_be_set(spec: TensorSpec, dtype: torch.dtype) -> None:
    plain, shape = spec.clone(), (2, *spec.shape)
    spec.dtype = dtype
    assert spec == plain.to(dtype)
    assert spec.rand().dtype is dtype
    spec.shape = shape
    assert spec == plain.to(dtype).expand(shape)
    value = spec.rand()
    assert value.shape == shape
    assert spec.is_in(value)


@pytest.mark.parametrize("spec", [Unbounded((3,)), Bounded(-1, 1, shape=(3,)), Categorical(3), OneHot(3), Binary(3)])
def test_a_device_can_be_set(spec: TensorSpec) -> None:
    spec.device = "meta"
    assert spec.zero().device == spec.device == torch.device("meta")


def test_the_last_dim_of_vectors_is_kept_when_a_shape_is_set() -> None:
    for spec in (OneHot(3), MultiOneHot((2, 1)), MultiCategorical((2, 2, 2))):
        with pytest.raises(ValueError, match="shape"):
            spec.shape = (2, 4)
        assert spec.shape == (3,)


def test_a_space_of_choices_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="n"):
        Categorical(3).space.n = 4  # type: ignore[misc, union-attr]


def test_bools_have_bounds_too() -> None:
    spec = Bounded(0, 1, shape=(2,), dtype=torch.bool)
    assert set(spec.rand((50,)).reshape(-1).tolist()) == {False, True}
    assert spec.project(torch.tensor([3.0, 0.0])).tolist() == [True, False]


def test_every_integer_of_a_range_is_drawn() -> None:
    spec = Bounded(torch.tensor([0, 3]), torch.tensor([2, 4]), dtype=torch.int64)
    drawn = spec.rand((300,))
    assert set(drawn[:, 0].tolist()) == {0, 1, 2}
    assert set(drawn[:, 1].tolist()) == {3, 4}
    assert set(MultiCategorical((2, 3)).rand((300,))[:, 1].tolist()) == {0, 1, 2}


def test_encode_shares_no_memory_with_what_the_env_gave() -> None:
    buffer = np.zeros(3, dtype=np.float32)
    value = Unbounded((3,)).encode(buffer)
    buffer[:] = 7
    assert value.tolist() == [0, 0, 0]
    assert Unbounded((2,)).encode(np.arange(2.0)[::-1]).tolist() == [1, 0]
    assert Unbounded(()).encode([1.5]).item() == 1.5
    tensor = torch.zeros(9)
    assert Unbounded((2,)).encode(tensor) is tensor


@LAWS
@given(LEAVES)
def test_values_belong_to_who_gets_them(spec: TensorSpec) -> None:
    before = spec.clone()
    for value in (spec.rand(), spec.zero(), spec.encode(spec.to_numpy(spec.rand())), spec.project(spec.rand())):
        value.fill_(7)
    assert spec == before
    assert spec.is_in(spec.rand())
    if spec.domain == "discrete" and not isinstance(spec, (Bounded, Unbounded)):
        spec.enumerate().fill_(7)
        assert spec.is_in(spec.rand())


def test_what_cannot_be_encoded_is_said() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        Bounded(-1, 1, shape=(2,)).encode(np.zeros(3))
    with pytest.raises(AssertionError, match="3 choices"):
        OneHot(3).encode(3)
    with pytest.raises(TypeError, match="Categorical"):
        Categorical(3).encode("left")
    with pytest.raises(ValueError, match=r"widths \(3, 2\) encodes 2 choices, got choices of shape \(5,\)"):
        MultiOneHot((3, 2)).encode(np.zeros(5))
    with pytest.raises(AssertionError, match=r"dtype torch\.float32, expected torch\.int64"):
        Categorical(3).assert_is_in(torch.tensor(1.0))


def test_dtypes_that_numpy_does_not_have() -> None:
    for spec in (OneHot(3, dtype=torch.bfloat16), Unbounded((3,), dtype=torch.bfloat16)):
        assert spec.is_in(spec.rand())
    assert Unbounded((3,), dtype=torch.bfloat16).encode([1, 2, 3]).dtype is torch.bfloat16
    assert OneHot(3, dtype=torch.bfloat16).encode(1).tolist() == [0, 1, 0]


def test_a_register_numbers_what_it_sees() -> None:
    spec = OneHot(2, use_register=True)
    assert spec.encode("left").tolist() == [True, False]
    assert spec.encode("right").tolist() == [False, True]
    assert spec.to_numpy(spec.encode("left")) == "left"
    with pytest.raises(AssertionError, match="up"):
        spec.encode("up")
    start = OneHot(2, use_register=True)
    start.clone().encode("left")
    assert start.encode("right").tolist() == [True, False]


def test_one_of_many_choices_takes_no_table_of_them() -> None:
    spec = OneHot(3000, dtype=torch.int64)
    value = spec.rand()
    assert spec.is_in(value)
    assert spec.encode(2999)[-1] == 1
    assert spec.encode([5, 7]).argmax(-1).tolist() == [5, 7]
    assert not spec.is_in(torch.ones_like(value))
    few = OneHot(200)
    few.rand()
    assert max(len(pickle.dumps(spec)), len(pickle.dumps(few))) < 1000


def test_masks_hold_for_batches_of_values() -> None:
    spec = Categorical(3)
    spec.update_mask(torch.tensor([[True, False, False], [False, False, True]]))
    assert spec.rand((2,)).tolist() == [0, 2]
    spec.update_mask(None)
    assert spec.mask is None
    with pytest.raises(RuntimeError, match="no choice"):
        Categorical(2, mask=torch.zeros(2, dtype=torch.bool)).rand()
    masked = OneHot(3, mask=torch.tensor([True, False, True]))
    assert masked.to_categorical_spec().enumerate(use_mask=True).tolist() == [0, 2]
    assert not masked.is_in(torch.tensor([False, True, False]))


def test_index_gathers_what_a_value_points_at() -> None:
    table = torch.tensor([10, 20, 30])
    assert Categorical(3).index(torch.tensor(1), table).item() == 20
    assert OneHot(3).index(OneHot(3).encode(2), table).tolist() == [30]
    assert MultiOneHot((3, 2)).index(MultiOneHot((3, 2)).encode([2, 1]), torch.arange(5)).tolist() == [2, 4]
    assert MultiCategorical((3, 2)).index(torch.tensor([2, 1]), table).tolist() == [30, 20]
    assert MultiCategorical((3, 2)).index(torch.tensor([1, 1]), table.expand(2, 3)).tolist() == [[20, 20], [20, 20]]
    assert MultiCategorical((3,)).index(torch.tensor(2), table).item() == 30


def test_a_row_of_choices_points_into_its_own_row() -> None:
    table = torch.tensor([[10, 11, 12], [20, 21, 22]])
    assert Categorical(3, shape=(2, 1)).index(torch.tensor([[1], [0]]), table).tolist() == [[11], [20]]
    assert Categorical(3, shape=(2,)).index(torch.tensor([1, 0]), table[0]).tolist() == [11, 10]


def test_too_few_choices_are_an_error_like_any_wrong_shape() -> None:
    for spec in (MultiOneHot((3, 2)), MultiCategorical((3, 2))):
        with pytest.raises(RuntimeError):
            spec.encode([1, 0, 0])


def test_one_hot_and_categorical_become_each_other() -> None:
    spec = Categorical(4, shape=(2,))
    value = spec.rand()
    assert torch.equal(spec.to_one_hot_spec().to_categorical(spec.to_one_hot(value)), value)
    assert spec.to_one_hot_spec().to_categorical_spec() == spec
    multi = MultiCategorical((3, 2))
    assert multi.to_one_hot_spec().to_categorical_spec() == multi


def test_elements_of_several_choices() -> None:
    spec = MultiCategorical((3, 2), mask=torch.tensor([True, False, True, False, True]))
    assert (spec[0].shape, spec[0].nvec.tolist(), spec[0].mask.tolist()) == ((1,), [3], [True, False, True])
    assert spec[-1].rand().item() == 1
    assert spec[[1, 0]].nvec.tolist() == [2, 3]
    assert spec[[1, 0]].mask.tolist() == [False, True, True, False, True]
    assert spec[:1].is_in(torch.tensor([2]))
    assert not spec[:1].is_in(torch.tensor([1]))
    assert (spec[...].shape, spec[None].shape) == ((2,), (1, 2))
    with pytest.raises(IndexError, match="out of bounds"):
        spec[5]
    rows = spec.expand(4, 2)
    tensor = torch.zeros(4, 2)
    every = slice(None)
    for index in (0, (None, 0), (every, 0), (..., slice(1, 2)), ([0, 2], 1), (None, slice(1, 3), every)):
        assert rows[index].shape == tensor[index].shape
        assert rows[index].is_in(rows[index].rand())
    assert rows[0, 1].shape == (1,)


def test_a_dim_of_any_size() -> None:
    spec = Unbounded((-1, 3))
    assert spec.zero().shape == (1, 3)
    assert spec.is_in(torch.zeros(7, 3))
    assert not spec.is_in(torch.zeros(7, 4))
    assert spec.encode(np.zeros((4, 3))).shape == (4, 3)
    assert spec[0].shape == (3,)
    assert spec.expand(2, -1, 3).shape == (2, -1, 3)
    with pytest.raises(IndexError, match="any size"):
        spec[:2]
    bounds = Bounded(0, 1, shape=(4, 3))
    bounds.make_neg_dim(0)
    assert bounds.shape == (-1, 3)
    assert bounds.is_in(torch.ones(9, 3))
    assert bounds.is_in(bounds.rand((2,)))


def test_shapes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="expanded"):
        Unbounded((4,)).expand(3, 5)
    with pytest.raises(ValueError, match="last dim"):
        OneHot(3).unsqueeze(-1)
    with pytest.raises(ValueError, match="last dim"):
        OneHot(3, shape=(2, 3)).flatten(0, 1)
    with pytest.raises(IndexError, match="out of bounds"):
        Unbounded((3, 2))[3]
    with pytest.raises(IndexError, match="too many"):
        Unbounded((3, 2))[0, 0, 0]


@pytest.mark.parametrize("spec", [OneHot(3), MultiOneHot((2, 1)), MultiCategorical((3, 2)), Categorical(3, shape=(4,))])
def test_a_dim_of_another_size_than_one_is_not_squeezed(spec: Any) -> None:
    assert spec.squeeze(-1) is spec
    assert spec.squeeze(0) is spec
    with pytest.raises(IndexError, match="dim 9"):
        spec.squeeze(9)


@pytest.mark.parametrize("spec", [Categorical(3), Unbounded(()), Composite()])
def test_a_spec_without_dims_is_reshaped_like_a_tensor(spec: Any) -> None:
    assert spec.view(()) == spec
    assert spec.view(1).shape == spec.flatten().shape == (1,)
    with pytest.raises(IndexError, match="dim 1"):
        spec.flatten(1, 0)


def test_indices_of_all_kinds_pick_what_they_pick_from_a_tensor() -> None:
    low = torch.arange(12.0).reshape(3, 4)
    spec = Bounded(low, low + 1)
    mask = torch.tensor([True, False, True])
    indices = [0, -1, slice(1, None), (..., 2), (slice(None), 1), None, [0, 2], mask, (mask, 1), torch.tensor([1, 1])]
    for index in indices:
        assert torch.equal(spec[index].low, low[index]), index


def test_non_tensor_specs_take_any_value() -> None:
    spec = NonTensor(shape=(), example_data="abc")
    assert spec.zero().data == "abc"
    assert spec.rand((2,)).batch_size == (2,)
    assert spec.is_in("x")
    assert spec.is_in(NonTensorData(3))
    assert not spec.is_in(torch.zeros(1))
    assert NonTensor(shape=(3,), example_data="a", batched=True).zero().tolist() == ["a"] * 3
    assert NonTensor().shape == (1,)
    assert spec.expand(4).shape == (4,)
    assert spec.to_numpy(spec.encode("b")) == "b"


def test_choice_draws_from_each_of_its_choices() -> None:
    spec = Choice([Categorical(1), Categorical(3)])
    assert {int(spec.rand()) for _ in range(60)} == {0, 1, 2}
    assert spec.cardinality() == 4
    assert spec.num_choices == 2
    assert spec.rand((4,)).shape == (4,)
    assert spec.is_in(torch.tensor(2))
    assert not spec.is_in(torch.tensor(3))
    words = Choice(["left", "right"])
    assert {words.rand().data for _ in range(60)} == {"left", "right"}
    assert words.is_in("left")
    assert not words.is_in("up")
    with pytest.raises(TypeError, match="one kind"):
        Choice([Categorical(3), OneHot(3)])


def test_binary_needs_a_length() -> None:
    with pytest.raises(TypeError, match="n, or a shape"):
        Binary()
    with pytest.raises(ValueError, match="n = 3"):
        Binary(3, shape=(4,))
    assert Binary(shape=(2, 3))[0].shape == (3,)


def test_every_choice_is_fine_as_long_as_nobody_knows_how_many_there_are() -> None:
    spec = Categorical(-1)
    assert spec.is_in(torch.tensor(5))
    assert spec.project(torch.tensor(5)).item() == 5
    assert spec.to_one_hot(torch.tensor(1)).tolist() == [False, True]
    with pytest.raises(RuntimeError, match="undefined"):
        spec.rand()
    spec.set_provisional_n(3)
    assert not spec.is_in(torch.tensor(5))


@pytest.mark.parametrize(("spec", "dim"), [(OneHot(3), 9), (OneHot(3), -2), (Categorical(3), 0), (Composite(), 0)])
def test_a_dim_that_is_not_there_does_not_become_any_size(spec: Any, dim: int) -> None:
    shape = spec.shape
    with pytest.raises(ValueError, match="dim"):
        spec.make_neg_dim(dim)
    assert spec.shape == shape


def test_numbers_of_outcomes_have_the_shape_of_the_spec() -> None:
    spec = MultiCategorical((3, 2), shape=(4, 2))
    assert spec.nvec.tolist() == [[3, 2]] * 4
    assert MultiCategorical((3, 2)).expand(4, 2).nvec.shape == (4, 2)
    assert spec[0].nvec.tolist() == [3, 2]


def test_one_choice_is_looked_up_in_every_row_of_a_table() -> None:
    spec = OneHot(3)
    assert spec.index(spec.encode(2), torch.arange(6).view(2, 3)).tolist() == [[2], [5]]


def test_a_domain_that_is_given_decides_about_the_class() -> None:
    whole = Bounded(0, 1, shape=(2,), domain="discrete")
    assert isinstance(whole, BoundedDiscrete)
    assert whole.dtype is torch.float32
    assert isinstance(whole.clone(), BoundedDiscrete)
    assert isinstance(Bounded(0, 1, shape=(2,), dtype=torch.int64, domain="continuous"), BoundedContinuous)
    assert isinstance(Unbounded((2,), domain="discrete"), UnboundedDiscrete)


def test_a_choice_that_does_not_exist_is_an_error_of_both_kinds() -> None:
    for kind in (AssertionError, RuntimeError):
        with pytest.raises(kind, match="is not among the 3 choices"):
            MultiOneHot((3, 2)).encode([3, 1])


def test_specs_side_by_side_as_numpy() -> None:
    spec = torch.stack([Categorical(2, shape=(1,)), Categorical(4, shape=(1,))], 0)
    assert spec.dim == 0
    assert spec.to_numpy(torch.tensor([[1], [2]])).tolist() == [[1], [2]]
    apart = torch.stack([Unbounded((2,)), Unbounded((3,))], 0)
    assert [len(part) for part in apart.to_numpy([torch.zeros(2), torch.zeros(3)])] == [2, 3]
