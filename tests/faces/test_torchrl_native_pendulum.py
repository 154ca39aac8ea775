"""PendulumEnv: its dynamics, any batch, states that are set, and its randomness."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from shoal.faces.torchrl import PendulumEnv, SerialEnv, StepCounter, check_env_specs

angles = st.floats(-3.140625, 3.140625, width=32)
speeds = st.floats(-8, 8, width=32)
torques = st.floats(-3, 3, width=32)


def at(th: float, thdot: float, **params: float) -> TensorDict:
    """A pendulum in a state, with other parameters than usual."""
    td = PendulumEnv.gen_params()
    for name, value in params.items():
        td["params", name] = torch.tensor(value)
    return td.update({"th": torch.tensor(th), "thdot": torch.tensor(thdot)})


@given(angles, speeds, torques)
@settings(max_examples=40, deadline=None)
def test_moves_like_gymnasiums(th: float, thdot: float, torque: float) -> None:
    env = PendulumEnv()
    td = env.reset(at(th, thdot), set_state=True)
    following = env.step(td.set("action", torch.tensor([torque])))["next"]
    model = gymnasium.make("Pendulum-v1").unwrapped
    model.reset()
    model.state = np.array([th, thdot], dtype=np.float64)
    _, reward, *_ = model.step(np.array([torque]))
    assert math.cos(following["th"]) == pytest.approx(math.cos(model.state[0]), abs=1e-4)
    assert math.sin(following["th"]) == pytest.approx(math.sin(model.state[0]), abs=1e-4)
    assert following["thdot"].item() == pytest.approx(model.state[1], abs=1e-4)
    assert following["reward"].item() == pytest.approx(reward, abs=1e-3)
    assert -math.pi <= following["th"] <= math.pi + 1e-6


def test_rows_have_their_own_parameters() -> None:
    env = PendulumEnv(seed=0)
    rows = torch.stack([at(1.0, 0.5), at(1.0, 0.5, g=5.0), at(1.0, 0.5, l=2.0, m=3.0, dt=0.1), at(1.0, 7.9)])
    rows = env.reset(rows, set_state=True).set("action", torch.full((4, 1), 5.0))
    together = env.step(rows)["next"]
    for row in range(4):
        alone = env.step(rows.exclude("next")[row].clone())["next"]
        for key in ("th", "thdot", "reward", "done"):
            assert torch.allclose(together[row][key], alone[key])
    assert len(set(together["thdot"].tolist())) == 4
    assert together["thdot"][3] == 8


@pytest.mark.parametrize("size", [(), (3,), (2, 3), (0,)])
def test_keeps_to_its_specs_in_any_batch(size: tuple[int, ...]) -> None:
    env = PendulumEnv(seed=1)
    if 0 not in size:
        check_env_specs(env, tensordict=env.gen_params(batch_size=size))
    data = env.rollout(4, tensordict=env.gen_params(batch_size=size), break_when_any_done=False)
    assert data.batch_size == (*size, 4)
    assert data["next", "reward"].shape == (*size, 4, 1)


def test_parameters_of_the_env_give_it_a_batch() -> None:
    env = PendulumEnv(PendulumEnv.gen_params(g=3.0, batch_size=[5]))
    check_env_specs(env)
    assert env.batch_size == (5,)
    assert (env.reset()["params", "g"] == 3).all()
    with pytest.raises(RuntimeError, match="batch size"):
        env.reset(PendulumEnv.gen_params(batch_size=[4]))


def test_resets_without_parameters_take_the_envs_own() -> None:
    env = PendulumEnv()
    first = env.reset(TensorDict(batch_size=[3]))
    assert first["params", "g"].tolist() == [10.0] * 3
    other = env.reset(TensorDict({"params": {"g": torch.tensor(7.0)}}))
    assert other["params", "g"] == 7
    assert other["params", "dt"] == pytest.approx(0.05)


def test_a_seed_makes_the_first_states() -> None:
    def first(env: PendulumEnv) -> torch.Tensor:
        td = env.reset(env.gen_params(batch_size=[8]))
        return torch.stack([td["th"], td["thdot"]])

    assert torch.equal(first(PendulumEnv(seed=3)), first(PendulumEnv(seed=3)))
    assert not torch.equal(first(PendulumEnv(seed=3)), first(PendulumEnv(seed=4)))
    assert not torch.equal(first(PendulumEnv()), first(PendulumEnv()))
    env = PendulumEnv()
    env.set_seed(3)
    assert torch.equal(first(env), first(PendulumEnv(seed=3)))
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert torch.equal(first(twin), first(copy.deepcopy(env)))


def test_first_states_cover_their_range() -> None:
    td = PendulumEnv(seed=0).reset(PendulumEnv.gen_params(batch_size=[4000]))
    assert td["th"].abs().max() <= math.pi
    assert td["th"].std().item() == pytest.approx(math.pi / math.sqrt(3), rel=0.05)
    assert td["thdot"].abs().max() <= 1


def test_states_are_set_when_asked_for() -> None:
    env = PendulumEnv(seed=0)
    assert env.reset(at(1.0, 0.5), set_state=True)["th"] == 1
    assert env.reset(at(1.0, 0.5), set_state=False)["th"] != 1
    with pytest.warns(FutureWarning, match="set_state"):
        assert env.reset(at(1.0, 0.5))["th"] == 1
    with pytest.raises(RuntimeError, match="thdot"):
        env.reset(at(1.0, 0.5).exclude("thdot"), set_state=True)


def test_ended_episodes_begin_somewhere_else() -> None:
    def make() -> object:
        return PendulumEnv(seed=0).append_transform(StepCounter(max_steps=3))

    for env in (make(), SerialEnv(1, make)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            data = env.rollout(7, break_when_any_done=False).reshape(7)
        jumps = data["th"][1:] != data["next", "th"][:-1]
        assert jumps.tolist() == [False, False, True, False, False, True], type(env)


def test_rows_that_are_not_stepped_stay() -> None:
    env = PendulumEnv(seed=0)
    td = env.rand_action(env.reset(env.gen_params(batch_size=[3])))
    td["_step"] = torch.tensor([True, False, True])
    following = env.step(td)["next"]
    assert (following["th"] == td["th"]).tolist() == [False, True, False]
    assert following["params", "g"].tolist() == [10.0] * 3


def test_gradients_flow_through_steps() -> None:
    env = PendulumEnv(seed=0)
    torque = torch.tensor([0.5], requires_grad=True)
    data = env.rollout(5, lambda td: td.set("action", torque), trust_policy=True)
    data["next", "reward"].sum().backward()
    assert torque.grad is not None
    assert torque.grad.abs().item() > 0


def test_the_next_step_shares_no_parameters() -> None:
    env = PendulumEnv()
    td = env.rand_step(env.reset())
    root = env.step_mdp(td)
    root["params", "g"] = torch.tensor(1.0)
    assert td["params", "g"] == td["next", "params", "g"] == 10
