"""The specs of an env: defaults, setters, locks, keys."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl_cases import BOOL, I64, Adder, Counter, Flags, TwoAgents

from shoal.errors import TensorEnvError
from shoal.faces.torchrl import Bounded, Categorical, Composite, EnvBase, OneHot, Unbounded


def test_what_an_env_leaves_out_has_a_default() -> None:
    env = Counter(batch_size=(3,))
    assert env.reward_keys == ["reward"]
    assert env.reward_spec.shape == (3, 1)
    assert env.done_keys == ["done", "terminated"]
    assert env.done_spec["done"].shape == (3, 1)
    assert env.state_spec.is_empty()
    assert env.reset_keys == ["_reset"]
    assert env.done_keys_groups == [["done", "terminated"]]


def test_groups_of_specs() -> None:
    env = Counter()
    assert set(env.input_spec.keys()) == {"full_action_spec", "full_state_spec"}
    assert set(env.output_spec.keys()) == {"full_observation_spec", "full_reward_spec", "full_done_spec"}
    assert set(env.specs.keys()) == {"input_spec", "output_spec"}
    assert env.specs["output_spec", "full_observation_spec", "count"] == env.observation_spec["count"]


def test_a_lone_leaf_stands_for_its_composite() -> None:
    env = Counter()
    assert isinstance(env.action_spec, Categorical)
    assert isinstance(env.full_action_spec, Composite)
    env.action_spec = Composite(move=Categorical(3))
    assert isinstance(env.action_spec, Composite)
    assert env.action_key == "move"
    env.observation_spec = Unbounded((2,))
    assert env.observation_keys == ["observation"]
    env.done_spec = Categorical(2, shape=(1,), dtype=BOOL)
    assert env.done_keys == ["done", "terminated"]


def test_nested_keys_come_after_flat_ones() -> None:
    env = TwoAgents(root_done=True)
    assert env.action_keys == [("agent0", "action"), ("agent1", "action")]
    assert env.reset_keys == ["_reset", ("agent0", "_reset"), ("agent1", "_reset")]
    assert env.done_keys[:2] == ["done", "terminated"]
    assert env.done_keys_groups[1] == [("agent0", "done"), ("agent0", "terminated")]
    assert TwoAgents().reset_keys == [("agent0", "_reset"), ("agent1", "_reset")]
    with pytest.raises(KeyError, match="2 action keys"):
        env.action_key  # noqa: B018


@pytest.mark.parametrize(
    ("declared", "completed"),
    [
        (["done"], ["done", "terminated"]),
        (["terminated"], ["done", "terminated"]),
        (["truncated"], ["truncated"]),
        (["done", "truncated"], ["done", "terminated", "truncated"]),
        ([], ["done", "terminated"]),
    ],
)
def test_done_flags_come_in_pairs(declared: list[str], completed: list[str]) -> None:
    assert Flags(declared, {}).done_keys == completed


def test_flags_of_one_level_share_a_shape() -> None:
    with pytest.raises(RuntimeError, match="different shapes"):
        Counter().done_spec = Composite(
            done=Categorical(2, shape=(1,), dtype=BOOL), truncated=Categorical(2, shape=(2,), dtype=BOOL)
        )


def test_setters_refuse_what_does_not_fit() -> None:
    env = Counter(batch_size=(3,))
    with pytest.raises(ValueError, match="action_spec_unbatched"):
        env.action_spec = Categorical(2, shape=(2,))
    with pytest.raises(RuntimeError, match="no dim"):
        Counter().reward_spec = Unbounded(())
    with pytest.raises(TypeError, match="Composite"):
        env.state_spec = Unbounded((3, 1))
    for name in ("input_spec", "output_spec"):
        with pytest.raises(RuntimeError, match="protected"):
            setattr(env, name, Composite())
    with pytest.raises(RuntimeError, match="read-only"):
        env.batch_locked = False
    with pytest.raises(RuntimeError, match="read-only"):
        Adder().batch_locked = True
    with pytest.raises(AttributeError, match="action_spec instead"):
        env._action_spec = Categorical(2)


def test_unbatched_specs() -> None:
    env = Counter(batch_size=(3, 2))
    assert env.action_spec_unbatched.shape == (1,)
    assert env.observation_spec_unbatched["count"].shape == (1,)
    assert env.full_done_spec_unbatched["done"].shape == (1,)
    env.action_spec_unbatched = Bounded(-1, 1, shape=(4,))
    assert env.action_spec.shape == (3, 2, 4)
    env.observation_spec_unbatched = Composite(seen=Unbounded((5,)))
    assert env.observation_spec["seen"].shape == (3, 2, 5)
    assert env.rand_action()["action"].shape == (3, 2, 4)


def test_locked_specs_change_through_setters_only() -> None:
    env = Counter()
    with pytest.raises(RuntimeError):
        env.observation_spec["more"] = Unbounded((1,))
    env.observation_spec = Composite(count=Unbounded((1,), dtype=I64), more=Unbounded((2,)))
    assert env.is_spec_locked
    assert env.observation_spec.is_locked
    assert env.observation_keys == ["count", "more"]


def test_unlocked_specs_are_read_anew() -> None:
    env = Counter(spec_locked=False)
    assert not env.is_spec_locked
    env.observation_spec["more"] = Unbounded((1,))
    assert env.observation_keys == ["count", "more"]
    assert env.set_spec_lock_() is env
    assert env.observation_spec.is_locked
    assert env.set_spec_lock_(False) is env
    env.full_done_spec["truncated"] = Categorical(2, shape=(1,), dtype=BOOL)
    assert "truncated" in env.rand_step(env.reset())["next"].keys(True)


def test_one_composite_can_serve_twice() -> None:
    class Stateless(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.state_spec = self.observation_spec

    env = Stateless()
    assert env.state_keys == env.observation_keys == ["count"]
    env.observation_spec = env.state_spec
    assert env.observation_spec is not env.state_spec


def test_a_key_belongs_to_one_spec() -> None:
    class Collides(Counter):
        def __init__(self, **specs: Any) -> None:
            super().__init__()
            for name, spec in specs.items():
                setattr(self, name, spec)

    with pytest.raises(TensorEnvError, match="'reward' is in both"):
        Collides(observation_spec=Composite(reward=Unbounded((1,))))
    with pytest.raises(TensorEnvError, match="'action' is in both"):
        Collides(state_spec=Composite(action=Unbounded((1,))))
    Collides(state_spec=Composite(count=Unbounded((1,), dtype=I64)))


def test_specs_follow_the_device() -> None:
    env = Counter(device="cpu")
    assert env.device == torch.device("cpu")
    assert env.reset().device == torch.device("cpu")
    with pytest.raises(RuntimeError, match="move the env"):
        env.device = "cpu"
    other = Counter()
    other.reset()
    assert other.to("meta") is other
    assert other.action_spec.device == torch.device("meta")
    assert other.is_spec_locked
    assert other.action_spec_unbatched.device == torch.device("meta")


def test_a_device_can_be_given_once() -> None:
    env = Counter()
    env.device = None
    assert env.device is None
    env.device = "cpu"
    assert env.reset().device == env.observation_spec.device == torch.device("cpu")
    assert env.rollout(2).device == torch.device("cpu")
    assert env.is_spec_locked
    with pytest.raises(RuntimeError, match="move the env"):
        env.device = "meta"


def test_the_batch_as_numbers() -> None:
    env = Counter(batch_size=(3, 2))
    assert env.shape == (3, 2)
    assert (env.ndim, env.batch_dims, env.ndimension(), env.numel()) == (2, 2, 2, 6)
    assert env.batch_locked
    assert not Adder().batch_locked


def test_masks_of_the_action_spec_are_live() -> None:
    env = Counter()
    env.action_spec = OneHot(3)
    env.action_spec.update_mask(torch.tensor([False, False, True]))
    assert env.rand_action()["action"].tolist() == [False, False, True]
    env.action_spec.update_mask(None)
    assert env.all_actions()["action"].long().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    env.action_spec = Categorical(3, mask=torch.tensor([True, False, True]))
    assert env.all_actions()["action"].tolist() == [0, 2]
    assert env.cardinality() == 3


def test_envs_are_modules_and_can_be_copied() -> None:
    class Learning(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("mean", torch.zeros(2))

    env = Learning()
    env.rand_step(env.reset())
    twin = copy.deepcopy(env)
    assert list(twin.state_dict()) == ["weight", "mean"]
    twin.step(twin.rand_action(twin.reset()))
    twin.rand_step(twin.reset())
    assert env.n_steps == 1
    assert twin._plan() is not env._plan()
    env.weight = torch.nn.Parameter(torch.zeros(2))
    env.load_state_dict(twin.state_dict())
    assert env.weight.tolist() == [1.0, 1.0]
    env.count = torch.nn.Parameter(torch.ones(1))
    assert "count" in dict(env.named_parameters())


def test_calling_an_env_says_what_to_do() -> None:
    with pytest.raises(NotImplementedError, match="a function that builds one"):
        Counter()(None)


class Seedless(EnvBase):
    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        return TensorDict()

    def _step(self, tensordict: Any) -> TensorDict:
        return TensorDict()


@pytest.mark.parametrize("kind", [EnvBase, Seedless])
def test_a_class_that_lacks_what_an_env_needs_has_no_instances(kind: type[EnvBase]) -> None:
    with pytest.raises(TypeError, match="_set_seed"):
        kind()


@pytest.mark.parametrize("name", ["_input_spec", "_output_spec", "_action_spec"])
def test_specs_are_not_set_behind_the_checks(name: str) -> None:
    with pytest.raises(AttributeError, match=f"set {name[1:]} instead"):
        setattr(Counter(), name, Composite())


def test_a_spec_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Counter\.action_spec: expected a spec, got 3"):
        Counter().action_spec = 3  # type: ignore[assignment]


def test_only_the_state_may_be_nothing() -> None:
    env = Counter()
    env.state_spec = None
    assert env.state_spec.is_empty()
    for name in ("action_spec", "observation_spec", "reward_spec", "done_spec"):
        with pytest.raises(ValueError, match=f"{name}: expected a spec, got None"):
            setattr(env, name, None)


def test_flags_of_one_level_have_one_shape() -> None:
    env = Counter()
    flags = {name: Categorical(2, shape=(width,), dtype=BOOL) for name, width in (("done", 1), ("terminated", 2))}
    for kind in (ValueError, TensorEnvError):
        with pytest.raises(kind, match="different shapes"):
            env.done_spec = Composite(flags)
