"""Gymnasium's Box2D envs under EnvPool's ids: the same rows, in each of the dialects."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("Box2D")
from rows import pool_rows, single_rows

import shoal
from shoal.envs.box2d import OLD_IDS
from shoal.errors import BackendUnavailable

TASKS = (*OLD_IDS, *OLD_IDS.values(), "BipedalWalker-v3", "BipedalWalkerHardcore-v3")
# EnvPool's: shape of the observation, shape of the action, time limit, threshold
FORMS: dict[str, tuple[Any, ...]] = {
    "LunarLander": ((8,), (), 1000, 200.0),
    "LunarLanderContinuous": ((8,), (2,), 1000, 200.0),
    "BipedalWalker": ((24,), (4,), 1600, 300.0),
    "BipedalWalkerHardcore": ((24,), (4,), 2000, 300.0),
    "CarRacing": ((96, 96, 3), (3,), 1000, 900.0),
}


def play(task_id: str, engine: str, autoreset: str, steps: int, limit: int) -> None:
    envs = shoal.make_gymnasium(
        task_id, num_envs=2, seed=3, engine=engine, autoreset=autoreset, max_episode_steps=limit
    )
    space = envs.single_action_space
    space.seed(1)
    actions = np.array([[space.sample() for _ in range(2)] for _ in range(steps)])
    current = OLD_IDS.get(task_id, task_id)
    twins = single_rows(lambda: gym.make(current, max_episode_steps=limit), 2, 3, actions, autoreset)
    ends = 0
    for rows, others in zip(pool_rows(envs, actions), twins, strict=True):
        for row, twin in zip(rows, others, strict=True):
            np.testing.assert_array_equal(row.pop("obs"), twin.pop("obs"))
            assert row == twin
            ends += bool(row["terminated"] or row["truncated"])
    assert ends >= 2


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("task_id", ["LunarLander-v2", "LunarLanderContinuous-v3", "BipedalWalker-v3"])
def test_rows_are_gymnasiums(task_id: str, autoreset: str) -> None:
    play(task_id, "serial", autoreset, steps=90, limit=80)


@pytest.mark.slow
@pytest.mark.parametrize("task_id", TASKS)
def test_rows_of_processes(task_id: str) -> None:
    play(task_id, "process", "next_step", steps=30, limit=20)


def test_every_id_is_listed() -> None:
    assert len(TASKS) == 8
    assert set(TASKS) <= set(shoal.list_all_envs())


@pytest.mark.parametrize("task_id", TASKS)
def test_specs_are_envpools(task_id: str) -> None:
    spec = shoal.make_spec(task_id)
    obs_shape, action_shape, limit, threshold = FORMS[task_id.partition("-")[0]]
    assert (spec.observation_space.shape, spec.action_space.shape) == (obs_shape, action_shape)
    assert spec.observation_space.dtype == (np.uint8 if len(obs_shape) == 3 else np.float32)
    assert (spec.config.max_episode_steps, spec.reward_threshold) == (limit, threshold)
    assert spec.action_spec().dtype == (np.float32 if action_shape else np.int32)
    if "CarRacing" in task_id:
        assert spec.action_space.low.tolist() == [-1, 0, 0]
        assert spec.config.lap_complete_percent == 0.95


@pytest.mark.parametrize("task_id", ["LunarLander-v2", "LunarLanderContinuous-v3", "BipedalWalker-v3"])
def test_observations_are_in_their_space_wherever_they_go(task_id: str) -> None:
    up: Any = {"LunarLander-v2": 2, "LunarLanderContinuous-v3": [1.0, 0.0]}.get(task_id, [1.0] * 4)
    with shoal.make_gymnasium(task_id, num_envs=1, engine="serial") as envs:
        seen = [envs.reset()[0][0], *(envs.step(np.array([up]))[0][0] for _ in range(200))]
        assert all(obs in envs.observation_space for obs in seen)
        assert (envs.observation_space.low == -np.inf).all()
    assert task_id != "LunarLander-v2" or not all(obs in gym.make("LunarLander-v3").observation_space for obs in seen)


@pytest.mark.parametrize("env_type", ["gymnasium", "gym", "dm"])
def test_structure_in_every_dialect(env_type: str) -> None:
    with shoal.make("LunarLander-v2", env_type, num_envs=2, engine="serial") as envs:
        envs.reset()
        result = envs.step(np.zeros(2, int))
    if env_type == "dm":
        assert result.observation._fields == ("env_id", "players", "obs")
        obs, reward = result.observation.obs, result.reward
    else:
        obs, reward = result[:2]
        assert {"env_id", "players", "elapsed_step"} <= set(result[-1])
    assert (obs.shape, obs.dtype, reward.dtype) == ((2, 8), np.float32, np.float32)


def test_gymnasiums_door_knows_the_old_ids() -> None:
    with shoal.make_vec("LunarLander-v2", 2, engine="serial", env_kwargs={"gravity": -5.0}) as envs:
        assert envs.reset(seed=1)[0].shape == (2, 8)
        assert envs.get_attr("gravity") == (-5.0, -5.0)


@pytest.mark.parametrize("task_id", ["LunarLander-v2", "LunarLander-v3"])
def test_a_missing_library_is_named(task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)  # type: ignore[arg-type]
    for make in (shoal.make_gymnasium, shoal.make_vec):
        with pytest.raises(BackendUnavailable, match=r"LunarLander-v3 needs Box2D: pip install 'shoal\[box2d\]'"):
            make(task_id)


def test_pictures_need_pygame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailable, match="needs pygame"):
        shoal.make_spec("CarRacing-v3")


def test_continuous_actions_are_described_without_players_as_in_envpool() -> None:
    shapes = {
        task_id: shoal.make_spec(task_id).action_array_spec["action"].shape
        for task_id in ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3")
    }
    assert shapes == {"LunarLander-v3": [-1], "LunarLanderContinuous-v3": [2], "BipedalWalker-v3": [4]}
