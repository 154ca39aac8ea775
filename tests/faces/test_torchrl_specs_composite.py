"""TorchRL's dialect: Composite, its locks, and specs side by side."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tensordict import LazyStackedTensorDict, TensorClass, TensorDict  # noqa: E402
from torchrl_specs import LEAVES, SHAPES, composites  # noqa: E402

from shoal.faces.torchrl import (  # noqa: E402
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    Stacked,
    StackedComposite,
    TensorSpec,
    Unbounded,
)

LAWS = settings(max_examples=30, deadline=None)


def pair() -> list[Composite]:
    """Two envs' specs: other action classes, other widths, one key more."""
    pendulum = Composite(action=Bounded(-2, 2, shape=(1,)), obs=Unbounded((3,)), flag=Categorical(2, shape=(1,)))
    cartpole = Composite(action=OneHot(2), obs=Unbounded((4,)), flag=Categorical(2, shape=(1,)), x=Unbounded((1,)))
    return [pendulum, cartpole]


@LAWS
@given(composites(), SHAPES)
def test_what_a_composite_draws_is_in_it(spec: Composite, shape: tuple[int, ...]) -> None:
    for data in (spec.rand(shape), spec.rand(shape).clone().to_dict()):
        assert spec.is_in(data) is True
    assert spec.rand(shape).batch_size == (*shape, *spec.shape)
    assert set(spec.zero().keys(True, True)) == set(spec.keys(True, True))


@LAWS
@given(composites())
def test_copies_are_equal_and_unlocked(spec: Composite) -> None:
    spec.lock_()
    assert spec.clone() == spec
    assert not spec.clone().is_locked
    for shipped in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert shipped == spec
        assert shipped.is_locked
        if "group" in shipped:
            with pytest.raises(RuntimeError, match="locked tree"):
                shipped["group"].unlock_()
        shipped.unlock_()
        assert not any(node.is_locked for node in shipped.values(True) if isinstance(node, Composite))


@LAWS
@given(composites(), st.integers(1, 3))
def test_stack_unbind_and_index_agree(spec: Composite, count: int) -> None:
    stacked = torch.stack([spec.clone() for _ in range(count)], 0)
    assert type(stacked) is Composite
    assert stacked.shape == (count, *spec.shape)
    assert all(part == spec for part in stacked.unbind(0))
    assert stacked[0] == spec
    assert stacked.is_in(torch.stack([spec.rand() for _ in range(count)], 0))


@LAWS
@given(st.lists(LEAVES, min_size=2, max_size=3))
def test_specs_of_any_kinds_lie_side_by_side_under_one_key(leaves: list[TensorSpec]) -> None:
    members = [Composite(x=leaf) for leaf in leaves]
    stacked = torch.stack(members, 0)
    assert [stacked[i] for i in range(len(members))] == members
    assert list(stacked.unbind(0)) == members
    assert [stacked["x"][i] for i in range(len(leaves))] == leaves
    data = stacked.rand()
    assert stacked.is_in(data)
    assert [data[i]["x"].shape for i in range(len(leaves))] == [leaf.shape for leaf in leaves]
    wide = stacked.expand(2, len(members))
    assert wide.shape == (2, len(members))
    assert wide.is_in(wide.rand())
    assert wide[1] == stacked
    assert wide[:, 0] == members[0].expand(2)


def test_nested_keys_make_what_they_need() -> None:
    spec = Composite({("a", "b"): Unbounded((4, 1))}, shape=(4,))
    assert spec["a"].shape == (4,)
    assert spec["a", "b"].shape == (4, 1)
    assert ("a", "b") in spec.keys(True)
    spec["a", "c", "d"] = Categorical(2, shape=(4,))
    assert set(spec.keys(True, True)) == {("a", "b"), ("a", "c", "d")}
    assert len(spec.keys(True)) == 4
    assert spec.pop(("a", "b")).shape == (4, 1)
    assert ("a", "b") not in spec
    spec.update({"a": {"e": Unbounded((4,))}})
    assert set(spec["a"].keys()) == {"c", "e"}
    del spec["a", "c"]
    assert list(spec.keys(True, True)) == [("a", "e")]
    assert spec.get("nothing") is None
    assert spec.pop("nothing", 3) == 3
    with pytest.raises(KeyError, match="nothing"):
        spec["nothing"]
    moved = spec.separates(("a", "e"))
    assert moved["a", "e"].shape == (4,)
    assert spec.is_empty()


def test_entries_must_fit_in() -> None:
    with pytest.raises(ValueError, match="'a' begins"):
        Composite(a=Unbounded((3, 2)), shape=(4,))
    with pytest.raises(RuntimeError, match="'a' is on cpu"):
        Composite(a=Unbounded((3,)), device="meta")
    with pytest.raises(AttributeError, match="dtype"):
        Composite({"dtype": Unbounded((3,))})
    with pytest.raises(TypeError, match="a spec"):
        Composite(a=3)


def test_nested_specs_take_over_what_they_were_not_given() -> None:
    inner = Composite(action=Categorical(2, shape=(4,)), deep=Composite(x=Unbounded((4, 2))), text=NonTensor(shape=()))
    spec = Composite(agent=inner, shape=(4,), device="cpu")
    assert inner.shape == ()
    assert spec["agent"].shape == spec["agent", "deep"].shape == spec["agent", "text"].shape == (4,)
    assert spec["agent", "deep"].device == torch.device("cpu")
    with pytest.raises(ValueError, match="'agent' begins"):
        Composite(agent=Composite(action=Categorical(2, shape=(3,))), shape=(4,))
    whole = Composite(x=Unbounded((4, 2)), shape=(4,))
    assert Composite(a=whole, shape=(4,))["a"] is whole


def test_membership_names_the_entry() -> None:
    spec = Composite(a=Composite(b=Bounded(0, 1, shape=(1,))), free=None)
    good = TensorDict({"a": {"b": torch.ones(1)}, "more": torch.zeros(3)})
    assert spec.is_in(good)
    assert not spec.is_in(3)
    bad = TensorDict({"a": {"b": torch.full((1,), 3.0)}})
    assert not spec.is_in(bad)
    with pytest.raises(AssertionError, match="entry 'a': entry 'b': got values outside"):
        spec.assert_is_in(bad)
    assert spec.project(bad) is bad
    assert bad["a", "b"].item() == 1
    assert spec.is_in(bad)
    with pytest.raises(KeyError, match="'b'"):
        spec.is_in(TensorDict({"a": {"c": torch.ones(1)}}))


def test_numpy_there_and_back() -> None:
    spec = Composite(a=Unbounded((2,)), c=Composite(n=OneHot(3)), text=NonTensor(shape=(), example_data=""))
    data = spec.encode({"a": [1, 2], "c": {"n": 2}, "text": "hello"})
    assert data["a"].tolist() == [1, 2]
    assert data["c", "n"].long().tolist() == [0, 0, 1]
    assert data["text"] == "hello"
    back = spec.to_numpy(data)
    assert back["a"].tolist() == [1, 2]
    assert back["c"]["n"] == 2
    assert back["text"] == "hello"
    with pytest.raises(KeyError, match="other"):
        spec.encode({"other": 1})


def test_combinations_change_fastest_at_the_end() -> None:
    spec = Composite(a=Composite(c=Categorical(2)), b=Categorical(3))
    values = spec.enumerate()
    assert values["a", "c"].tolist() == [0, 0, 0, 1, 1, 1]
    assert values["b"].tolist() == [0, 1, 2, 0, 1, 2]
    assert spec.cardinality() == 6


def test_batch_dims_change_without_the_others() -> None:
    spec = Composite(a=Unbounded((4, 2)), g=Composite(o=OneHot(3, shape=(4, 3)), shape=(4,)), shape=(4,))
    assert spec.reshape(2, 2)["g", "o"].shape == (2, 2, 3)
    assert spec.unsqueeze(1)["a"].shape == (4, 1, 2)
    assert spec[1:3]["g"].shape == (2,)
    assert spec.unflatten(0, (2, 2)).flatten(0, 1) == spec
    assert torch.unsqueeze(spec, 0).squeeze() == spec
    with pytest.raises(ValueError, match="expanded"):
        spec.expand(3, 5)


def test_an_update_sets_all_entries_of_the_spec_and_no_others() -> None:
    spec = Composite(a=Unbounded((2,)), g=Composite(n=Categorical(3)), free=None)
    data = TensorDict({"a": torch.ones(5, 2), "other": torch.ones(5)}, [5])
    assert spec.zeros_update(data) is data
    assert data["a"].sum() == 0
    assert data["g", "n"].tolist() == [0] * 5
    assert data["other"].sum() == 5
    assert spec.ones_update(data)["g", "n"].tolist() == [1] * 5
    assert spec.rand_update(data)["a"].unique().numel() == 10
    lazy = torch.stack(pair(), 0)
    assert lazy.zeros_update(lazy.rand())[1]["obs"].tolist() == [0] * 4


def test_names_follow_the_dims() -> None:
    spec = Composite(a=Unbounded((2, 3)), g=Composite(b=Unbounded((2,)), shape=(2,)), shape=(2,), names=["batch"])
    assert spec.names == spec.zero().names == spec["g"].names == spec.zero()["g"].names == ["batch"]
    assert spec.rand((5,)).names == spec.unsqueeze(0).names == [None, "batch"]
    wide = spec.expand(4, 2).refine_names("time", ...)
    assert wide.names == ["time", "batch"]
    assert wide[0].names == wide.unbind(0)[0].names == wide[:1].squeeze().names == ["batch"]
    assert wide[:, 0].names == wide[[0, 2], 1:].squeeze(-1).names == ["time"]
    assert (wide[None, ..., 1].names, wide[[0, 1], [0, 1]].names) == ([None, "time"], [None])
    assert wide.clone().names == wide.to("cpu").names == pickle.loads(pickle.dumps(wide)).names == wide.names
    assert torch.stack([spec, spec.clone()], 1).names == ["batch", None]
    assert torch.stack([spec, Composite(shape=(2,), names=["batch"])], 0).names == [None, "batch"]
    assert wide.reshape(8).names == Composite(shape=(2,)).names == [None]
    with pytest.raises(RuntimeError, match=r"\['batch'\] cannot be refined to \['row'\]"):
        spec.refine_names("row")
    with pytest.raises(ValueError, match="each of the 1 dims"):
        spec.names = ["a", "b"]
    spec.shape = ()
    assert spec.names == []


def test_a_composite_keeps_how_it_is_to_be_stepped() -> None:
    spec = Composite(a=Unbounded((2, 3)), shape=(2,), step_mdp_static=True)
    assert all(other.step_mdp_static for other in (spec, spec.clone(), spec[0], spec.empty()))


def test_only_selected_entries_are_type_checked() -> None:
    spec = Composite(a=Unbounded((1,)), g=Composite(b=Unbounded((1,)), c=Categorical(2)))
    data = TensorDict(a=torch.zeros(1), g={"b": torch.zeros(1), "c": torch.tensor(0.0)})
    spec.type_check(data, selected_keys="a")
    spec.type_check(data, selected_keys=["a", ("g", "b")])
    for selected in ("g", ("g", "c"), [("g", "c")], None):
        with pytest.raises(TypeError, match="'c'"):
            spec.type_check(data, selected_keys=selected)


@pytest.mark.parametrize("dim", [5, 2, -3])
def test_specs_are_stacked_only_along_a_dim_that_there_can_be(dim: int) -> None:
    for other in (Unbounded((2,)), Unbounded((3,))):
        with pytest.raises(ValueError, match=f"stack: dim {dim}"):
            torch.stack([Unbounded((2,)), other], dim)


def test_a_lock_holds_for_the_tree() -> None:
    spec = Composite(a=Composite(b=Unbounded((1,))))
    child = spec["a"]
    spec.lock_()
    assert child.locked
    with pytest.raises(RuntimeError, match="locked"):
        spec.set("z", Categorical(2))
    with pytest.raises(RuntimeError, match="locked"):
        child.update({"z": None})
    with pytest.raises(RuntimeError, match="locked tree"):
        child.unlock_()
    del spec
    child.unlock_()
    child["z"] = Categorical(2)


def test_devices() -> None:
    spec = Composite(a=Unbounded((1,)), g=Composite(b=Categorical(2)))
    moved = spec.to("meta")
    assert moved.device == torch.device("meta")
    assert moved["g", "b"].device == moved.device
    assert moved.zero().device == moved.device
    assert spec.device is None
    assert spec.zero().device is None
    assert moved.to("meta") is moved
    assert moved.clear_device_().device is None


def test_leaves_of_different_kinds_do_not_stack_by_themselves() -> None:
    for others in (Bounded(0, 1, shape=(2,)), Unbounded((2, 3)), Unbounded((2,), dtype=torch.int64), Composite()):
        with pytest.raises(RuntimeError, match="cannot be stacked"):
            torch.stack([Unbounded((2,)), others], 0)


def test_leaves_that_differ_lie_side_by_side() -> None:
    wide = torch.stack([Unbounded((2,)), Unbounded((3,))], 0)
    assert isinstance(wide, Stacked)
    assert wide.shape == (2, -1)
    assert wide.rand().is_nested
    assert wide.is_in(wide.zero())
    choices = torch.stack([Categorical(2), Categorical(3)], 0)
    assert choices.rand((5,)).shape == (5, 2)
    assert choices.is_in(torch.tensor([1, 2]))
    assert not choices.is_in(torch.tensor([2, 2]))
    assert choices.project(torch.tensor([9, 9])).tolist() == [1, 2]
    assert choices[[1, 0]][0] == Categorical(3)
    assert choices[:1] == Categorical(2).unsqueeze(0)
    assert choices.encode([1, 2]).tolist() == [1, 2]
    assert choices.clone() == choices
    assert choices.to("cpu") is choices
    rows = torch.stack([Unbounded((2, 5)), Unbounded((3, 5))], 1)
    assert rows.shape == (-1, 2, 5)
    assert rows.unsqueeze(0).shape == (1, -1, 2, 5)
    assert rows[:, :, 0].shape == (-1, 2)
    assert rows.unsqueeze(0).squeeze(0) == rows
    assert len(rows.unbind(-1)) == 5


def test_specs_of_different_envs_are_used_by_position() -> None:
    spec = torch.stack(pair(), 0)
    assert isinstance(spec, StackedComposite)
    assert set(spec.keys()) == {"action", "obs", "flag"}
    assert isinstance(spec["action"], Stacked)
    assert spec["flag"] == Categorical(2, shape=(2, 1))
    data = spec.rand()
    assert isinstance(data, LazyStackedTensorDict)
    assert data[0]["action"].shape == (1,)
    assert data[1]["x"].shape == (1,)
    assert spec[1]["action"] == OneHot(2)
    assert spec[[1]]["action"].shape == (1, 2)
    with pytest.raises(RuntimeError, match="lazy TensorDict"):
        spec["action"].rand()
    spec.lock_()
    with pytest.raises(RuntimeError, match="locked"):
        spec["z"] = Unbounded((2, 1))
    spec.unlock_()
    spec["z"] = Unbounded((2, 1))
    spec["deep", "z"] = Unbounded((2, 3))
    assert spec[0]["z"].shape == (1,)
    assert spec["deep", "z"].shape == (2, 3)
    spec.update({"deep": {"more": Unbounded((2, 1))}})
    assert set(spec["deep"].keys()) == {"z", "more"}
    del spec["z"]
    assert "z" not in spec
    assert spec.clone() == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    data = spec.rand()
    data[1]["action"] = torch.tensor([True, True])
    assert not spec.is_in(data)
    assert "part 1: entry 'action'" in spec.why_not(data)


def test_a_stack_inside_of_a_composite_moves_with_it() -> None:
    spec = Composite(agents=torch.stack(pair(), 0), shape=())
    many = spec.expand(3)
    assert many["agents"].shape == (3, 2)
    assert many[0] == spec
    assert many.rand()["agents"][0, 1]["obs"].shape == (4,)
    assert torch.stack([spec, spec.clone()], 0)["agents"].shape == (2, 2)


def test_nothing_to_separate_is_the_default() -> None:
    spec = Composite(a=Unbounded())
    assert spec.separates("b") is None
    assert spec.separates("b", default=3) == 3
    assert list(spec.separates("a", "b").keys()) == ["a"]


class Point(TensorClass):
    """Data with names of its own."""

    a: torch.Tensor


def test_samples_of_a_class_of_data_are_in_their_spec() -> None:
    spec = Composite(a=Unbounded((1,)), data_cls=Point)
    sample = spec.rand()
    assert isinstance(sample, Point)
    assert spec.is_in(sample)
    assert Composite(b=spec).is_in(TensorDict(b=sample))
    assert not spec.is_in(Point(a=torch.zeros(1, dtype=torch.int64)))
    assert list(spec.to_numpy(sample)) == ["a"]


def test_a_composite_is_made_of_dicts() -> None:
    with pytest.raises(RuntimeError, match="made of dicts of specs, got 3"):
        Composite(3)
