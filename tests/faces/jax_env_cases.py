"""Envs written in JAX: their data, batches, partial steps, and that nothing is copied on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from shoal.faces.torchrl import Categorical, SerialEnv, StepCounter, Unbounded, check_env_specs  # noqa: E402
from shoal.faces.torchrl.jax_envs.base import JaxEnv, Moment  # noqa: E402
from shoal.faces.torchrl.jax_envs.tree import Tree, array_of, tensor_of, unbounded  # noqa: E402

if TYPE_CHECKING:
    from shoal.faces.torchrl.specs import TensorSpec


class Place(NamedTuple):
    x: Any
    key: Any


class Walk(JaxEnv):
    """A walk with some noise, which ends five steps away from where it began and is cut off at ten."""

    def begin(self, key: Any) -> Moment:
        state = {"place": Place(jnp.zeros(()), key), "steps": jnp.zeros((), jnp.int32)}
        return self._moment(state)

    def move(self, state: Any, action: Any) -> Moment:
        key, own = jax.random.split(state["place"].key)
        x = state["place"].x + action * 2 - 1 + 0.01 * jax.random.normal(own)
        return self._moment({"place": Place(x, key), "steps": state["steps"] + 1})

    def _moment(self, state: Any) -> Moment:
        x = state["place"].x
        ended = jnp.abs(x) > 4.5
        return Moment(state, jnp.stack([x, x**2]), -jnp.abs(x), ended, ~ended & (state["steps"] >= 10))

    def action_space(self) -> TensorSpec:
        return Categorical(2, shape=())

    def observation_leaf(self, path: Any, leaf: Any) -> TensorSpec:
        return unbounded(path, leaf)


def right(td: Any) -> Any:
    return td.set("action", torch.ones(td.batch_size, dtype=torch.int64))


def test_arrays_and_tensors_are_the_same_memory() -> None:
    for dtype in ("float32", "int32", "uint8", "bool", "uint32"):
        array = jnp.ones((2, 3), dtype)
        tensor = tensor_of(array)
        assert tensor.data_ptr() == array.unsafe_buffer_pointer(), dtype
        back = array_of(tensor, array.dtype)
        assert back.dtype == array.dtype
        assert (back == array).all()
    large = jnp.full((2,), 2**32 - 1, "uint32")
    assert (array_of(tensor_of(large), large.dtype) == large).all()


def test_nested_data_comes_back_as_it_was() -> None:
    data = {"a": Place(jnp.arange(6.0).reshape(2, 3), jnp.zeros((2, 2), "uint32")), "b": [jnp.ones(2, bool)]}
    tree = Tree(jax.tree.map(lambda leaf: leaf[0], data), "alone")
    assert tree.paths == [("a", "x"), ("a", "key"), ("b", "0")]
    tensors = dict(tree.tensors(data, torch.Size([2]), None))
    back = tree.data(tensors.__getitem__)
    assert jax.tree.structure(back) == jax.tree.structure(data)
    assert jax.tree.all(jax.tree.map(lambda one, other: (one == other).all(), back, data))
    assert Tree(jnp.zeros(3), "alone").paths == [("alone",)]


@pytest.mark.parametrize("size", [(), (3,), (2, 2)])
def test_keeps_to_its_specs_in_any_batch(size: tuple[int, ...]) -> None:
    check_env_specs(Walk(seed=0), tensordict=TensorDict(batch_size=size), break_when_any_done="both")
    env = Walk(batch_size=size, seed=0)
    check_env_specs(env)
    assert env.reset()["state", "place", "key"].shape == (*size, 2)


def test_a_batch_is_as_many_single_envs() -> None:
    env = Walk(seed=0)
    td = env.rand_action(env.reset(TensorDict(batch_size=[4])))
    together = env.step(td.clone())["next"]
    for row in range(4):
        alone = env.step(td[row].clone())["next"]
        for key in alone.keys(True, True):
            assert torch.allclose(together[row][key], alone[key]), key
    assert together["observation"][:, 0].unique().numel() == 4


def test_ends_are_told_apart() -> None:
    data = Walk(seed=0).rollout(30, right, trust_policy=True)
    assert len(data) == 5
    assert data["next", "terminated"][-1].item()
    assert not data["next", "truncated"].any()
    back_and_forth = [torch.tensor(step % 2) for step in range(20)]
    data = Walk(seed=0).rollout(20, actions=back_and_forth)
    assert len(data) == 10
    assert data["next", "truncated"][-1].item()
    assert not data["next", "terminated"].any()
    assert torch.allclose(data["next", "reward"].squeeze(-1), -data["next", "observation"][:, 0].abs())


def test_partial_steps_and_resets() -> None:
    env = Walk(seed=0)
    td = right(env.reset(TensorDict(batch_size=[3])))
    td["_step"] = torch.tensor([True, False, True])
    td = env.step_mdp(env.step(td))
    assert td["state", "steps"].tolist() == [1, 0, 1]
    assert (td["observation"][:, 0] > 0.5).tolist() == [True, False, True]
    td["_reset"] = torch.tensor([[True], [True], [False]])
    td = env.reset(td)
    assert td["state", "steps"].tolist() == [0, 0, 1]
    data = env.rollout(12, right, trust_policy=True, tensordict=TensorDict(batch_size=[2]), break_when_any_done=False)
    assert data["state", "steps"][0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_a_seed_makes_everything() -> None:
    def data(env: Walk) -> torch.Tensor:
        return env.rollout(4, right, trust_policy=True)["next", "observation"]

    env = Walk(seed=3)
    first = data(env)
    assert not torch.equal(data(env), first)
    env.set_seed(4)
    assert not torch.equal(data(env), first)
    env.set_seed(3)
    assert torch.equal(data(env), first)
    assert torch.equal(data(Walk(seed=3)), first)
    env.set_seed(None)
    assert not torch.equal(data(env), data(Walk()))


def test_among_other_envs() -> None:
    env = SerialEnv(2, lambda: Walk(seed=0).append_transform(StepCounter(max_steps=3)))
    data = env.rollout(5, break_when_any_done=False)
    assert data["step_count"].squeeze(-1).tolist() == [[0, 1, 2, 0, 1]] * 2
    env.close()


# -- the libraries ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_gymnax(name: str) -> None:
    gymnax = pytest.importorskip("gymnax")
    from shoal.faces.torchrl import GymnaxEnv

    env = GymnaxEnv(name, seed=0)
    check_env_specs(env)
    td = env.rand_action(env.reset(TensorDict(batch_size=[2])))
    following = env.step(td.clone())["next"]
    model, params = gymnax.make(name)
    state = env._state.data(lambda path: td["state", *path])
    action = td["action"].int().argmax(-1) if name == "CartPole-v1" else td["action"]
    for row in range(2):
        key = jax.random.split(state["key"][row])[1]
        one = jax.tree.map(lambda leaf, row=row: leaf[row], state["env"])
        observation, _, reward, *_ = model.step_env(key, one, jnp.asarray(action[row].numpy()), params)
        assert following["observation"][row].tolist() == pytest.approx(observation.tolist(), abs=1e-5)
        assert following["reward"][row].item() == pytest.approx(float(jnp.squeeze(reward)), abs=1e-4)
    assert name in GymnaxEnv.available_envs
    nearly_over = td.exclude("next").clone()
    nearly_over["state", "env", "time"] = torch.full((2,), params.max_steps_in_episode - 1, dtype=torch.int32)
    assert env.step(nearly_over)["next", "truncated"].all()
    assert GymnaxEnv("CartPole-v1", categorical_action_encoding=True).action_spec == Categorical(2, shape=())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that Brax imports
def test_brax() -> None:
    pytest.importorskip("brax")
    from shoal.faces.torchrl import BraxEnv

    env = BraxEnv("fast", batch_size=[3], seed=0)
    check_env_specs(env)
    assert env.action_spec.low.min() == -1
    data = env.rollout(5, break_when_any_done=False)
    assert data["next", "observation"].shape == (3, 5, 2)
    assert data["state", "pipeline_state", "q"].shape == (3, 5, 1)
    assert "ant" in BraxEnv.available_envs


@pytest.mark.slow
def test_jumanji() -> None:
    pytest.importorskip("jumanji")
    from shoal.faces.torchrl import JumanjiEnv

    env = JumanjiEnv("Snake-v1", batch_size=[3], seed=0)
    check_env_specs(env)
    assert env.action_spec.n == 4
    data = env.rollout(30, break_when_any_done=False)
    assert data["grid"].shape == (3, 30, 12, 12, 5)
    assert data["next", "terminated"].any()
    ended = data["next", "done"].squeeze(-1)[:, :-1]
    assert (data["step_count"][:, 1:][ended] == 0).all()
    one_hot = JumanjiEnv("Snake-v1", categorical_action_encoding=False)
    assert one_hot.action_spec.shape == (4,)
    assert "Snake-v1" in JumanjiEnv.available_envs


def test_specs_of_unsigned_leaves_are_those_of_the_tensors() -> None:
    spec = unbounded((), jax.ShapeDtypeStruct((2,), jnp.uint32))
    assert spec == Unbounded((2,), dtype=torch.int32)
