"""Tasks of the suite as dm_control's own envs: what they look like behind every face, on engines for Python envs."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.envs.dm_control import TASKS, has_dm_control

if not has_dm_control():
    pytest.skip("dm_control is not installed", allow_module_level=True)

from shoal.envs.dm_control.env import SuiteEnv
from shoal.envs.dm_control.library import load_env, load_library
from shoal.errors import ArgumentError, EnvConstructError

WALKER = "dm_control/walker-walk"


def original(task_id: str, seed: int, **kwargs: Any) -> Any:
    """dm_control's env, seeded its own way."""
    domain, _, task = task_id.removeprefix("dm_control/").partition("-")
    return load_env(domain, task, {"random": seed, **kwargs})


def same(ours: dict[str, Any], theirs: dict[str, Any], row: int) -> bool:
    assert list(ours) == list(theirs)
    return all(np.array_equal(ours[key][row], theirs[key]) for key in theirs)


# It draws whenever an episode begins.
DRAWS = "dm_control/quadruped-escape"
can_draw = "DISPLAY" in os.environ or find_library("EGL") is not None
needs_pictures = pytest.mark.skipif(not can_draw, reason="there is no way to draw")


# The others are compared with these in test_dm_control_native.
ONLY_PLAIN = [*(task_id for task_id, task in TASKS.items() if task.native is None), WALKER, "dm_control/fish-swim"]


@pytest.mark.parametrize("task_id", [pytest.param(i, marks=needs_pictures if i == DRAWS else ()) for i in ONLY_PLAIN])
def test_a_task_gives_dm_controls_rows(task_id: str) -> None:
    theirs = original(task_id, 7)
    limits = theirs.action_spec()
    with shoal.make_vec(task_id, 1, engine="serial") as envs:
        obs, _ = envs.reset(seed=7)
        assert same(obs, theirs.reset().observation, 0)
        assert np.array_equal(envs.single_action_space.low, np.broadcast_to(limits.minimum, limits.shape))
        draws = np.random.default_rng(0)
        for _ in range(3):
            action = draws.uniform(np.maximum(limits.minimum, -1), np.minimum(limits.maximum, 1), limits.shape)
            step = theirs.step(action)
            obs, reward, terminated, truncated, infos = envs.step(action[None])
            assert same(obs, step.observation, 0)
            assert (reward[0], infos["discount"][0]) == (step.reward, 1.0)
            assert not (terminated | truncated).any()


def test_all_python_engines_give_the_same_rows(engine: str) -> None:
    with shoal.make_vec(WALKER, 2, engine=engine) as envs:
        obs, _ = envs.reset(seed=3)
        for i in range(2):
            assert same(obs, original(WALKER, 3 + i).reset().observation, i)
        assert obs["height"].shape == (2,)
        envs.step(np.zeros((2, 6)))


@pytest.mark.parametrize("task_id", ["dm_control/lqr-lqr_2_1", pytest.param(DRAWS, marks=needs_pictures)])
def test_seeds_repeat_where_models_are_drawn_too(task_id: str) -> None:
    def play() -> list[Any]:
        with shoal.make_vec(task_id, 2, engine="serial") as envs:
            rows = [envs.reset(seed=11)[0]]
            return rows + [envs.step(np.full(envs.action_space.shape, 0.1))[0] for _ in range(3)]

    for first, second in zip(play(), play(), strict=True):
        assert all(np.array_equal(first[key], second[key]) for key in first)


def test_a_seed_may_be_larger_than_a_random_state_takes() -> None:
    env = SuiteEnv(domain_name="pendulum", task_name="swingup")
    first, _ = env.reset(seed=2**40 + 1)
    again, _ = env.reset(seed=2**40 + 1)
    other, _ = env.reset(seed=2**40 + 2)
    assert np.array_equal(first["orientation"], again["orientation"])
    assert not np.array_equal(first["orientation"], other["orientation"])


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize("domain", sorted({name.removeprefix("dm_control/").partition("-")[0] for name in TASKS}))
def test_the_frame_skip_that_is_shown_is_dm_controls(domain: str) -> None:
    task_id = next(name for name in TASKS if name.startswith(f"dm_control/{domain}-"))
    for engine in ("auto", "serial"):
        assert shoal.make_spec(task_id, engine=engine).config.frame_skip == original(task_id, 0)._n_sub_steps


def test_a_control_timestep_of_the_users_own_is_left_alone() -> None:
    own = {"environment_kwargs": {"control_timestep": 0.05}}
    spec = shoal.make_spec("dm_control/cheetah-run", **own)  # a domain that leaves it to the model, which has 0.01
    assert spec.config.frame_skip is None
    with shoal.make_gymnasium(spec, engine="serial") as envs:
        assert [env._n_sub_steps for env in envs.pool.get_attr("env")] == [5]


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("engine", ["serial", "native"])
def test_a_time_limit_is_a_truncation_with_discount_1(engine: str) -> None:
    with shoal.make_vec("dm_control/pendulum-swingup", 2, engine=engine) as envs:
        envs.reset(seed=0)
        for _ in range(999):
            _, _, terminated, truncated, _ = envs.step(np.zeros((2, 1)))
            assert not (terminated | truncated).any()
        _, _, terminated, truncated, infos = envs.step(np.zeros((2, 1)))
        assert truncated.all()
        assert not terminated.any()
        assert (infos["discount"] == 1.0).all()


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("engine", ["serial", "thread", "process", "native"])
def test_through_envpools_doors_an_episode_begins_with_discount_1(engine: str, autoreset: str) -> None:
    settings = {"engine": engine, "autoreset": autoreset, "max_episode_steps": 2, "num_threads": 1}
    with shoal.make_gymnasium("PendulumSwingup-v1", num_envs=2, **settings) as envs:
        discounts = [envs.reset()[1]["discount"], *(envs.step(np.zeros((2, 1)))[4]["discount"] for _ in range(4))]
        assert np.array_equal(discounts, np.ones((5, 2)))
        assert {array.dtype for array in discounts} == {np.dtype(np.float64)}


@pytest.mark.parametrize("engine", ["serial", "native"])
def test_the_time_limit_can_be_longer_or_shorter_than_dm_controls(engine: str) -> None:
    for limit in (3, 1002):
        with shoal.make_vec("dm_control/pendulum-swingup", 1, engine=engine, max_episode_steps=limit) as envs:
            envs.reset(seed=0)
            ends = [bool(envs.step(np.zeros((1, 1)))[3][0]) for _ in range(limit)]
            assert ends == [False] * (limit - 1) + [True]


def test_a_time_limit_of_the_task_is_kept_by_dm_control() -> None:
    with shoal.make_vec("dm_control/cartpole-balance", 1, env_kwargs={"task_kwargs": {"time_limit": 0.05}}) as envs:
        envs.reset(seed=0)
        assert [bool(envs.step(np.zeros((1, 1)))[3][0]) for _ in range(5)] == [False] * 4 + [True]


def test_lqr_terminates_with_discount_0() -> None:
    """At rest in the middle, the episode of an LQR is over."""
    env = SuiteEnv(domain_name="lqr", task_name="lqr_2_1")
    env.reset(seed=0)
    with env.env.physics.reset_context():
        env.env.physics.data.qpos[:] = 0.0
    _, _, terminated, truncated, info = env.step(np.zeros(1))
    assert (terminated, truncated, info["discount"]) == (True, False, 0.0)


# ---------------------------------------------------------------------- faces


@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_the_dm_face_gives_dm_controls_time_steps(engine: str) -> None:
    theirs = original(WALKER, 5)
    with shoal.make_dm("WalkerWalk-v1", num_envs=2, seed=5, engine=engine, max_episode_steps=4) as pool:
        assert pool.stats().engine == ("native" if engine == "auto" else engine)
        ours, step = pool.reset(), theirs.reset()
        assert ours.observation._fields == ("env_id", "players", *step.observation)
        assert pool.observation_spec()._fields[: len(ours.observation._fields)] == ours.observation._fields
        assert (ours.step_type == 0).all()
        assert (ours.discount == 1.0).all()
        for count in range(1, 5):
            ours, step = pool.step(np.full((2, 6), 0.3)), theirs.step(np.full(6, 0.3))
            for key, value in step.observation.items():
                np.testing.assert_allclose(getattr(ours.observation, key)[0], value, rtol=0, atol=1e-12)
            assert ours.reward[0] == np.float32(step.reward)
            assert (ours.discount == 1.0).all()
            assert (ours.step_type == (2 if count == 4 else 1)).all()
        assert (pool.step(np.zeros((2, 6))).step_type == 0).all()


@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_the_gym_and_gymnasium_faces(engine: str) -> None:
    with shoal.make_gym("ReacherEasy-v1", num_envs=2, seed=1, engine=engine) as pool:
        obs = pool.reset()
        assert list(obs) == ["position", "to_target", "velocity"]
        obs, reward, done, info = pool.step(np.zeros((2, 2)))
        assert (reward.dtype, done.tolist(), info["elapsed_step"].tolist()) == (np.float32, [False] * 2, [1, 1])
    with shoal.make_gymnasium("ReacherEasy-v1", num_envs=2, engine=engine) as pool:
        spaces = {"position": (2,), "to_target": (2,), "velocity": (2,)}
        assert {key: space.shape for key, space in pool.observation_space.spaces.items()} == spaces
        assert (pool.action_space.shape, pool.action_space.dtype) == ((2,), np.float64)
        assert pool.config["max_episode_steps"] == 1000
        assert pool.config["task_name"] == "easy"


# ---------------------------------------------------------------------- options


def test_frame_skip_is_the_number_of_substeps() -> None:
    theirs = original(WALKER, 3)
    theirs._n_sub_steps = 4
    theirs.reset()
    wanted = theirs.step(np.full(6, 0.5)).observation
    for engine in ("serial", "native"):
        with shoal.make_vec(WALKER, 1, engine=engine, env_kwargs={"frame_skip": 4}) as envs:
            envs.reset(seed=3)
            assert same(envs.step(np.full((1, 6), 0.5))[0], wanted, 0)


def test_observations_can_be_flat() -> None:
    options = {"environment_kwargs": {"flat_observation": True}}
    with shoal.make_vec(WALKER, 1, engine="serial", env_kwargs=options) as envs:
        assert envs.single_observation_space["observations"].shape == (24,)
    with shoal.make_vec(WALKER, 1, engine="serial", wrappers=[gym.wrappers.FlattenObservation]) as envs:
        obs, _ = envs.reset(seed=2)
        parts = original(WALKER, 2).reset().observation.values()
        assert np.array_equal(obs[0], np.concatenate([np.ravel(part) for part in parts]))


PICTURES = """
import shoal

for engine in ("serial", "native"):
    options = {"render_mode": "rgb_array", "width": 64, "height": 48}
    with shoal.make_vec("dm_control/cartpole-balance", 2, engine=engine, env_kwargs=options) as envs:
        envs.reset(seed=1)
        for picture in envs.render():
            print(picture.shape, picture.dtype, picture.std() > 5)
"""


@needs_pictures
def test_pictures() -> None:
    """In a process of their own: MuJoCo chooses how to draw when it is first imported."""
    way = {} if "DISPLAY" in os.environ else {"MUJOCO_GL": "egl"}
    environment = {**os.environ, **way, "PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    command = [sys.executable, "-c", PICTURES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment, check=True)
    assert done.stdout.splitlines() == ["(48, 64, 3) uint8 True"] * 4


def test_wrong_options_are_refused() -> None:
    for wrong in ({"render_mode": "human"}, {"frame_skip": 0}):
        with pytest.raises(EnvConstructError, match="walker-walk.*" + next(iter(wrong))):
            shoal.make_vec(WALKER, 1, engine="serial", env_kwargs=wrong)
    with pytest.raises(ArgumentError, match="render_mode='rgb_array'"):
        SuiteEnv(domain_name="walker", task_name="walk").render()


def test_the_library_is_loaded_once_and_fits_the_installed_mujoco() -> None:
    assert load_library() is load_library()
    env = load_env("cartpole", "balance", {})
    assert env.physics.named.data.qpos["slider"].shape == (1,)
