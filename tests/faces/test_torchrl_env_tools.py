"""What an env can do besides stepping."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl_cases import BOOL, I64, Adder, Counter, TwoAgents, ints

import shoal
from shoal.errors import ArgumentError
from shoal.faces.torchrl import (
    AutoResetEnv,
    Bounded,
    Categorical,
    Composite,
    EnvBase,
    InitTracker,
    NonTensor,
    OneHot,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
    VecGymEnvTransform,
)
from shoal.faces.torchrl.env.seeds import next_seed, seed_chain


def test_seeds_form_a_chain() -> None:
    env = Counter()
    assert env.set_seed(0) == 795726461
    assert env.seed_received == 0
    assert next_seed(1) == 4087425277
    assert next_seed(1234567) == 2712915634
    assert env.set_seed(7, static_seed=True) == 7
    assert env.set_seed(None) is None
    assert seed_chain(0, 3) == ([0, 795726461, 2841183792], 2309840538)
    assert seed_chain(None, 2) == ([None, None], None)


def test_fake_data_looks_like_real_data() -> None:
    for env in (Counter(batch_size=(2,)), Adder(), TwoAgents(root_done=True)):
        fake = env.fake_tensordict()
        real = env.rand_step(env.reset())
        assert set(fake.keys(True)) == set(real.keys(True))
        assert {key: value.shape for key, value in fake.items(True, True)} == {
            key: value.shape for key, value in real.items(True, True)
        }


def test_actions_can_be_listed() -> None:
    env = Counter()
    assert env.cardinality() == 2
    assert env.all_actions()["action"].tolist() == [[0], [1]]


def test_random_actions_go_into_the_data() -> None:
    env = Counter(batch_size=(3,))
    td = env.reset()
    assert env.rand_action(td) is td
    assert td["action"].shape == (3, 1)
    assert Adder().rand_action(TensorDict(batch_size=[4]))["action"].shape == (4, 1)
    nested = TwoAgents().rand_action()
    assert nested["agent1", "action"].shape == (2,)


class Stateful(Adder):
    """Can be put into a state."""

    @property
    def supports_set_state(self) -> bool:
        return True

    def _reset(
        self, tensordict: TensorDictBase | None = None, set_state: bool = False, **kwargs: Any
    ) -> TensorDictBase:
        if set_state and tensordict is not None:
            return tensordict.select("x")
        return super()._reset(tensordict)


def test_a_state_can_be_set_where_the_env_can() -> None:
    given = TensorDict({"x": torch.full((1,), 3.0)}, [])
    with pytest.raises(NotImplementedError, match="set_state"):
        Counter().reset(TensorDict({}, []), set_state=True)
    Counter().reset(set_state=False)
    env = Stateful()
    assert env.reset(given.clone(), set_state=True)["x"].item() == 3.0
    assert env.reset(given.clone(), set_state=False)["x"].item() == 0.0
    with pytest.warns(FutureWarning, match="set_state"):
        assert env.reset(given.clone())["x"].item() == 3.0
    assert env.reset()["x"].item() == 0.0
    wrapped = TransformedEnv(Stateful(), StepCounter())
    assert wrapped.reset(given.clone(), set_state=True)["x"].item() == 3.0
    assert wrapped.rollout(1, actions=[torch.ones(1)], tensordict=given, set_state=True)["next", "x"].item() == 4.0


def test_closing() -> None:
    env = Counter()
    assert not env.is_closed
    env.close()
    env.close()
    assert env.is_closed


def test_only_batched_envs_have_workers_to_configure() -> None:
    with pytest.raises(NotImplementedError, match="in this process"):
        Counter().configure_parallel(num_threads=1)


def test_compiled_and_back() -> None:
    env = Counter(limit=9)
    env.compile(warmup=2, backend="eager")
    td = env.reset()
    for _ in range(2):  # calls that are made as they are
        _, td = env.step_and_maybe_reset(env.rand_action(td))
    assert ints(td["count"]) == [2]
    with pytest.raises(RuntimeError, match="eager"):
        env.compile()
    assert env.eager() is env
    assert "step_and_maybe_reset" not in env.__dict__


class Unspecified(EnvBase):
    """Says nothing about its data."""

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(3), "inner": {"speed": torch.zeros(2)}}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        flag = torch.zeros((), dtype=BOOL)
        out = {
            "observation": torch.ones(3),
            "inner": {"speed": torch.zeros(2)},
            "reward": torch.zeros(()),
            "done": flag,
        }
        return TensorDict(out, [])

    def _set_seed(self, seed: int | None) -> None:
        pass


def test_specs_can_be_found_by_trying() -> None:
    def act(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.zeros(2))

    env = Unspecified()
    with pytest.raises(RuntimeError, match=r"\('inner', 'speed'\)"):
        env.auto_specs_(act)
    assert env.auto_specs_(act, observation_key=["observation", "inner"]) is env
    assert env.observation_keys == ["observation", ("inner", "speed")]
    assert env.action_spec == Unbounded((2,))
    assert env.reward_spec.shape == (1,)
    assert env.done_keys == ["done", "terminated"]
    env.check_env_specs()
    with pytest.raises(RuntimeError, match=r"policy has not written \['action'\].*'act'"):
        Unspecified().auto_specs_(lambda td: td.set("act", torch.zeros(2)), observation_key=["observation", "inner"])


@pytest.mark.parametrize("size", [(), (2,)])
def test_random_actions_are_for_the_batch_of_the_env(size: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match=r"rand_action: expected a TensorDict of batch size"):
        Counter(batch_size=size).rand_action(TensorDict(batch_size=[3]))


@pytest.mark.parametrize("name", ["reward", "done"])
def test_what_does_not_fit_its_spec_is_named(name: str) -> None:
    class Wide(Counter):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set(name, torch.ones(2, dtype=BOOL if name == "done" else None))

    env = Wide()
    with pytest.raises(RuntimeError, match=rf"Wide: '{name}' has shape \(2,\), and its spec has \(1,\)"):
        env.step(env.rand_action(env.reset()))


def test_modules_are_where_torchrl_has_them() -> None:
    import shoal.faces.torchrl as face

    assert face.utils.step_mdp is face.step_mdp
    assert face.model_based.dreamer.DreamerEnv is face.DreamerEnv
    assert face.model_based.dreamer.DreamerDecoder is face.DreamerDecoder
    assert face.transforms.TransformedEnv is face.TransformedEnv


class Walker(Counter):
    """A counter with a continuous action and something to tell."""

    def __init__(self, limit: int = 3, high: float = 1.0) -> None:
        super().__init__(limit=limit)
        self.action_spec = Bounded(-high, high, shape=(2,))
        self.observation_spec = Composite(count=Unbounded((1,), dtype=I64), told=Unbounded((1,), dtype=I64))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        out = super()._reset(tensordict, **kwargs)
        return out.set("told", out["count"] * 10)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = super()._step(tensordict)
        return out.set("told", out["count"] * 10)


def test_an_env_under_a_gymnasium_id() -> None:
    Walker.register_gym("shoal-tests/Walker-v0", info_keys=["told"], high=2.0)
    env = gymnasium.make("shoal-tests/Walker-v0", limit=2)
    assert env.action_space == gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
    obs, info = env.reset(seed=3)
    assert set(obs) == {"count"}
    assert isinstance(obs["count"], torch.Tensor)
    assert int(info["told"]) == 0
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert (int(obs["count"]), reward, terminated, truncated, int(info["told"])) == (1, 1.0, False, False, 10)
    assert env.step(np.zeros(2, np.float32))[2]
    env.close()


@pytest.mark.parametrize(("to_numpy", "kind"), [(False, torch.Tensor), (True, np.ndarray)])
def test_gymnasium_gets_what_the_env_returns(to_numpy: bool, kind: type) -> None:
    name = f"shoal-tests/Giving{kind.__name__}-v0"
    Walker.register_gym(name)
    options: dict[str, Any] = {"to_numpy": to_numpy, "transform": StepCounter(), "info_keys": ["told"], "limit": 1}
    env = gymnasium.make(name, **options)
    assert set(env.reset()[0]) == {"count", "step_count"}
    obs, reward, terminated, truncated, info = env.step(np.zeros(2, np.float32))
    for value in (obs["count"], reward, terminated, truncated, info["told"]):
        assert isinstance(value, kind)
        assert value.shape == (1,)
    assert (reward.item(), terminated.item(), truncated.item()) == (1.0, True, False)
    env.close()


@pytest.mark.parametrize("to_numpy", [False, True])
def test_pools_take_the_numbers_out_of_what_it_returns(to_numpy: bool) -> None:
    name = f"shoal-tests/Pooled{to_numpy}-v0"
    Walker.register_gym(name, to_numpy=to_numpy, limit=2)
    with shoal.make_vec(name, 2, engine="serial") as envs:
        envs.reset(seed=1)
        _, rewards, terminated, _, _ = envs.step(np.zeros((2, 2), np.float32))
        assert (rewards.tolist(), terminated.tolist()) == ([1.0, 1.0], [False, False])
        assert envs.step(np.zeros((2, 2), np.float32))[2].tolist() == [True, True]


def test_a_single_choice_is_an_integer_for_gymnasium() -> None:
    class Single(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_spec = Categorical(3, shape=(1,))

    Single.register_gym("shoal-tests/Single-v0")
    env = gymnasium.make("shoal-tests/Single-v0")
    assert env.action_space == gymnasium.spaces.Discrete(3)
    env.reset()
    assert env.step(2)[0]["count"].tolist() == [1]
    env.close()


def test_a_transformed_env_under_a_gymnasium_id() -> None:
    Walker.register_gym("shoal-tests/Walker-v1", transform=StepCounter(max_steps=2), to_numpy=True, limit=9)
    for _ in range(2):
        env = gymnasium.make("shoal-tests/Walker-v1")
        obs, _ = env.reset()
        assert isinstance(obs["step_count"], np.ndarray)
        env.step(env.action_space.sample())
        assert env.step(env.action_space.sample())[2:4] == (False, True)
        env.close()
    with pytest.raises(ValueError, match="backend"):
        Walker.register_gym("shoal-tests/Walker-v2", backend="gym")


def test_discrete_actions_of_gymnasium_are_encoded() -> None:
    class Chooser(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_spec = OneHot(3)

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            self.chosen = tensordict["action"].long().tolist()
            return super()._step(tensordict)

    Chooser.register_gym("shoal-tests/Chooser-v0")
    env = gymnasium.make("shoal-tests/Chooser-v0")
    env.reset()
    env.step(2)
    assert env.unwrapped.torchrl_env.chosen == [0, 0, 1]  # type: ignore[attr-defined]
    env.close()


def test_texts_are_found_by_trying_too() -> None:
    class Telling(Unspecified):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return super()._reset(tensordict).update({"text": "begin", "inner": {"text": "inside"}})

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).update({"text": "step", "inner": {"text": "inside"}})

    def act(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.zeros(2))

    with pytest.raises(RuntimeError, match="'text'"):
        Telling().auto_specs_(act, observation_key=["observation", "inner"])
    env = Telling().auto_specs_(act, observation_key=["observation", "inner", "text"])
    assert env.full_observation_spec["text"] == NonTensor((), example_data="step")
    assert isinstance(env.full_observation_spec["inner", "text"], NonTensor)
    env.check_env_specs()


class SelfResetting(Counter):
    """Begins the next episode within its step."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = super()._step(tensordict)
        self.count = torch.where(out["done"], torch.zeros_like(self.count), self.count)
        return out.set("count", self.count.clone())


@pytest.mark.parametrize(("replace", "last"), [(True, -1), (False, 0)])
def test_an_env_that_resets_itself(replace: bool, last: int) -> None:
    env = SelfResetting(limit=3, auto_reset=True, auto_reset_replace=replace)
    assert isinstance(env, AutoResetEnv)
    r = env.rollout(7, break_when_any_done=False)
    assert ints(r["count"]) == [0, 1, 2, 0, 1, 2, 0]
    assert ints(r["next", "count"]) == [1, 2, last, 1, 2, last, 1]
    assert ints(r["next", "done"]) == [False, False, True, False, False, True, False]
    assert env.base_env.n_resets == 1
    assert ints(env.reset()["count"]) == [0]
    assert env.base_env.n_resets == 2


def test_a_batch_that_resets_itself_in_parts() -> None:
    class Uneven(SelfResetting):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            super()._reset(tensordict)
            self.count = torch.tensor([[0], [1]])
            return TensorDict({"count": self.count.clone()}, [2])

    r = Uneven(limit=3, batch_size=(2,), auto_reset=True).rollout(5, break_when_any_done=False)
    assert r["count"].squeeze(-1).tolist() == [[0, 1, 2, 0, 1], [1, 2, 0, 1, 2]]
    assert r["next", "count"].squeeze(-1).tolist() == [[1, 2, -1, 1, 2], [2, -1, 1, 2, -1]]


class Staggered(SelfResetting):
    """Two rows that reset themselves after two and three steps; a reset of any of them starts both anew."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(batch_size=(2,), **kwargs)
        self.limit = torch.tensor([[2], [3]])  # type: ignore[assignment]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return super()._reset()


@pytest.mark.parametrize("wrap", [TransformedEnv, AutoResetEnv.append_transform])
def test_transforms_around_an_env_that_resets_itself(wrap: Any) -> None:
    env = wrap(Staggered(auto_reset=True), StepCounter())
    r = env.rollout(6, break_when_any_done=False)
    assert env.n_resets == 1
    assert r["count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert torch.equal(r["step_count"], r["count"])


def test_nothing_comes_before_the_transform_that_sorts() -> None:
    env = SelfResetting(auto_reset=True)
    assert len(env.insert_transform(1, StepCounter()).transform) == 2
    for index in (0, -2):
        with pytest.raises(ArgumentError, match="which comes first"):
            env.insert_transform(index, StepCounter())


@pytest.mark.parametrize(("mark", "last"), [(math.nan, 0), (-7, -7), (torch.tensor(5.0), 5)])
def test_last_observations_that_a_vector_env_does_not_return_are_marked(mark: Any, last: int) -> None:
    env = AutoResetEnv(SelfResetting(limit=2), VecGymEnvTransform(missing_obs_value=mark))
    assert ints(env.rollout(2)["next", "count"]) == [1, last]


class Recurrent(nn.Module):
    """A policy that expects a hidden state."""

    def make_tensordict_primer(self) -> TensorDictPrimer:
        return TensorDictPrimer(hidden=Unbounded((3,)))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["next", "hidden"] = tensordict["hidden"] + 1
        return tensordict.set("action", torch.zeros(1, dtype=I64))


def test_an_env_gets_what_its_policy_needs() -> None:
    policy = Recurrent()
    env = Counter(limit=9, policy=policy)
    assert "hidden" in env.observation_keys
    r = env.rollout(3, policy)
    assert r["hidden"][:, 0].tolist() == [0.0, 1.0, 2.0]
    assert r["next", "hidden"][:, 0].tolist() == [1.0, 2.0, 3.0]
    assert r["is_init"].flatten().tolist() == [True, False, False]
    tracked = TransformedEnv(Counter(limit=9), InitTracker(), policy=policy)
    assert [type(transform) for transform in tracked.transform] == [InitTracker, TensorDictPrimer]
    assert isinstance(Counter(policy=lambda td: td), Counter)
    with pytest.raises(TypeError, match="surprise"):
        Counter(surprise=1)


def test_options_of_every_env_reach_envs_that_do_not_list_them() -> None:
    class Bare(Counter):
        def __init__(self) -> None:
            super().__init__()

    assert Bare().is_spec_locked
    assert not Bare(spec_locked=False).is_spec_locked
