"""Transforms, chains of them, and envs seen through them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torchrl_cases import BOOL, I64, Adder, Counter, TwoAgents, ints, rows

from shoal.errors import StateError
from shoal.faces.torchrl import (
    ActionMask,
    Bounded,
    Categorical,
    CatFrames,
    Compose,
    Composite,
    ConditionalSkip,
    EnvBase,
    InitTracker,
    NonTensor,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TargetReturn,
    TensorDictPrimer,
    Transform,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)


class Times(Transform):
    """Multiplies a count on its way out, under another key."""

    def __init__(self, factor: int, source: str = "count", target: str = "scaled") -> None:
        super().__init__(in_keys=[source], out_keys=[target])
        self.factor = factor

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.factor

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec[self.out_keys[0]] = observation_spec[self.in_keys[0]].clone()
        return observation_spec


class Shifted(Transform):
    """Actions that are one less for the env than for the caller."""

    def __init__(self, by: float = 1.0, key: str = "action") -> None:
        super().__init__(in_keys_inv=["action"], out_keys_inv=[key])
        self.by = by

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value - self.by

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        spec = action_spec.clone()
        if self.out_keys_inv[0] != "action":
            spec[self.out_keys_inv[0]] = spec["action"]
            del spec["action"]
        return spec


def test_a_transform_adds_what_it_declares() -> None:
    env = TransformedEnv(Counter(limit=9), Times(3))
    assert env.observation_keys == ["count", "scaled"]
    assert env.base_env.observation_keys == ["count"]
    r = env.rollout(3)
    assert ints(r["scaled"]) == [0, 3, 6]
    assert ints(r["next", "scaled"]) == [3, 6, 9]
    check_env_specs(env)


def test_resets_are_left_alone_by_default() -> None:
    class Negative(Transform):
        def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
            return -value

    env = TransformedEnv(Counter(limit=9), Negative(in_keys=["count"]))
    assert ints(env.reset(start=4)["count"]) == [4]
    assert ints(env.rand_step()["next", "count"]) == [-5]
    assert ints(env.transform(TensorDict({"count": torch.ones(1)}, []))["count"]) == [-1.0]


def test_inputs_pass_backwards_and_the_caller_keeps_them() -> None:
    env = TransformedEnv(Adder(), Compose(Shifted(1.0), Shifted(10.0, "push")))
    assert env.action_keys == ["push"]
    td = env.reset()
    td["push"] = torch.full((1,), 100.0)
    out = env.step(td)
    assert ints(out["next", "x"]) == [89.0]
    assert set(out.keys()) == {"x", "done", "terminated", "push", "next"}
    assert ints(out["push"]) == [100.0]
    assert ints(Shifted(1.0).inv(TensorDict({"action": torch.ones(1)}, []))["action"]) == [0.0]


def test_missing_keys() -> None:
    class Declared(Times):
        def transform_observation_spec(self, observation_spec: Composite) -> Composite:
            observation_spec[self.out_keys[0]] = Unbounded((1,), dtype=I64)
            return observation_spec

    env = TransformedEnv(Counter(), Declared(2, source="nothing"))
    with pytest.raises(KeyError, match="'nothing'"):
        env.reset()
    env.set_missing_tolerance(True)
    env.reset()


class Same(Transform):
    """Writes values as they are."""

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset if "reward" in self.in_keys else self._call(tensordict_reset)


class Stated(Same):
    """Declares what it writes as a state only."""

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        state_spec["new"] = Unbounded((1,), dtype=I64)
        return state_spec


class Flagged(Same):
    """Declares what it writes as a flag."""

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        done_spec["new"] = done_spec["done"].clone()
        return done_spec


class Free(Same):
    """Is answerable for the whole spec itself."""

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        return output_spec


@pytest.mark.parametrize(
    "make",
    [
        lambda: Same(["count"], ["new"]),
        lambda: Same(["reward"], ["new"]),
        lambda: Same(["count"], [("deep", "new")]),
        lambda: Same(["count"], ["action"]),
        lambda: Same(out_keys=["new"]),
        lambda: Stated(["count"], ["new"]),
        lambda: Compose(StepCounter(), Same(["step_count"], ["new"])),
        lambda: Compose(Same(["count"], ["new"]), Times(2, target="new")),
    ],
)
def test_entries_that_no_spec_names_are_refused(make: Any) -> None:
    for use in (lambda env: env.observation_spec, lambda env: env.reset(), lambda env: env.rollout(2)):
        with pytest.raises(KeyError, match=r"(new|action)'.* must be declared in transform_observation_spec"):
            use(TransformedEnv(Counter(), make()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Same(["count"]),
        lambda: Same(["count"], ["reward"]),
        lambda: Same(["done"], ["terminated"]),
        lambda: Flagged(["done"], ["new"]),
        lambda: Free(["count"], ["new"]),
        lambda: Compose(Times(2, target="new"), Same(["count"], ["new"])),
        lambda: lambda td: td.set("new", td["count"]),
    ],
)
def test_entries_that_a_spec_names_are_accepted(make: Any) -> None:
    assert TransformedEnv(Counter(), make()).rollout(2).shape == (2,)


def test_resets_without_data_show_transforms_empty_data() -> None:
    class Seen(Transform):
        def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
            seen.append((set(tensordict.keys()), tensordict.batch_size))
            return tensordict_reset

    seen: list[Any] = []
    env = TransformedEnv(Counter(limit=9, batch_size=(2,)), Compose(Seen(), StepCounter()))
    td = env.reset()
    td["_reset"] = torch.tensor([[True], [False]])
    env.reset(td.set("other", torch.ones(2)))
    assert seen == [(set(), (2,)), ({"_reset", "step_count"}, (2,))]


def test_keys_may_be_properties() -> None:
    class Watched(Same):
        @property
        def in_keys(self) -> list[Any]:  # type: ignore[override]
            return list(self.__dict__["watched"])

        @in_keys.setter
        def in_keys(self, keys: list[Any]) -> None:
            self.__dict__["watched"] = keys

        def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
            return value + 10

    assert ints(TransformedEnv(Counter(), Watched(["count"])).rollout(1)["next", "count"]) == [11]


def copies(thing: Any) -> list[Any]:
    return [copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))]


def test_a_copy_of_a_transform_has_no_env() -> None:
    class Unpicklable(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.function = lambda: None

    for chain in (StepCounter(), Compose(StepCounter(), RewardSum())):
        env = TransformedEnv(Unpicklable(), chain)
        env.rollout(2)
        for twin in copies(chain):
            assert (twin.container, twin.parent) == (None, None)
            assert ints(TransformedEnv(Counter(), twin).rollout(2)["next", "step_count"]) == [1, 2]
    links = env.transform
    assert copy.deepcopy(links[1]).container is None
    assert copy.copy(links)[1].container is links[1].container is env


def test_a_copy_of_an_env_has_transforms_of_its_own() -> None:
    for chain in (StepCounter(), Compose(StepCounter(), RewardSum())):
        inner = TransformedEnv(Counter(limit=9), chain)
        outer = TransformedEnv(inner, Compose(InitTracker()), auto_unwrap=False)
        outer.rollout(2)
        for twin in copies(outer):
            assert twin.transform[0].container is twin
            links = list(twin.base_env.transform) if isinstance(chain, Compose) else [twin.base_env.transform]
            assert all(link.container is twin.base_env for link in links)
            assert links[-1].parent.base_env is twin.base_env.base_env
            twin.base_env.append_transform(Times(2))
            assert ints(twin.rollout(2)["next", "step_count"]) == [1, 2]
            assert ints(twin.rollout(2)["next", "scaled"]) == [2, 4]
        assert chain.container is inner


def test_a_transform_belongs_to_one_env() -> None:
    counter = StepCounter()
    env = TransformedEnv(Counter(), counter)
    with pytest.raises(AttributeError, match="clone"):
        TransformedEnv(Counter(), counter)
    assert counter.container is env
    assert isinstance(counter.parent, TransformedEnv)
    assert counter.parent.base_env is env.base_env
    assert len(counter.parent.transform) == 0
    other = TransformedEnv(Counter(), counter.clone())
    assert other.transform is not counter


def test_the_env_below_a_transform_has_those_before_it() -> None:
    env = TransformedEnv(Counter(limit=9), Compose(Times(2), StepCounter()))
    below = env.transform[1].parent
    assert isinstance(below, TransformedEnv)
    assert below.observation_keys == ["count", "scaled"]
    assert below.base_env is env.base_env
    assert env.transform[0].parent.base_env is env.base_env
    assert all(link.container is env for link in env.transform)
    assert Compose(Times(2))[0].container is None


def test_chains_can_be_changed() -> None:
    env = TransformedEnv(Counter(limit=9))
    assert len(env.transform) == 0
    assert env.append_transform(StepCounter()) is env
    assert env.insert_transform(0, Times(2)) is env
    assert env.observation_keys == ["count", "scaled", "step_count"]
    assert [type(link) for link in env.transform] == [Times, StepCounter]
    taken = env.transform.pop()
    assert isinstance(taken, StepCounter)
    assert env.observation_keys == ["count", "scaled"]
    env.transform[0] = Times(5)
    assert ints(env.rollout(2)["next", "scaled"]) == [5, 10]
    del env.transform[0]
    assert env.observation_keys == ["count"]
    env.append_transform(Compose(Times(2), taken))
    assert len(env.transform) == 2
    assert len(env.transform[:1]) == 1
    with pytest.raises(ValueError, match="beyond"):
        env.insert_transform(5, InitTracker())
    single = TransformedEnv(Counter(), Times(2))
    single.transform = StepCounter()
    assert single.observation_keys == ["count", "step_count"]
    single.append_transform(InitTracker())
    assert len(single.transform) == 2
    several = TransformedEnv(Counter(), Compose(transforms=[StepCounter(), InitTracker(), RewardSum()]))
    del several.transform[1:]
    assert several.observation_keys == ["count", "step_count"]
    with pytest.raises(ValueError, match="not both"):
        Compose(StepCounter(), transforms=[InitTracker()])


def test_specs_pass_through_chains_and_lone_leaves_through_transforms() -> None:
    norm = ObservationNorm(1.0, 2.0, ["x"], in_keys_inv=["action"])
    for change in (Compose(norm.clone()).transform_observation_spec, norm.transform_observation_spec):
        assert change(Composite(x=Bounded(0, 1, (3,))))["x"] == Bounded(1, 3, (3,))
    assert norm.transform_observation_spec(Bounded(0, 1, (3,))) == Bounded(1, 3, (3,))  # type: ignore[arg-type, comparison-overlap]
    assert norm.transform_action_spec(Bounded(0, 1, (3,))) == Bounded(1, 3, (3,))  # type: ignore[arg-type, comparison-overlap]
    chain = Compose(Shifted(1.0, "push"), norm)
    assert list(chain.transform_action_spec(Composite(action=Unbounded((3,)))).keys()) == ["push"]
    assert list(chain.transform_reward_spec(Composite(reward=Unbounded((1,)))).keys()) == ["reward"]
    assert CatFrames(3, -1, ["x"]).transform_observation_spec(Unbounded((3,))).shape == (9,)  # type: ignore[arg-type]


def test_the_state_of_a_transformed_env_is_that_of_its_transforms() -> None:
    env = TransformedEnv(Counter(), ObservationNorm(1.0, 2.0, ["count"], standard_normal=True))
    state = env.state_dict()
    assert {name: value.item() for name, value in state.items()} == {"loc": 1.0, "scale": 2.0, "standard_normal": True}
    for names in (state, {f"transform.{name}": value for name, value in state.items()}):
        fresh = TransformedEnv(Counter(), ObservationNorm(in_keys=["count"]))
        fresh.load_state_dict(names)
        assert ints(fresh.reset(start=5)["count"]) == [2.0]
    outer = TransformedEnv(env, Compose(RewardScaling(0.0, 3.0)), auto_unwrap=False)
    assert set(outer.state_dict()) == {
        *(f"transforms.0.{name}" for name in state),
        *(f"base_env.{name}" for name in state),
    }
    outer.load_state_dict(outer.state_dict())
    batch = TransformedEnv(SerialEnv(2, Counter), RewardScaling(0.0, 3.0))
    assert set(batch.state_dict()) == set(state)
    assert batch.is_closed


def test_callables_are_transforms() -> None:
    env = Counter(limit=9).append_transform(lambda td: td.set("twice", td["count"] * 2))
    assert isinstance(env, TransformedEnv)
    r = env.rollout(3)
    assert ints(r["twice"]) == [0, 2, 4]
    assert ints(r["next", "twice"]) == [2, 4, 6]
    layer = torch.nn.Linear(1, 1)
    module = TransformedEnv(Adder(), lambda td: td.set("y", layer(td["x"])))
    assert module.reset()["y"].shape == (1,)
    with pytest.raises(TypeError, match="callable"):
        TransformedEnv(Counter(), 3)  # type: ignore[arg-type]


def test_transformed_envs_are_merged_unless_told_not_to() -> None:
    inner = TransformedEnv(Counter(limit=9), StepCounter())
    merged = TransformedEnv(inner, InitTracker())
    assert isinstance(merged.base_env, Counter)
    assert len(merged.transform) == 2
    assert merged.set_seed(0) == 795726461
    kept = TransformedEnv(inner, InitTracker(), auto_unwrap=False)
    assert kept.base_env is inner
    assert set(kept.rollout(2).keys()) == set(merged.rollout(2).keys())


def test_attributes_pass_through() -> None:
    env = TransformedEnv(Counter(limit=7), StepCounter())
    assert env.limit == 7
    with pytest.raises(AttributeError, match="nothing_like_that"):
        env.nothing_like_that  # noqa: B018
    assert env.batch_locked
    assert not TransformedEnv(Adder()).batch_locked
    with pytest.raises(RuntimeError, match="follows from the env inside"):
        env.batch_size = [3]
    env.close()
    assert env.is_closed
    assert env.base_env.is_closed


def test_specs_follow_the_env_inside() -> None:
    env = TransformedEnv(Counter(limit=9), Times(2))
    assert env.is_spec_locked
    env.base_env.action_spec = Categorical(5, shape=(1,))
    assert env.action_spec.n == 5
    env.base_env.add_truncated_keys()
    assert "truncated" in env.done_keys
    env.action_spec = Bounded(-1, 1, shape=(2,))
    assert env.base_env.action_spec.n == 5
    assert env.rand_action()["action"].shape == (2,)
    loose = TransformedEnv(Counter(spec_locked=False), Times(2))
    assert not loose.is_spec_locked
    assert env.set_spec_lock_(False) is env
    assert not env.base_env.is_spec_locked
    fresh = TransformedEnv(Counter(limit=9), Times(2), cache_specs=False)
    assert ints(fresh.rollout(2)["next", "scaled"]) == [2, 4]


def test_partial_resets_through_transforms() -> None:
    env = TransformedEnv(Counter(limit=9, batch_size=(2,)), Compose(Times(2), StepCounter(), InitTracker()))
    td = env.step_mdp(env.rand_step(env.reset()))
    td["_reset"] = torch.tensor([[True], [False]])
    out = env.reset(td)
    assert ints(out["count"]) == [0, 1]
    assert ints(out["scaled"]) == [0, 2]
    assert ints(out["step_count"]) == [0, 1]
    assert ints(out["is_init"]) == [True, False]


def test_transformed_envs_can_be_copied_and_moved() -> None:
    env = TransformedEnv(Counter(limit=9), Compose(Times(2), StepCounter()))
    env.rollout(2)
    twin = copy.deepcopy(env)
    assert ints(twin.rollout(2)["next", "scaled"]) == [2, 4]
    assert twin.transform[1].container is twin
    assert twin.transform.container is twin
    assert env.base_env.n_steps == 2
    assert env.to("cpu") is env
    assert env.device == torch.device("cpu")
    assert env.observation_spec["scaled"].device == torch.device("cpu")


# -- the ones that follow an env --------------------------------------------------------------------------------------


def test_steps_are_counted_and_limited() -> None:
    env = TransformedEnv(Counter(limit=10), StepCounter(max_steps=4))
    r = env.rollout(10)
    assert ints(r["step_count"]) == [0, 1, 2, 3]
    assert ints(r["next", "truncated"]) == [False, False, False, True]
    assert ints(r["next", "done"]) == [False, False, False, True]
    assert not r["next", "terminated"].any()
    assert env.observation_spec["step_count"].dtype is I64
    check_env_specs(env)
    r = env.rollout(6, break_when_any_done=False)
    assert ints(r["step_count"]) == [0, 1, 2, 3, 0, 1]
    quiet = TransformedEnv(Counter(limit=10), StepCounter(max_steps=2, update_done=False))
    assert ints(quiet.rollout(3)["next", "done"]) == [False, False]
    assert ints(quiet.rollout(3, break_when_any_done=False)["next", "done"]) == [False, False, False]
    assert TransformedEnv(Counter(), StepCounter()).done_keys == ["done", "terminated"]
    for bad in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            StepCounter(max_steps=bad)


def test_who_is_cut_short_is_so_at_every_level() -> None:
    env = TransformedEnv(TwoAgents(root_done=True), StepCounter(max_steps=2))
    data = env.rollout(2, break_when_any_done=False)
    for key in ("done", ("agent0", "done"), ("agent1", "done")):
        assert data["next"][key][-1].all(), key


@pytest.mark.parametrize("update_done", [True, False])
def test_who_has_a_truncated_flag_below_is_told_so(update_done: bool) -> None:
    agents = TwoAgents(root_done=True)
    agents.add_truncated_keys()
    env = TransformedEnv(agents, StepCounter(max_steps=2, update_done=update_done))
    following = env.rollout(2, break_when_any_done=False)["next"]
    for key in ("truncated", ("agent0", "truncated"), ("agent1", "truncated")):
        assert not following[key][0].any(), key
        assert following[key][-1].all(), key
    assert following["agent0", "done"][-1].all() == update_done
    check_env_specs(env)


def test_a_mask_that_the_env_does_not_write_is_missed() -> None:
    with pytest.raises(KeyError, match="action_mask"):
        TransformedEnv(Counter(), ActionMask()).rollout(2)


def test_steps_are_counted_where_resets_are_decided() -> None:
    nested = TransformedEnv(TwoAgents(), StepCounter(max_steps=2))
    assert ("agent0", "step_count") in nested.observation_keys
    assert ("agent1", "truncated") in nested.done_keys
    assert nested.rollout(9).batch_size == (2,)
    check_env_specs(nested)
    rooted = TransformedEnv(TwoAgents(root_done=True), Compose(StepCounter(max_steps=2), InitTracker()))
    assert rooted.observation_keys[:2] == ["is_init", "step_count"]
    assert rooted.rollout(9).batch_size == (2,)
    unlocked = TransformedEnv(Adder(), StepCounter(max_steps=2))
    r = unlocked.rollout(9, tensordict=TensorDict(batch_size=[3]))
    assert rows(r["next", "step_count"]) == [[1, 2]] * 3


def test_starts_are_marked() -> None:
    r = TransformedEnv(Counter(limit=3), InitTracker()).rollout(7, break_when_any_done=False)
    assert ints(r["is_init"]) == [True, False, False, True, False, False, True]
    assert not r["next", "is_init"].any()
    check_env_specs(TransformedEnv(TwoAgents(), InitTracker("begins")))
    with pytest.raises(ValueError, match="last part of a key"):
        InitTracker(init_key=("a", "b"))  # type: ignore[arg-type]


def test_rewards_are_summed() -> None:
    env = TransformedEnv(Counter(limit=3), RewardSum())
    r = env.rollout(7, break_when_any_done=False)
    assert ints(r["episode_reward"]) == [0, 1, 2, 0, 1, 2, 0]
    assert ints(r["next", "episode_reward"]) == [1, 2, 3, 1, 2, 3, 1]
    check_env_specs(env)
    nested = TransformedEnv(TwoAgents(), RewardSum())
    assert nested.rollout(2)["next", "agent1", "episode_reward"].flatten().tolist() == [1.0, 1.0, 2.0, 2.0]
    named = TransformedEnv(Counter(), RewardSum(in_keys=["reward"], out_keys=["total"]))
    assert "total" in named.observation_keys
    as_reward = TransformedEnv(Counter(), RewardSum(reward_spec=True))
    assert as_reward.reward_keys == ["episode_reward", "reward"]
    with pytest.raises(ValueError, match="as many"):
        RewardSum(in_keys=["reward"], out_keys=["a", "b"])
    with pytest.raises(ValueError, match="as many"):
        TransformedEnv(Counter(), RewardSum(out_keys=["a", "b"])).observation_keys  # noqa: B018
    with pytest.raises(ValueError, match="2 reset_keys for 1"):
        TransformedEnv(Counter(), RewardSum(reset_keys=["a", "b"])).rollout(2)


def test_rewards_of_a_rollout_are_summed() -> None:
    env = TransformedEnv(SerialEnv(2, [lambda: Counter(3), lambda: Counter(2)]), RewardSum())
    data = env.rollout(7, break_when_any_done=False)
    keys: Any = [("next", "reward")], [("next", "sum")]
    assert torch.equal(RewardSum(*keys)(data)["next", "sum"], data["next", "episode_reward"])
    first_in_time = TensorDict(data.to_dict(), data.shape, names=[None, "time"]).transpose(0, 1)
    sums = RewardSum(*keys)(first_in_time)["next", "sum"]
    assert torch.equal(sums.transpose(0, 1), data["next", "episode_reward"])
    plain = TensorDict({"reward": torch.ones(2, 3, 1, dtype=torch.int32)}, [2, 3])
    summed = RewardSum(["reward"], ["sum"])(plain)["sum"]
    assert (rows(summed), summed.dtype) == ([[1, 2, 3]] * 2, torch.int32)
    nested = TransformedEnv(TwoAgents(ends=(True, False)), RewardSum()).rollout(3, break_when_any_done=False)
    sums = RewardSum([("next", "agent0", "reward")], ["sum"])(nested)["sum"]
    assert torch.equal(sums, nested["next", "agent0", "episode_reward"])
    with pytest.raises(KeyError, match="'reward'"):
        RewardSum()(nested)
    with pytest.raises(ValueError, match="needs a time"):
        RewardSum()(TensorDict({"reward": torch.ones(1)}))


class Group(EnvBase):
    """Two agents in a group of shape (2,), of which only the leaves of the done spec know the size."""

    def __init__(self) -> None:
        super().__init__()
        flags = {("agents", "done"): Categorical(2, shape=(2, 1), dtype=BOOL)}
        self.observation_spec = Composite(agents=Composite(seen=Unbounded((2, 1)), shape=(2,)))
        self.action_spec = Composite(agents=Composite(action=Unbounded((2, 1)), shape=(2,)))
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=(2,)))
        self.done_spec = Composite(flags)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        zeros: TensorDictBase = self.full_observation_spec.zero()
        return zeros

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset().update(self.full_reward_spec.zero())

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize(
    "make",
    [
        RewardSum,
        StepCounter,
        lambda: TargetReturn(1.0),
        lambda: TensorDictPrimer({"agents": Composite(hidden=Unbounded((2, 3)), shape=(2,))}),
        lambda: TensorDictPrimer(Composite({("agents", "hidden"): Unbounded((2, 3))})),
        lambda: TensorDictPrimer({"others": Composite(hidden=Unbounded((2, 3)), shape=(2,))}),
    ],
)
def test_entries_of_a_group_have_its_shape(make: Any) -> None:
    for env, shape in (
        (TransformedEnv(Group(), make()), (2,)),
        (TransformedEnv(SerialEnv(2, Group), make()), (2, 2)),
        (SerialEnv(2, lambda: TransformedEnv(Group(), make())), (2, 2)),
    ):
        (group,) = env.full_state_spec.keys()
        assert env.full_state_spec[group].shape == env.full_observation_spec[group].shape == shape
        fake = env.fake_tensordict()
        assert fake[group].batch_size == fake["next", group].batch_size == shape
        assert env.rollout(2)[group].batch_size == (*env.batch_size, 2, 2)
        env.close()


def test_each_reward_has_a_sum_of_its_own() -> None:
    class Priced(Counter):
        def __init__(self) -> None:
            super().__init__(limit=9)
            self.reward_spec = Composite(speed=Unbounded((1,)), cost=Unbounded((1,)))

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            out = super()._step(tensordict)
            reward = out.pop("reward")
            return out.update({"speed": reward, "cost": 3 * reward})

    env = TransformedEnv(Priced(), RewardSum())
    assert (env.transform.in_keys, env.transform.out_keys) == (["cost", "speed"], ["episode_cost", "episode_speed"])
    following = env.rollout(2)["next"]
    assert ints(following["episode_speed"]) == [1.0, 2.0]
    assert ints(following["episode_cost"]) == [3.0, 6.0]
    assert (RewardSum().in_keys, RewardSum().out_keys) == (["reward"], ["episode_reward"])
    assert RewardSum(in_keys=["gain", ("a", "r")]).out_keys == ["episode_gain", ("a", "episode_r")]


def test_sums_that_are_rewards_go_on() -> None:
    env = TransformedEnv(Counter(limit=2), Compose(RewardSum(reward_spec=True), ConditionalSkip(Every())))
    r = env.rollout(6, break_when_any_done=False)
    assert type(r) is TensorDict
    assert ints(r["next", "episode_reward"]) == [1.0, 1.0, 2.0, 0.0, 1.0, 1.0]
    assert r.get("reward", None) is None
    check_env_specs(TransformedEnv(Counter(limit=2), RewardSum(reward_spec=True)), break_when_any_done="both")


def test_transforms_name_the_keys_that_they_use() -> None:
    env = TransformedEnv(Counter(), Compose(InitTracker(), StepCounter(9), RewardSum()))
    marks, steps, sums = env.transform
    assert (marks.init_keys, marks.reset_keys, sums.reset_keys) == (["is_init"], ["_reset"], ["_reset"])
    assert (steps.step_count_keys, steps.done_keys, steps.truncated_keys) == (["step_count"], ["done"], ["truncated"])
    nested = TransformedEnv(TwoAgents(), InitTracker())
    assert nested.transform.init_keys == [("agent0", "is_init"), ("agent1", "is_init")]
    assert nested.transform.reset_keys == nested.reset_keys
    assert RewardSum(reset_keys=["_reset"]).reset_keys == ["_reset"]
    with pytest.raises(StateError, match="TransformedEnv"):
        StepCounter().done_keys  # noqa: B018


class Every:
    """True at every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, td: TensorDictBase) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


@pytest.mark.parametrize("first", [True, False])
def test_steps_are_skipped(first: bool) -> None:
    links: list[Any] = [ConditionalSkip(Every()), StepCounter()]
    r = TransformedEnv(Counter(limit=99), Compose(*(links if first else links[::-1]))).rollout(6)
    assert ints(r["next", "count"]) == [1, 1, 2, 2, 3, 3]
    assert ints(r["next", "step_count"]) == [1, 1, 2, 2, 3, 3]
    assert ints(r["next", "reward"]) == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert "_step" not in r.keys(True)


def test_transforms_around_see_skipped_steps() -> None:
    inner = TransformedEnv(Counter(limit=99), ConditionalSkip(Every()))
    r = TransformedEnv(inner, StepCounter(), auto_unwrap=False).rollout(4)
    assert ints(r["next", "count"]) == [1, 1, 2, 2]
    assert ints(r["next", "step_count"]) == [1, 2, 3, 4]


def test_some_rows_are_skipped() -> None:
    env = TransformedEnv(
        Counter(limit=99, batch_size=(2,)),
        Compose(StepCounter(), ConditionalSkip(lambda td: td["count"].squeeze(-1) > 1)),
    )
    td = env.reset()
    for _ in range(2):
        td = env.step_mdp(env.rand_step(td))
    td["count"] = torch.tensor([[2], [1]])
    out = env.rand_step(td)
    assert ints(out["next", "reward"]) == [0.0, 1.0]
    assert ints(out["next", "step_count"]) == [2, 3]
    td = env.rand_action(env.step_mdp(out))
    td["count"] = torch.tensor([[0], [0]])
    td["_step"] = torch.tensor([False, True])
    assert ints(env.step(td)["next", "step_count"]) == [2, 4]


@pytest.mark.parametrize("size", [(), (1,), (2,), (2, 3)])
@pytest.mark.parametrize("shape", ["a bool", "one", "one per row", "one per row, with a dim"])
def test_a_condition_may_have_any_shape_that_fits(size: tuple[int, ...], shape: str) -> None:
    shapes = {"one": (1,), "one per row": size, "one per row, with a dim": (*size, 1)}
    skip = True if shape == "a bool" else torch.ones(shapes[shape], dtype=torch.bool)
    env = TransformedEnv(Counter(limit=99, batch_size=size), ConditionalSkip(lambda td: skip))
    assert not env.rand_step(env.reset())["next", "count"].any()


def test_entries_for_the_start_of_an_episode() -> None:
    env = TransformedEnv(Counter(limit=2, batch_size=(2,)), TensorDictPrimer(hidden=Unbounded((3,))))
    assert env.reset()["hidden"].shape == (2, 3)
    assert env.state_keys == ["hidden"]
    check_env_specs(env)
    filled = TransformedEnv(Counter(), TensorDictPrimer({"h": Unbounded((3,))}, default_value={"h": 4.0}))
    assert filled.reset()["h"].tolist() == [4.0, 4.0, 4.0]
    drawn = TransformedEnv(Counter(), TensorDictPrimer(h=Bounded(2, 3, shape=(3,)), random=True))
    assert (drawn.reset()["h"] >= 2).all()
    called = TransformedEnv(Counter(), TensorDictPrimer(h=Unbounded((3,)), default_value=lambda: torch.ones(3)))
    assert called.reset()["h"].tolist() == [1.0, 1.0, 1.0]
    assert TensorDictPrimer(h=Unbounded((3,)))(TensorDict(batch_size=[2]))["h"].shape == (2, 3)
    with pytest.raises(ValueError, match="not both"):
        TensorDictPrimer(h=Unbounded((3,)), random=True, default_value=1.0)
    with pytest.raises(ValueError, match="'q'"):
        TensorDictPrimer({"h": Unbounded((3,))}, default_value={"h": 1.0, "q": 1.0})
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match="not both"):
            TensorDictPrimer({"h": Unbounded((3,))}, g=Unbounded((3,)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ("begin", 0.0)),
        (2.0, ("begin", 2.0)),
        ({"said": lambda: NonTensorData("hello"), "h": 3.0}, ("hello", 3.0)),
        ({"said": "hello"}, ("hello", 0.0)),
    ],
)
def test_objects_for_the_start_of_an_episode(value: Any, expected: tuple[str, float]) -> None:
    specs = {"said": NonTensor((), example_data="begin"), "h": Unbounded((1,))}
    env = TransformedEnv(Counter(), TensorDictPrimer(specs, default_value=value))
    root = env.rollout(2)[1]
    assert (root["said"], root["h"].item()) == expected


def test_the_batch_size_is_added_unless_the_specs_say_that_they_have_it() -> None:
    def shape(*primers: Any, **kwargs: Any) -> list[int]:
        env = TransformedEnv(Counter(batch_size=(2,)), TensorDictPrimer(*primers, **kwargs))
        check_env_specs(env)
        return list(env.reset()["hidden"].shape)

    # A leaf of the same size as the batch may be just that: only its Composite can tell.
    assert shape(hidden=Unbounded((2,))) == [2, 2]
    assert shape(Composite(hidden=Unbounded((2, 3)), shape=(2,))) == [2, 3]
    assert shape(hidden=Unbounded((2, 3)), expand_specs=False) == [2, 3]


class Masked(Counter):
    """Allows one action at a time."""

    def __init__(self) -> None:
        super().__init__(limit=99)
        self.action_spec = Categorical(4)
        self.observation_spec = Composite(
            count=Unbounded((1,), dtype=I64), action_mask=Categorical(2, shape=(4,), dtype=BOOL)
        )

    def _masked(self, td: TensorDictBase) -> TensorDictBase:
        return td.set("action_mask", torch.arange(4) == int(self.count) % 4)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._masked(super()._reset(tensordict))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._masked(super()._step(tensordict))


def test_random_actions_keep_to_the_mask() -> None:
    env = TransformedEnv(Masked(), ActionMask())
    assert ints(env.rollout(6)["action"]) == [0, 1, 2, 3, 0, 1]
    assert env.base_env.action_spec.mask is None
    with pytest.raises(ValueError, match="takes no mask"):
        TransformedEnv(Adder(), ActionMask()).action_spec  # noqa: B018


class Difference(Transform):
    """How much the count has grown since the last look, remembered outside the data."""

    def __init__(self) -> None:
        super().__init__(in_keys=["count"], out_keys=["grown"])
        self.last: Any = None

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        count = next_tensordict["count"]
        next_tensordict["grown"] = count - self.last
        self.last = count
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self.last = tensordict_reset["count"]
        tensordict_reset["grown"] = torch.zeros_like(self.last)
        return tensordict_reset

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["grown"] = observation_spec["count"].clone()
        return observation_spec


def test_transforms_see_the_rows_that_a_partial_reset_leaves_alone_as_they_are() -> None:
    env = TransformedEnv(Counter(limit=99, batch_size=(2,)), Difference())
    td = env.reset()
    for _ in range(3):
        td = env.step_mdp(env.rand_step(td))
    td["_reset"] = torch.tensor([[True], [False]])
    td = env.reset(td)
    assert td["count"].tolist() == [[0], [3]]
    assert env.rand_step(td)["next", "grown"].tolist() == [[1], [1]]
