"""Tasks of the suite on ``mujoco.batch`` give dm_control's episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mujoco.batch")
import shoal
from shoal.adapters.native_env import PlainNativeEnv
from shoal.envs.dm_control import TASKS, has_dm_control

if not has_dm_control():
    pytest.skip("dm_control is not installed", allow_module_level=True)

from shoal.envs.dm_control import rewards
from shoal.envs.dm_control.env import SuiteEnv
from shoal.envs.dm_control.generators import RandomStates
from shoal.errors import EnvStepError
from shoal.registry import find

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.pool import Pool

NATIVE = [task_id for task_id, task in TASKS.items() if task.native is not None]
# One of every domain, and those that draw other numbers than the first, over whole episodes.
WHOLE = {
    "dm_control/acrobot-swingup",
    "dm_control/ball_in_cup-catch",
    "dm_control/cartpole-balance",
    "dm_control/cartpole-swingup",
    "dm_control/cheetah-run",
    "dm_control/finger-spin",
    "dm_control/finger-turn_hard",
    "dm_control/fish-swim",
    "dm_control/hopper-hop",
    "dm_control/humanoid-run",
    "dm_control/pendulum-swingup",
    "dm_control/point_mass-hard",
    "dm_control/reacher-hard",
    "dm_control/swimmer-swimmer6",
    "dm_control/walker-run",
}


@pytest.mark.parametrize("task_id", NATIVE)
def test_a_task_gives_dm_controls_episodes(task_id: str) -> None:
    """Every row is the same, into the next episode."""
    limit = 1000 if task_id in WHOLE else 30
    options: dict[str, Any] = {"max_episode_steps": limit}
    with (
        shoal.make_vec(task_id, 2, num_workers=1, **options) as ours,
        shoal.make_vec(task_id, 2, engine="serial", **options) as plain,
    ):
        assert (ours.stats().engine, plain.stats().engine) == ("native", "serial")
        assert ours.single_observation_space == plain.single_observation_space
        assert list(ours.single_observation_space) == list(plain.single_observation_space)
        assert ours.single_action_space == plain.single_action_space
        _compare(ours.reset(seed=5)[0], plain.reset(seed=5)[0])
        draws = np.random.default_rng(1)
        for _ in range(limit + 5):
            action = draws.uniform(-1, 1, ours.action_space.shape)
            mine, theirs = ours.step(action), plain.step(action)
            _compare(mine[0], theirs[0])
            np.testing.assert_allclose(mine[1], theirs[1], rtol=0, atol=1e-9)
            assert np.array_equal(mine[2], theirs[2])
            assert np.array_equal(mine[3], theirs[3])
            assert mine[4].keys() == theirs[4].keys()
            assert np.array_equal(mine[4].get("discount"), theirs[4].get("discount"))


def _compare(ours: Any, theirs: Any) -> None:
    for key, value in theirs.items():
        np.testing.assert_allclose(ours[key], value, rtol=0, atol=1e-9)


# Random actions rarely earn anything in these tasks: where something is to be earned, and how fast it moves there.
GOOD: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "acrobot-swingup": ({}, {}),
    "acrobot-swingup_sparse": ({}, {}),
    "ball_in_cup-catch": ({"ball_z": 0.35}, {}),
    "cartpole-swingup": ({}, {}),
    "cartpole-swingup_sparse": ({}, {}),
    "cartpole-three_poles": ({}, {}),
    "cheetah-run": ({}, {"rootx": 7.0}),
    "finger-spin": ({}, {"hinge": -30.0}),
    "hopper-stand": ({}, {}),
    "hopper-hop": ({}, {"rootx": 1.7}),
    "humanoid-stand": ({}, {}),
    "humanoid-walk": ({}, {}),
    "humanoid_CMU-stand": ({}, {}),
    "pendulum-swingup": ({}, {}),
    "point_mass-easy": ({"root_x": 0.01}, {}),
    "point_mass-hard": ({"root_x": 0.01}, {}),
    "walker-walk": ({}, {"rootx": 0.7}),
    "walker-run": ({}, {"rootx": 6.0}),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_earned_is_what_dm_control_pays(name: str) -> None:
    places, speeds = GOOD[name]
    task = find(f"dm_control/{name}")
    ours, theirs = PlainNativeEnv(task.env(**task.kwargs)), SuiteEnv(**task.kwargs)
    model = ours.compiled
    qpos, qvel = np.array(model.qpos0), np.zeros(model.nv)
    if name == "humanoid_CMU-stand":
        qpos[2:7] = 1.2, 0.7071067811865476, 0.7071067811865476, 0.0, 0.0  # on its feet
    for joint, value in places.items():
        qpos[model.joint(joint).qposadr[0]] = value
    for joint, value in speeds.items():
        qvel[model.joint(joint).dofadr[0]] = value
    ours.reset(seed=1)
    theirs.reset(seed=1)
    ours.set_state(qpos, qvel)
    with theirs.env.physics.suppress_physics_errors():
        theirs.env.physics.data.qpos[:], theirs.env.physics.data.qvel[:] = qpos, qvel
        theirs.env.physics.after_reset()
    paid = 0.0
    for _ in range(5):
        action = np.full(ours.action_space.shape, 0.1)
        mine, other = ours.step(action), theirs.step(action)
        _compare(mine[0], other[0])
        assert mine[1] == pytest.approx(other[1], abs=1e-9)
        paid += other[1]
    assert paid > 0.1
    ours.close()


@pytest.mark.parametrize(
    "task_id", ["cheetah-run", "walker-walk", "reacher-easy", "finger-turn_easy", "cartpole-balance"]
)
def test_a_snapshot_is_exact(task_id: str, make_pool: Callable[..., Pool]) -> None:
    """What follows is the same, new episodes with new draws included; and it may follow in another env."""
    pool = make_pool(f"dm_control/{task_id}", 3, max_episode_steps=6, seed=2)
    shape = (3, *pool.spec.action.space.shape)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, *shape))
    actions[:] = actions[:, :1]  # all envs are told the same
    pool.reset()
    for action in actions[:4]:
        pool.step(action)
    kept = pool.snapshot()
    first = [pool.step(action) for action in actions[4:]]
    pool.restore(kept)
    again = [pool.step(action) for action in actions[4:]]
    for one, two in zip(first, again, strict=True):
        assert np.array_equal(one.reward, two.reward)
        assert all(np.array_equal(one.obs[key], two.obs[key]) for key in one.obs)
    pool.restore(kept)
    pool.restore(pool.snapshot([2]), [0])
    moved = [pool.step(action) for action in actions[4:]]
    for one, two in zip(first, moved, strict=True):
        assert all(np.array_equal(one.obs[key][2], two.obs[key][0]) for key in one.obs)


def test_who_asks_for_what_only_dm_control_has_gets_its_env() -> None:
    cheetah = "dm_control/cheetah-run"
    with shoal.make_vec(cheetah, 1, env_kwargs={"visualize_reward": True}) as envs:
        assert envs.stats().engine == "serial"
    with shoal.make_vec(cheetah, 2, env_kwargs=[{"frame_skip": 1}, {"frame_skip": 2}], engine="serial") as envs:
        assert envs.stats().engine == "serial"
    with shoal.make_vec(cheetah, 1, wrappers=[lambda env: env]) as envs:
        assert envs.stats().engine == "serial"
    with shoal.make_gymnasium("CheetahRun-v1", num_envs=1, visualize_reward=True) as pool:
        assert pool.stats().engine == "serial"
    with shoal.make_vec(cheetah, 1, engine="serial") as envs:
        assert envs.get_attr("task")[0].visualize_reward is False  # it is dm_control's own
        assert envs.get_attr("physics")[0].data.qpos.shape == (9,)


def test_an_unstable_simulation_is_an_error() -> None:
    """And only of the env whose simulation it is."""
    with shoal.make_pool("dm_control/cheetah-run", 3, seed=0) as pool:
        pool.reset()
        pool.step(np.zeros((3, 6)))
        pool.call("set_state", np.zeros(9), np.full(9, 1e12), env_id=[1])
        with pytest.raises(EnvStepError, match=r"env 1, .*unstable"):
            pool.step(np.zeros((3, 6)))
        assert pool.stats().faults == 1


def test_observations_can_be_stacked() -> None:
    with shoal.make_gymnasium("PendulumSwingup-v1", num_envs=2, frame_stack=3) as pool:
        assert pool.observation_space["orientation"].shape == (3, 2)
        assert list(pool.observation_space) == ["orientation", "velocity"]


def test_generators_of_snapshots_draw_on_as_before() -> None:
    states = RandomStates(2)
    states.seed({0: 3})
    states[0].randn(3)  # an odd number: one of a pair is left over
    kept = states.words(np.array([0], np.int32))
    wanted = states[0].randn(700).tolist()
    states.set_words(np.array([0, 1], np.int32), kept)
    assert states[0].randn(700).tolist() == states[1].randn(700).tolist() == wanted


NUMBERS = st.floats(-50, 50, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=8), NUMBERS, st.floats(0.01, 20), st.floats(0, 0.9))
def test_rewards_have_dm_controls_shapes(numbers: list[float], low: float, margin: float, at_margin: float) -> None:
    from dm_control.utils.rewards import tolerance

    values, high = np.array(numbers), low + 1.5
    bounds = (low, float("inf"))
    pairs = [
        (rewards.within(values, low, high), tolerance(values, (low, high))),
        (rewards.bell(values, low, high, margin), tolerance(values, (low, high), margin)),
        (rewards.slope(values, low, margin, at_margin), tolerance(values, bounds, margin, "linear", at_margin)),
        (rewards.small(values), tolerance(values, margin=1, value_at_margin=0, sigmoid="quadratic")),
        (
            rewards.long_tail(np.abs(values), 1.5, margin),
            tolerance(np.abs(values), (0, 1.5), margin, sigmoid="long_tail"),
        ),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
