"""Frames: what Gymnasium draws of an env in the same state."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.adapters.kernel_env import PlainKernelEnv
from shoal.envs import TASKS
from shoal.errors import ArgumentError

pytest.importorskip("pygame")

ACTIONS: dict[str, list[Any]] = {
    "CartPole-v1": [1, 1, 0, 1],
    "Pendulum-v1": [[1.5], [-0.5], [2.0]],
    "MountainCar-v0": [2, 2, 0],
    "MountainCarContinuous-v0": [[1.0], [-1.0]],
    "Acrobot-v1": [0, 2, 2],
    "FrozenLake-v1": [2, 1, 2],
    "Taxi-v4": [0, 2, 4, 1, 3],
    "CliffWalking-v1": [0, 1, 1],
    "Blackjack-v1": [1, 1],
}


# A picture is drawn from a record, whoever has moved it: one compiled env shows that.
@pytest.mark.parametrize(("task", "engine"), [*((task, "serial") for task in ACTIONS), ("CartPole-v1", "kernel")])
def test_frames_are_gymnasiums(task: str, engine: str) -> None:
    known = TASKS[task]
    kwargs = {**known.kwargs, "render_mode": "rgb_array"}
    twin = gym.make(task, render_mode="rgb_array", disable_env_checker=True)
    with shoal.make_vec(known.load(), 1, engine=engine, env_kwargs=kwargs) as envs:
        envs.reset(seed=4)
        twin.reset(seed=4)
        assert_same_frame(envs.render()[0], twin.render())
        for action in ACTIONS[task]:
            dtype = envs.single_action_space.dtype
            over = envs.step(np.array([action], dtype))[2][0]
            twin.step(np.array(action, dtype) if np.ndim(action) else action)
            assert_same_frame(envs.render()[0], twin.render())
            if over:
                break
    twin.close()


@pytest.mark.parametrize("options", [{"map_name": "8x8"}, {"desc": ["SFH", "FFG"]}], ids=str)
def test_a_lake_is_drawn_with_its_own_map(options: dict[str, Any]) -> None:
    kind: Any = TASKS["FrozenLake-v1"].load()(**options)
    drawing: Any = gym.make(kind.gymnasium_id, render_mode="rgb_array", **kind.twin_kwargs()).unwrapped
    twin = gym.make(kind.gymnasium_id, render_mode="rgb_array", **options)
    env = PlainKernelEnv(kind)
    for each in (env, drawing, twin):
        each.reset(seed=9)
    for action in (2, 1):
        env.step(action)
        twin.step(action)
        kind.pose(env.record, drawing)
        assert_same_frame(drawing.render(), twin.render())
    twin.close()
    drawing.close()


@pytest.mark.parametrize("task", ["Catch-v0", "NChain-v0"])
def test_some_envs_have_no_picture(task: str) -> None:
    env = PlainKernelEnv(TASKS[task].load()(render_mode="rgb_array"))
    env.reset(seed=0)
    with pytest.raises(ArgumentError, match="no renderer"):
        env.render()


def assert_same_frame(own: Any, twin: Any) -> None:
    assert own.shape == twin.shape
    assert np.array_equal(own, twin)
