"""Partial resets and partial steps: who is concerned, and what the others keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase
from torchrl_cases import BOOL, I64, Adder, Counter, TwoAgents, ints

from shoal.faces.torchrl import Categorical, Composite, EnvBase, NonTensor, PendulumEnv, SerialEnv, Unbounded
from shoal.faces.torchrl.env.masks import over, select

SIZES = st.integers(1, 5)
MASKS = st.lists(st.booleans(), min_size=1, max_size=5)


def _stepped(env: Counter) -> TensorDictBase:
    return env.step_mdp(env.rand_step(env.reset()))


@given(mask=MASKS, flat=st.booleans())
def test_a_partial_reset_keeps_the_other_rows(mask: list[bool], flat: bool) -> None:
    env = Counter(limit=9, batch_size=(len(mask),))
    td = _stepped(env)
    td["_reset"] = torch.tensor(mask) if flat else torch.tensor(mask).unsqueeze(-1)
    td["extra"] = torch.full((len(mask),), 7)
    out = env.reset(td)
    assert out is td
    assert "_reset" not in td.keys()  # noqa: SIM118 - a TensorDict has no "in"
    assert ints(out["count"]) == [0 if reset else 1 for reset in mask]
    assert ints(out["extra"]) == [7] * len(mask)
    assert not out["done"].any()


def test_rows_without_data_are_zero() -> None:
    env = Counter(limit=9, batch_size=(3,))
    _stepped(env)
    out = env.reset(TensorDict({"_reset": torch.tensor([[True], [False], [True]])}, [3]))
    assert ints(out["count"]) == [0, 0, 0]


def test_rows_that_are_not_reset_may_have_ended() -> None:
    env = Counter(limit=1, batch_size=(2,))
    td = _stepped(env)
    assert td["done"].all()
    td["_reset"] = torch.tensor([[True], [False]])
    assert ints(env.reset(td)["done"]) == [False, True]


def _agents(first: list[bool] | None, second: list[bool] | None, root: bool | None = None) -> TensorDict:
    def group(value: int, mask: list[bool] | None) -> TensorDict:
        flag = torch.zeros(2, 1, dtype=BOOL)
        entries = {"val": torch.full((2,), value), "done": flag, "terminated": flag.clone()}
        if mask is not None:
            entries["_reset"] = torch.tensor(mask).unsqueeze(-1)
        return TensorDict(entries, [2])

    td = TensorDict({"agent0": group(1, first), "agent1": group(2, second)}, [])
    if root is not None:
        td["done"], td["terminated"] = torch.zeros(1, dtype=BOOL), torch.zeros(1, dtype=BOOL)
        td["_reset"] = torch.tensor([root])
    return td


def _values(td: TensorDictBase) -> list[Any]:
    assert not any("_reset" in (key if isinstance(key, tuple) else (key,)) for key in td.keys(True))
    return [ints(td["agent0", "val"]), ints(td["agent1", "val"])]


def test_nested_masks_count_each_for_its_group() -> None:
    assert _values(TwoAgents().reset(_agents([False, True], [True, False]))) == [[1, 0], [0, 2]]


def test_a_group_without_a_mask_is_reset_as_a_whole() -> None:
    assert _values(TwoAgents().reset(_agents([False, True], None))) == [[1, 0], [0, 0]]


@pytest.mark.parametrize(("root", "values"), [(True, [[0, 0], [0, 0]]), (False, [[1, 1], [2, 2]])])
def test_a_mask_at_the_root_decides_for_all(root: bool, values: list[list[int]]) -> None:
    env = TwoAgents(root_done=True)
    assert _values(env.reset(_agents([False, True], [True, False], root))) == values
    assert env.masks == [{"_reset": [root]}]


def test_nested_masks_do_not_count_below_a_done_flag_of_the_root() -> None:
    env = TwoAgents(root_done=True)
    assert _values(env.reset(_agents([False, True], [True, False]))) == [[0, 0], [0, 0]]
    assert env.masks == [{}]


class ThreeLevels(EnvBase):
    """Flags at ``a``, at ``(a, b)`` below it, and at ``c``; a step ends the episode of ``a``."""

    def __init__(self) -> None:
        super().__init__()
        x, flag = Unbounded((1,)), Categorical(2, shape=(1,), dtype=BOOL)
        self.observation_spec = Composite(a=Composite(x=x, b=Composite(x=x)), c=Composite(x=x))
        self.action_spec, self.reward_spec = Categorical(2), Unbounded((1,))
        self.done_spec = Composite(a=Composite(done=flag, b=Composite(done=flag)), c=Composite(done=flag))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.observation_spec.one().set("reward", torch.ones(1)).set(("a", "done"), torch.tensor([True]))

    def _set_seed(self, seed: int | None) -> None:
        pass


class Team(EnvBase):
    """Two groups that end at ``limit`` together, and a clock that belongs to neither."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.time = limit, 0
        flag = Categorical(2, shape=(1,), dtype=BOOL)
        groups = {group: Composite(done=flag.clone()) for group in ("red", "blue")}
        self.observation_spec = Composite(clock=Unbounded((1,), dtype=I64), shared=Composite(note=NonTensor(())))
        self.action_spec, self.reward_spec = Categorical(2), Unbounded((1,))
        self.done_spec = Composite(groups)

    def _shown(self) -> TensorDict:
        return TensorDict({"clock": torch.tensor([self.time]), "shared": {"note": NonTensorData(str(self.time))}})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.time = 0
        return self._shown()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.time += 1
        ended = torch.tensor([self.time >= self.limit])
        return self._shown().update({"reward": torch.ones(1), "red": {"done": ended}, "blue": {"done": ended}})

    def _set_seed(self, seed: int | None) -> None:
        pass


def test_what_lies_beside_the_groups_is_kept_in_rows_that_are_not_reset() -> None:
    env = SerialEnv(2, [lambda: Team(2), lambda: Team(9)])
    rollout = env.rollout(5, break_when_any_done=False)
    assert rollout["clock"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 3, 4]]
    assert [row["shared", "note"] for row in rollout[1]] == list("01234")


@pytest.mark.parametrize("above", [True, None, False])
def test_a_mask_decides_for_all_levels_below_it(above: bool | None) -> None:
    env = ThreeLevels()
    td = env.observation_spec.one().update(env.full_done_spec.zero())
    td["a", "b", "_reset"], td["c", "_reset"] = torch.tensor([above is False]), torch.tensor([False])
    if above is not None:
        td["a", "_reset"] = torch.tensor([above])
    td = env.reset(td)
    assert [td[key].item() for key in (("a", "x"), ("a", "b", "x"), ("c", "x"))] == (
        [1, 1, 1] if above is False else [0, 0, 1]
    )
    assert not any("_reset" in key for key in td.keys(True, True))


def test_an_episode_that_ends_takes_those_below_it_along() -> None:
    env = ThreeLevels()
    _, td = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert [td[key].item() for key in (("a", "x"), ("a", "b", "x"), ("c", "x"))] == [0, 0, 1]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_no_mask_of_a_reset_is_left_at_any_level(is_lazy: bool) -> None:
    def row() -> TensorDict:
        nested = {"x": torch.zeros(1), "_reset": torch.tensor([True]), "deep": {"_reset": torch.tensor([True])}}
        return TensorDict({"_reset": torch.tensor([True]), "nested": nested})

    env = Counter(batch_size=(2,))
    td = LazyStackedTensorDict(row(), row()) if is_lazy else torch.stack([row(), row()])
    out = env.reset(td)
    assert set(out.keys(True, True)) == {"count", "done", "terminated", ("nested", "x")}


def test_the_root_decides_about_resets_where_it_has_a_flag() -> None:
    env = TwoAgents(root_done=True, ends=(True, False))
    _, td_ = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert _values(td_) == [[5, 5], [5, 5]]
    assert len(env.masks) == 1
    assert not env.any_done(td_)
    nested = TwoAgents(ends=(True, False))
    _, td_ = nested.step_and_maybe_reset(nested.rand_action(nested.reset()))
    assert _values(td_) == [[0, 5], [5, 5]]
    assert nested.masks[1] == {("agent0", "_reset"): [True, False], ("agent1", "_reset"): [False, False]}


def test_any_done_leaves_masks_for_the_reset() -> None:
    env = Counter(limit=1, batch_size=(2,))
    env.reset()
    td = env.step_mdp(env.rand_step())
    td["done"][1] = False
    assert bool(env.any_done(td))
    assert ints(td["_reset"]) == [True, False]
    assert ints(env.maybe_reset(td)["count"]) == [0, 1]
    quiet = env.reset()
    assert not bool(env.any_done(quiet))
    assert env.maybe_reset(quiet) is quiet


# -- steps ------------------------------------------------------------------------------------------------------------


def test_a_single_env_that_is_not_stepped() -> None:
    env = Counter(limit=9)
    td = env.rand_action(_stepped(env))
    td["_step"] = torch.tensor(False)
    out = env.step(td)
    assert env.n_steps == 1
    assert ints(out["next", "count"]) == [1]
    assert ints(out["next", "reward"]) == [0.0]
    assert not out["next", "done"].any()
    assert "_step" not in out.keys()  # noqa: SIM118
    td = env.rand_action(env.step_mdp(out))
    td["_step"] = torch.tensor(True)
    stepped, td_ = env.step_and_maybe_reset(td)
    assert ints(stepped["next", "count"]) == [2]
    assert "_step" not in td_.keys()  # noqa: SIM118 - it was for one step


@given(mask=MASKS, holds_data=st.booleans())
def test_skipped_rows_keep_their_observations(mask: list[bool], holds_data: bool) -> None:
    env = Counter(limit=9, batch_size=(len(mask),))
    td = env.rand_action(_stepped(env))
    if not holds_data:
        td = td.select("action")
    td["_step"] = torch.tensor(mask)
    out = env.step(td)["next"]
    kept = 1 if holds_data else 0
    assert ints(out["count"]) == [2 if stepped else kept for stepped in mask]
    assert ints(out["reward"]) == [float(stepped) for stepped in mask]


def test_rows_are_kept_even_if_the_env_steps_them_all() -> None:
    class Heedless(Counter):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict.exclude("_step"))

    env = Heedless(limit=9, batch_size=(2,))
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, False])
    assert ints(env.step(td)["next", "count"]) == [1, 0]


@given(mask=MASKS)
def test_an_env_of_any_batch_steps_the_rows_that_are_asked_for(mask: list[bool]) -> None:
    env = Adder()
    td = env.reset(TensorDict(batch_size=[len(mask)]))
    td["x"], td["action"] = torch.full((len(mask), 1), 5.0), torch.ones(len(mask), 1)
    td["next"] = TensorDict({"hidden": torch.ones(len(mask))}, [len(mask)])
    td["_step"] = torch.tensor(mask)
    out = env.step(td)
    assert ints(out["next", "x"]) == [6.0 if stepped else 5.0 for stepped in mask]
    assert ints(out["next", "reward"]) == [float(stepped) for stepped in mask]
    assert ints(out["x"]) == [5.0] * len(mask)
    assert ints(out["action"]) == [1.0] * len(mask)
    assert ints(out["next", "hidden"]) == [1.0] * len(mask)
    if not all(mask):
        assert out is not td
        assert set(td["next"].keys()) == {"hidden"}
    assert td.get("_step", None) is None
    assert out.get("_step", None) is None


def test_masks_of_two_batch_dims() -> None:
    env = Adder()
    td = env.rand_action(env.reset(TensorDict(batch_size=[2, 3])))
    td["_step"] = torch.tensor([[True, False, False], [False, False, True]])
    out = env.step(td)["next"]
    assert out.batch_size == (2, 3)
    assert torch.equal(out["reward"].squeeze(-1).bool(), torch.tensor([[True, False, False], [False, False, True]]))


# -- the choice between two TensorDicts -------------------------------------------------------------------------------


@given(size=SIZES, trailing=st.lists(st.integers(1, 3), max_size=2), with_dim=st.booleans())
def test_a_mask_reaches_over_all_trailing_dims(size: int, trailing: list[int], with_dim: bool) -> None:
    mask = torch.arange(size) % 2 == 0
    value = torch.ones(size, *trailing)
    given_mask = mask.unsqueeze(-1) if with_dim else mask
    chosen = torch.where(over(given_mask, value), value, torch.zeros_like(value))
    assert chosen.shape == value.shape
    assert torch.equal(chosen.reshape(size, -1).all(-1), mask)


def test_single_numbers_are_kept_where_no_step_is_made() -> None:
    env = PendulumEnv()
    td = env.rand_action(env.reset())
    following = env.step(td.copy().set("_step", torch.tensor(False)))["next"]
    assert following["th"].shape == ()
    assert following["th"] == td["th"]


@pytest.mark.parametrize("mask", [True, False])
def test_a_mask_of_one_env_is_for_all_agents(mask: bool) -> None:
    def agents(value: float) -> TensorDict:
        parts = [TensorDict({"obs": torch.full((width,), value)}) for width in (2, 3)]
        return TensorDict({"agents": LazyStackedTensorDict(*parts, stack_dim=0)})

    chosen = select(torch.tensor(mask), agents(1.0), agents(0.0))
    assert [row["obs"].tolist() for row in chosen["agents"].unbind(0)] == [[mask] * 2, [mask] * 3]


def test_rows_of_different_shapes_are_chosen_one_by_one() -> None:
    def stack(value: float) -> LazyStackedTensorDict:
        parts = [TensorDict({"obs": torch.full((width,), value)}, []) for width in (2, 3)]
        return LazyStackedTensorDict(*parts, stack_dim=0)

    chosen = select(torch.tensor([True, False]), stack(1.0), stack(0.0))
    assert chosen[0]["obs"].tolist() == [1.0, 1.0]
    assert chosen[1]["obs"].tolist() == [0.0, 0.0, 0.0]


class Speaker(Counter):
    """A counter that says something with every step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_spec = Composite(count=Unbounded((1,), dtype=I64), said=NonTensor(shape=(), example_data="x"))
        self.action_spec = Categorical(2, shape=(1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return super()._reset(tensordict).set("said", NonTensorData("begin"))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).set("said", NonTensorData(f"step {int(self.count)}"))


class SpeakingAdder(Adder):
    """Says whether it has been stepped."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((1,)), said=NonTensor(()))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return super()._reset(tensordict).update({"said": "old"})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).update({"said": "new", "extra": torch.ones(tensordict.batch_size)})


@pytest.mark.parametrize("size", [(4,), (2, 2)])
def test_rows_of_any_batch_keep_their_objects(size: tuple[int, ...]) -> None:
    env = SpeakingAdder()
    td = env.rand_action(env.reset(TensorDict(batch_size=size)))
    td["_step"] = torch.tensor([True, False, False, True]).reshape(size)
    following = env.step(td)["next"].reshape(-1)
    assert following.get("said").tolist() == ["new", "old", "old", "new"]
    assert ints(following["extra"]) == ints(following["reward"]) == [1.0, 0.0, 0.0, 1.0]


def test_objects_are_kept_too() -> None:
    env = Speaker(limit=9)
    td = env.rand_step(env.reset())
    assert td["next", "said"] == "step 1"
    td = env.rand_action(env.step_mdp(td))
    td["_step"] = torch.tensor(False)
    assert env.step(td)["next", "said"] == "step 1"
    td = env.rand_action(env.step_mdp(td))
    assert env.step(td)["next", "said"] == "step 2"
    assert list(env.rollout(3)["next", "said"]) == ["step 1", "step 2", "step 3"]
