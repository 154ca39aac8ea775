"""dm_env environments in TorchRL's dialect."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import dm_env
import numpy as np
import pytest
import torch
from dm_env import specs

from shoal.errors import ArgumentError, BackendUnavailable
from shoal.faces.torchrl import (
    Bounded,
    Categorical,
    DMControlEnv,
    DMControlWrapper,
    OneHot,
    Unbounded,
    check_env_specs,
)

has_dm_control = find_spec("dm_control") is not None


class Walk(dm_env.Environment):
    """A random walk that says everything that a dm_env spec can."""

    def __init__(self, length: int = 3, last_discount: float = 0.0) -> None:
        self.length = length
        self.last_discount = last_discount
        self.generator = np.random.RandomState(0)
        self.place = np.zeros(2)
        self.actions: list[Any] = []

    def seed(self, seed: int) -> None:
        self.generator = np.random.RandomState(seed)

    def reset(self) -> dm_env.TimeStep:
        self.steps = 0
        self.place[:] = self.generator.randn(2)
        return dm_env.restart(self._observed())

    def step(self, action: Any) -> dm_env.TimeStep:
        self.steps += 1
        self.actions.append(action)
        self.place += 1
        if self.steps >= self.length:
            return dm_env.TimeStep(dm_env.StepType.LAST, 0.5, self.last_discount, self._observed())
        return dm_env.transition(1.0, self._observed())

    def _observed(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "speed": np.float32(0.5),
            "near": np.array(True),
            "level": np.array([self.steps], np.int32),
            "turn": np.array(self.steps % 4),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "place": specs.Array((2,), np.float64),
            "speed": specs.BoundedArray((), np.float32, 0, 1),
            "near": specs.Array((), np.bool_),
            "level": specs.BoundedArray((1,), np.int32, 0, 5),
            "turn": specs.DiscreteArray(4),
        }

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float64, -1, 1)


class Turns(Walk):
    def action_spec(self) -> Any:
        return specs.DiscreteArray(3)


def test_specs_and_data() -> None:
    env = DMControlWrapper(Walk())
    kinds = {key: (type(leaf), tuple(leaf.shape), leaf.dtype) for key, leaf in env.observation_spec.items()}
    assert isinstance(env.observation_spec["place"], Unbounded)
    assert kinds["place"][1:] == ((2,), torch.float64)
    assert isinstance(env.observation_spec["speed"], Bounded)
    assert kinds["speed"][1:] == ((1,), torch.float32)
    assert kinds["near"][1:] == ((1,), torch.bool)
    assert kinds["level"][1:] == ((1,), torch.int32)
    assert isinstance(env.observation_spec["turn"], OneHot)
    assert isinstance(env.action_spec, Bounded)
    assert env.action_spec.dtype is torch.float64
    assert env.reward_spec.dtype is torch.float64
    check_env_specs(env)
    td = env.rollout(10)
    assert td.shape == (3,)
    assert td["next", "reward"].flatten().tolist() == [1, 1, 0.5]
    assert td["next", "turn"].argmax(-1).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("discount", "flag"), [(0.0, "terminated"), (1.0, "truncated"), (0.5, "truncated")])
def test_the_discount_tells_a_termination_from_a_truncation(discount: float, flag: str) -> None:
    td = DMControlWrapper(Walk(last_discount=discount)).rollout(10)
    assert td["next", "done"].flatten().tolist() == [False, False, True]
    other = {"terminated": "truncated", "truncated": "terminated"}[flag]
    assert td["next", flag][-1].item()
    assert not td["next", other].any()


def test_data_is_that_of_a_plain_loop() -> None:
    env, plain = DMControlWrapper(Walk()), Walk()
    env.set_seed(4)
    plain.seed(4)
    plain.reset()
    step = plain.reset()
    td = env.reset()
    for _ in range(10):
        np.testing.assert_array_equal(td["place"], step.observation["place"])
        step = plain.step(np.zeros(2))
        full, td = env.step_and_maybe_reset(td.set("action", torch.zeros(2, dtype=torch.float64)))
        np.testing.assert_array_equal(full["next", "place"], step.observation["place"])
        if step.last():
            step = plain.reset()


def test_results_are_private_and_actions_fit_their_spec() -> None:
    env = DMControlWrapper(Walk())
    first = env.reset()
    kept = first["place"].clone()
    env.rand_step(first)
    assert (first["place"] == kept).all()
    inner = Turns()
    turning = DMControlWrapper(inner, categorical_action_encoding=True)
    assert isinstance(turning.action_spec, Categorical)
    turning.rollout(2)
    one_hot = Turns()
    DMControlWrapper(one_hot).rollout(2)
    for action in (*inner.actions, *one_hot.actions):
        Turns().action_spec().validate(action)


def test_frames_are_skipped() -> None:
    td = DMControlWrapper(Walk(length=5), frame_skip=2).rollout(10)
    assert td["next", "reward"].flatten().tolist() == [2, 2, 0.5]


def test_seeds_that_reach_nobody_are_told_of() -> None:
    class Deaf(Walk):
        seed = None  # type: ignore[assignment]

    with pytest.warns(UserWarning, match="takes no seed"):
        DMControlWrapper(Deaf()).set_seed(1)


def test_what_it_refuses() -> None:
    with pytest.raises(TypeError, match=r"dm_env\.Environment"):
        DMControlWrapper(3)
    with pytest.raises(ArgumentError, match="physics"):
        DMControlWrapper(Walk(), from_pixels=True)


@pytest.mark.skipif(has_dm_control, reason="dm_control is installed")
def test_without_dm_control_the_error_names_it() -> None:
    with pytest.raises(BackendUnavailable, match=r"pip install .shoal.dm-control"):
        DMControlEnv("cheetah", "run")


@pytest.mark.skipif(not has_dm_control, reason="dm_control is not installed")
def test_the_suite() -> None:
    from dm_control import suite

    env = DMControlEnv("acrobot", "swingup")
    check_env_specs(env)
    env.set_seed(0)
    plain = suite.load("acrobot", "swingup", task_kwargs={"random": 0})
    plain.reset()
    np.testing.assert_array_equal(env.reset()["orientations"], plain.reset().observation["orientations"])
    with pytest.raises(ArgumentError, match="not in the suite"):
        DMControlEnv("acrobot", "run")
    assert ("acrobot", ["swingup", "swingup_sparse"]) in DMControlEnv.available_envs
