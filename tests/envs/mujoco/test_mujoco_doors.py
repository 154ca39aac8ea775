"""Who gets the native robots: every door, under the names of Gymnasium and of EnvPool."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("mujoco.batch")
import shoal
from shoal.envs.mujoco import TASKS, has_mujoco
from shoal.errors import ArgumentError, BackendUnavailable
from shoal.registry import find

if TYPE_CHECKING:
    from collections.abc import Iterator

# What EnvPool 1.2.5 says of its robots: observation, action, time limit, threshold, infos.
TABLE: dict[str, tuple[int, int, int, float | None, str]] = {
    "Ant-v4": (27, 8, 1000, 6000.0, "reward_forward reward_ctrl reward_contact reward_survive x_position y_velocity"),
    "Ant-v5": (105, 8, 1000, 6000.0, "reward_forward reward_ctrl reward_contact reward_survive distance_from_origin"),
    "HalfCheetah-v4": (17, 6, 1000, 4800.0, "reward_run reward_ctrl x_position x_velocity"),
    "HalfCheetah-v5": (17, 6, 1000, 4800.0, "reward_run reward_ctrl x_position x_velocity"),
    "Hopper-v4": (11, 3, 1000, 6000.0, "x_position x_velocity"),
    "Hopper-v5": (11, 3, 1000, 6000.0, "x_position x_velocity"),
    "Humanoid-v4": (376, 17, 1000, None, "reward_linvel reward_quadctrl reward_alive reward_impact x_velocity"),
    "Humanoid-v5": (348, 17, 1000, None, "reward_linvel reward_quadctrl reward_alive reward_impact x_velocity"),
    "HumanoidStandup-v4": (376, 17, 1000, None, "reward_linup reward_quadctrl reward_alive reward_impact"),
    "HumanoidStandup-v5": (348, 17, 1000, None, "reward_linup reward_quadctrl reward_alive reward_impact"),
    "InvertedDoublePendulum-v4": (11, 1, 1000, 9100.0, ""),
    "InvertedDoublePendulum-v5": (9, 1, 1000, 9100.0, ""),
    "InvertedPendulum-v4": (4, 1, 1000, 950.0, ""),
    "InvertedPendulum-v5": (4, 1, 1000, 950.0, ""),
    "Pusher-v4": (23, 7, 100, 0.0, "reward_dist reward_ctrl reward_near"),
    "Pusher-v5": (23, 7, 100, 0.0, "reward_dist reward_ctrl reward_near"),
    "Reacher-v4": (11, 2, 50, -3.75, "reward_dist reward_ctrl"),
    "Reacher-v5": (10, 2, 50, -3.75, "reward_dist reward_ctrl"),
    "Swimmer-v4": (8, 2, 1000, 360.0, "reward_fwd reward_ctrl x_position distance_from_origin y_velocity"),
    "Swimmer-v5": (8, 2, 1000, 360.0, "reward_fwd reward_ctrl x_position distance_from_origin y_velocity"),
    "Walker2d-v4": (17, 6, 1000, None, "x_position x_velocity"),
    "Walker2d-v5": (17, 6, 1000, None, "x_position x_velocity"),
}


def test_the_table_is_complete() -> None:
    assert TABLE.keys() == TASKS.keys()


QUICK = {"Ant-v4", "HalfCheetah-v5", "Humanoid-v5"}


@pytest.mark.parametrize(
    "env_id", [pytest.param(env_id, marks=[] if env_id in QUICK else [pytest.mark.slow]) for env_id in TABLE]
)
def test_envpools_gymnasium_dialect(env_id: str) -> None:
    width, actions, limit, threshold, infos = TABLE[env_id]
    with shoal.make_gymnasium(env_id, num_envs=2) as envs:
        assert envs.stats().engine == "native"
        assert (envs.observation_space.shape, envs.observation_space.dtype) == ((width,), np.float64)
        assert (envs.action_space.shape, envs.action_space.dtype) == ((actions,), np.float64)
        assert (envs.config["max_episode_steps"], envs.spec.reward_threshold) == (limit, threshold)
        told = {key for key in envs.spec.state_array_spec if key.startswith("info:")}
        assert {f"info:{name}" for name in infos.split()} <= told
        obs, info = envs.reset()
        assert obs.dtype == np.float64
        assert set(infos.split()) <= info.keys()
        action = np.stack([envs.action_space.sample() for _ in range(2)])
        obs, reward, terminated, _, info = envs.step(action)
        assert (obs.shape, reward.dtype, terminated.dtype) == ((2, width), np.float32, np.bool_)
        for name in infos.split():
            assert (info[name].shape, info[name].dtype) == ((2,), np.float64), name
        assert info["elapsed_step"].tolist() == [1, 1]
        assert all(f"info:{name}" in told for name in info if name not in ("env_id", "players", "elapsed_step"))


@pytest.mark.parametrize(
    ("env_id", "width"), [("Ant-v3", 111), ("HalfCheetah-v3", 17), ("Humanoid-v3", 376), ("Reacher-v2", 11)]
)
def test_ids_that_only_envpool_has_kept(env_id: str, width: int) -> None:
    with shoal.make_gymnasium(env_id, num_envs=2) as envs:
        assert envs.reset()[0].shape == (2, width)
        for _ in range(20):
            obs = envs.step(np.zeros((2, *envs.action_space.shape)))[0]
        if env_id == "Ant-v3":
            assert not obs[:, 27:].any(), "without contact forces"


@pytest.mark.parametrize("version", [2, 4, 5])
def test_the_parts_of_pushers_reward_add_up(version: int) -> None:
    with shoal.make_gymnasium(f"Pusher-v{version}", num_envs=3) as envs:
        assert not envs.reset()[1]["reward_near"].any()
        _, reward, *_, info = envs.step(np.random.default_rng(1).uniform(-1, 1, (3, 7)))
        price = 0.1 if version < 5 else 1.0  # of old, the price of the action is told without its weight
        assert (info["reward_near"] < -0.05).all()
        np.testing.assert_allclose(
            info["reward_near"] + info["reward_dist"] + price * info["reward_ctrl"], reward, rtol=1e-5
        )


def parts_of_reward(info: dict[str, Any]) -> Any:
    return sum(info[f"reward_{name}"] for name in ("forward", "ctrl", "contact", "survive"))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize(
    ("task_id", "options"),
    [
        ("Ant-v3", {}),
        ("Ant-v4", {}),
        ("Ant-v4", {"use_contact_force": True, "contact_cost_weight": 0.1}),
        ("Ant-v5", {}),
    ],
)
def test_the_parts_of_an_ants_reward_add_up(task_id: str, options: dict[str, Any], autoreset: str) -> None:
    told: list[Any] = []
    with shoal.make_gymnasium(task_id, num_envs=2, max_episode_steps=20, autoreset=autoreset, **options) as envs:
        assert not parts_of_reward(envs.reset()[1]).any()
        for _ in range(21):
            _, reward, _, truncated, info = envs.step(np.full((2, 8), 0.5))
            told.append(info["final_info"] if truncated.all() and autoreset == "same_step" else info)
            np.testing.assert_allclose(parts_of_reward(told[-1]), reward, rtol=1e-5, atol=1e-7)
            is_reset = autoreset == "next_step" and info["elapsed_step"][0] == 0
            np.testing.assert_allclose(told[-1]["reward_ctrl"], 0.0 if is_reset else -1.0, rtol=1e-12)
    if options:
        assert min(info["reward_contact"].min() for info in told) < 0.0


def test_in_gymnasiums_door_ants_report_as_in_gymnasium() -> None:
    with shoal.make_vec("Ant-v4", 1, env_kwargs={"use_contact_forces": True}) as envs:
        envs.reset(seed=1)
        assert envs.step(np.full((1, 8), 0.5, np.float32))[4]["reward_ctrl"].tolist() == [0.0]


@pytest.mark.parametrize("task_id", ["Ant-v3", "Ant-v4", "Ant-v5"])
def test_speed_is_worth_what_an_ant_is_told(task_id: str) -> None:
    plain, weighted = (first_step(task_id, forward_reward_weight=weight) for weight in (1, 3))
    speed = plain[4]["x_velocity"]
    np.testing.assert_allclose(weighted[1] - plain[1], 2 * speed, rtol=1e-4)
    np.testing.assert_allclose(weighted[4]["reward_forward"], 3 * speed)


def test_pushers_rows_of_a_reset_have_no_reward() -> None:
    with shoal.make_gymnasium("Pusher-v4", max_episode_steps=2, autoreset="same_step") as envs:
        envs.reset()
        for _ in range(2):
            *_, info = envs.step(np.ones((1, 7)))
        assert info["reward_near"].tolist() == [0.0]
        assert info["final_info"]["reward_near"][0] < -0.05


@pytest.mark.parametrize("task_id", ["Humanoid-v4", "HumanoidStandup-v5"])
def test_bounds_of_actions_are_as_exact_as_their_type(task_id: str) -> None:
    assert set(shoal.make_spec(task_id).action_space.high.tolist()) == {0.4}
    with shoal.make_vec(task_id, 1) as envs:
        theirs = gym.spaces.Box(-0.4, 0.4, (17,), np.float32)
        assert envs.single_action_space == theirs
        np.testing.assert_array_equal(envs.single_action_space.high, theirs.high)


def test_ants_may_do_without_contact_forces() -> None:
    with shoal.make_gymnasium("Ant-v5", num_envs=1) as envs, shoal.make_gymnasium("Ant-v4") as old:
        assert (envs.config["use_contact_force"], old.config["use_contact_force"]) == (True, False)
    with shoal.make_gymnasium("Ant-v5", num_envs=1, use_contact_force=False) as envs:
        assert envs.reset()[0].shape == (1, 27)
        for _ in range(30):
            *_, info = envs.step(np.ones((1, 8)))
        assert info["reward_contact"].tolist() == [0.0]
    with shoal.make_gymnasium("Ant-v4", num_envs=1, use_contact_force=True) as envs:
        envs.reset()
        costs = [envs.step(np.ones((1, 8)))[4]["reward_contact"][0] for _ in range(30)]
        assert min(costs) < 0.0


def test_robots_know_no_options_of_a_reset() -> None:
    with shoal.make_gymnasium("HalfCheetah-v4", num_envs=2) as envs:
        with pytest.raises(shoal.errors.ArgumentError, match=r"\['bogus'\] are not known"):
            envs.reset(options={"bogus": 1})
        assert envs.reset(options={"reset_mask": np.array([False, True])})[1]["env_id"].tolist() == [1]


def test_envpools_dm_and_gym_dialects() -> None:
    pytest.importorskip("dm_env")
    with shoal.make_dm("HalfCheetah-v5", num_envs=2) as envs:
        step = envs.reset()
        assert step.observation.obs.shape == (2, 17)
        step = envs.step(np.zeros((2, 6)))
        assert step.observation.reward_run.shape == (2,)
        assert envs.action_spec().dtype == np.float64
    with shoal.make_gym("Hopper-v4", num_envs=2) as envs:
        envs.reset()
        assert envs.step(np.zeros((2, 3)))[3]["TimeLimit.truncated"].tolist() == [False, False]


def test_actions_beyond_their_range_are_envpools_business_only() -> None:
    big = np.full((1, 6), 3.0)
    with shoal.make_gymnasium("HalfCheetah-v5", num_envs=1) as envs:
        envs.reset()
        *_, info = envs.step(big)
        assert info["reward_ctrl"][0] == pytest.approx(-0.1 * 9 * 6)
    with shoal.make_vec("HalfCheetah-v5", 1) as envs:
        envs.reset()
        with pytest.raises(shoal.errors.ActionError):
            envs.step(big)


def test_options_under_envpools_names() -> None:
    spec = shoal.make_spec("Ant-v5", healthy_z_min=0.3, frame_stack=2, frame_skip=3, post_constraint=False)
    assert spec.observation_space.shape == (2, 105)
    assert spec.config.healthy_z_min == 0.3
    assert spec.config.healthy_z_range == (0.3, 1.0)
    assert (spec.config.frame_skip, spec.config.post_constraint, spec.config.contact_force_max) == (3, False, 1.0)
    with pytest.raises(ArgumentError, match="both given"):
        shoal.make_spec("Ant-v5", healthy_z_min=0.3, healthy_z_range=(0, 1))
    assert shoal.make_spec("Reacher-v5", ctrl_cost_weight=2).settings.env_kwargs["reward_control_weight"] == 2.0
    with pytest.raises(TypeError, match=r"healthy_z_mim.*did you mean healthy_z_min"):
        shoal.make_spec("Ant-v5", healthy_z_mim=0.3)


@pytest.mark.parametrize(
    ("task_id", "options", "own"),
    [
        ("InvertedPendulum-v4", {"healthy_z_min": -0.1, "healthy_z_max": 0.3}, {"healthy_z_range": (-0.1, 0.3)}),
        ("InvertedDoublePendulum-v5", {"observation_max": 5.0}, {"observation_range": (-10.0, 5.0)}),
        ("HumanoidStandup-v5", {"contact_cost_max": 3.0}, {"impact_cost_range": (-np.inf, 3.0)}),
        ("Hopper-v5", {"velocity_min": -1.0}, {"velocity_range": (-1.0, 10.0)}),
        ("Walker2d-v4", {"velocity_max": 1.0}, {"velocity_range": (-10.0, 1.0)}),
        ("Pusher-v5", {"cylinder_x_min": -0.5, "cylinder_y_max": 0.1},
         {"cylinder_x_range": (-0.5, 0.0), "cylinder_y_range": (-0.2, 0.1)}),
    ],
)  # fmt: skip
def test_ends_of_ranges_under_envpools_names(task_id: str, options: dict[str, Any], own: dict[str, Any]) -> None:
    spec = shoal.make_spec(task_id, **options)
    assert spec.settings.env_kwargs.items() >= own.items()
    assert spec.config._asdict().items() >= {**options, **own}.items()


def first_step(task_id: str, **options: Any) -> Any:
    return first_steps(task_id, 1, **options)[0]


def first_steps(task_id: str, count: int, **options: Any) -> list[Any]:
    with shoal.make_gymnasium(task_id, num_envs=2, seed=3, **options) as envs:
        envs.reset()
        return [envs.step(np.full((2, *envs.action_space.shape), 0.1)) for _ in range(count)]


@pytest.mark.parametrize(
    ("task_id", "options"),
    [
        ("InvertedPendulum-v4", {"healthy_reward": 3.0}),
        ("InvertedPendulum-v5", {"healthy_reward": 3.0}),
        ("HumanoidStandup-v5", {"healthy_reward": 3.0}),
    ],
)
def test_what_a_step_is_worth(task_id: str, options: dict[str, Any]) -> None:
    usual, other = first_step(task_id), first_step(task_id, **options)
    np.testing.assert_allclose(other[1] - usual[1], 2.0, rtol=1e-3)
    if "reward_alive" in other[4]:
        assert other[4]["reward_alive"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("task_id", "options"),
    [
        ("InvertedPendulum-v5", {"healthy_z_min": 1.0, "healthy_z_max": 2.0}),
        ("InvertedDoublePendulum-v4", {"healthy_z_max": 5.0}),
    ],
)
def test_what_counts_as_fallen(task_id: str, options: dict[str, Any]) -> None:
    assert not first_step(task_id)[2].any()
    assert first_step(task_id, **options)[2].all()


@pytest.mark.parametrize(
    ("task_id", "low", "high"),
    [
        ("Hopper-v4", "velocity_min", "velocity_max"),
        ("InvertedDoublePendulum-v5", "observation_min", "observation_max"),
    ],
)
def test_what_observations_are_clipped_to(task_id: str, low: str, high: str) -> None:
    obs = first_step(task_id, **{low: -1e-3, high: 1e-3})[0]
    assert np.abs(obs[:, -3:]).max() <= 1e-3 < np.abs(first_step(task_id)[0][:, -3:]).max()


@pytest.mark.parametrize(("task_id", "name"), [("Humanoid-v4", "reward_impact"), ("Humanoid-v5", "reward_contact")])
def test_contact_may_cost_or_not(task_id: str, name: str) -> None:
    paid, free = (
        first_steps(task_id, 10, use_contact_force=is_paid, contact_cost_weight=1.0, terminate_when_unhealthy=False)
        for is_paid in (True, False)
    )
    assert all((info[name] == 0).all() for *_, info in free)
    assert any((info[name] < 0).any() for *_, info in paid)
    for one, other in zip(paid, free, strict=True):
        np.testing.assert_allclose(one[1] - other[1], one[4][name], rtol=1e-4, atol=1e-4)


def test_where_arms_begin() -> None:
    still = {"reset_qvel_scale": 0.0}
    with shoal.make_gymnasium("Reacher-v5", num_envs=4, reset_qpos_scale=0.0, reset_goal_scale=1e-3, **still) as envs:
        obs, _ = envs.reset()
        np.testing.assert_array_equal(obs[:, :4], [[1, 1, 0, 0]] * 4)
        assert (np.linalg.norm(obs[:, 4:6], axis=1) < 1e-3).all()
        assert (obs[:, 6:8] == 0).all()
    place = {"cylinder_x_min": -0.5, "cylinder_x_max": -0.4, "cylinder_dist_min": 0.45}
    with shoal.make_pool("Pusher-v5", 4, env_kwargs={"cylinder_x_range": (-0.5, -0.4), **still}, seed=1) as pool:
        pool.reset()
        qpos, qvel = np.array(pool.get_attr("qpos")), np.array(pool.get_attr("qvel"))
        assert ((qpos[:, -4] >= -0.5) & (qpos[:, -4] <= -0.4)).all()
        assert (qvel == 0).all()
    assert shoal.make_spec("Pusher-v5", **place).config.cylinder_dist_min == 0.45


@pytest.mark.parametrize(
    ("task_id", "options"), [("Reacher-v5", {"reset_goal_scale": 0.0}), ("Pusher-v4", {"cylinder_dist_min": 0.5})]
)
def test_a_thing_needs_a_place(task_id: str, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(options))):
        shoal.make_gymnasium(task_id, **options)


def test_a_stack_begins_with_copies() -> None:
    with shoal.make_gymnasium("HalfCheetah-v5", num_envs=2, frame_stack=3) as envs:
        obs, _ = envs.reset()
        assert obs.shape == (2, 3, 17)
        assert (obs[:, 0] == obs[:, 2]).all()
        later = envs.step(np.ones((2, 6)))[0]
        np.testing.assert_array_equal(later[:, :2], obs[:, 1:])


def test_without_post_constraint_there_are_no_contact_forces() -> None:
    for flag, expected in ((True, True), (False, False)):
        with shoal.make_gymnasium("Ant-v5", num_envs=2, post_constraint=flag) as envs:
            envs.reset()
            for _ in range(30):
                obs = envs.step(np.zeros((2, 8)))[0]
            assert bool(np.abs(obs[:, 27:]).any()) is expected


def test_an_asynchronous_pool() -> None:
    with shoal.make_gymnasium("Hopper-v5", num_envs=5, batch_size=2, seed=1) as envs:
        envs.async_reset()
        steps = np.zeros(5, int)
        while steps.min() <= 30:
            obs, _, _, _, info = envs.recv()
            assert obs.shape == (2, 11)
            steps[info["env_id"]] += 1
            assert steps.sum() < 2000, "no env is kept waiting"
            envs.send(np.zeros((2, 3)), info["env_id"])


def test_the_same_rows_in_every_mode_and_batch_size() -> None:
    """A terminated Hopper: what an env shows does not depend on who is stepped with it."""
    rows: list[Any] = []
    for size in (3, 2):
        seen: list[list[Any]] = [[], [], []]
        with shoal.make_pool("Hopper-v5", 3, batch_size=size, seed=4, autoreset="same_step") as pool:
            pool.async_reset()
            while min(map(len, seen)) < 60:
                batch = pool.recv()
                for row, i in enumerate(batch.env_id.tolist()):
                    seen[i].append((batch.obs[row], batch.reward[row], batch.terminated[row], batch.elapsed_step[row]))
                pool.send(np.full((len(batch), 3), 0.3, np.float32), batch.env_id)
        rows.append([env[:60] for env in seen])
    for one, other in zip(*rows, strict=True):
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(np.r_[first[0], first[1:]], np.r_[second[0], second[1:]])


def test_who_asks_for_another_engine_gets_gymnasiums_env() -> None:
    pytest.importorskip("imageio")
    with shoal.make_vec("HalfCheetah-v5", 1, engine="serial") as envs:
        assert envs.stats().engine == "serial"
        assert "gymnasium.envs.mujoco" in type(envs.get_attr("unwrapped")[0]).__module__
    with shoal.make_vec("HalfCheetah-v5", 1, wrappers=[gym.wrappers.FlattenObservation]) as envs:
        assert envs.stats().engine == "serial"


def test_an_id_that_somebody_took_over_is_theirs() -> None:
    spec = gym.registry["Swimmer-v5"]
    try:
        gym.registry["Swimmer-v5"] = gym.envs.registration.EnvSpec("Swimmer-v5", "CartPole-v1")
        assert find("Swimmer-v5").env is gym.registry["Swimmer-v5"]
    finally:
        gym.registry["Swimmer-v5"] = spec


def test_gymnasiums_spec_is_kept() -> None:
    with shoal.make_vec("Hopper-v5", 2) as envs:
        assert envs.spec == gym.registry["Hopper-v5"]
        assert envs.spec.reward_threshold == 3800.0


@pytest.fixture
def no_mujoco(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take MuJoCo away."""
    has_mujoco.cache_clear()
    for module in ("mujoco", "mujoco.batch"):
        monkeypatch.setitem(sys.modules, module, None)
    yield
    has_mujoco.cache_clear()


@pytest.mark.usefixtures("no_mujoco")
@pytest.mark.parametrize("engine", ["auto", "native", "serial", "process"])
@pytest.mark.parametrize("task_id", ["Ant-v5", "Ant-v3"])
def test_without_mujoco_the_extra_is_named(task_id: str, engine: str) -> None:
    with pytest.raises(BackendUnavailable, match=rf"{task_id} needs MuJoCo.*: pip install 'shoal\[mujoco\]'"):
        shoal.make_vec(task_id, 2, engine=engine)
