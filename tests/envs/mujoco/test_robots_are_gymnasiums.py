"""The robots give the episodes of Gymnasium's: all of them, both versions, every option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("mujoco.batch")
pytest.importorskip("imageio")
from mujoco_twins import compare

from shoal.envs.mujoco import TASKS
from shoal.errors import EnvConstructError

# Those whose episodes end by themselves under random actions.
FALLING = ("Hopper", "Walker2d", "Ant", "Humanoid-", "InvertedPendulum", "InvertedDoublePendulum")
BOTH = "v4", "v5"

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5", "Reacher-v4", "Humanoid-v4"])
def test_a_few_steps(env_id: str) -> None:
    compare(env_id, steps=12)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", TASKS)
def test_whole_episodes(env_id: str) -> None:
    ended = compare(env_id, steps=220, limit=100)
    assert ended >= (6 if env_id.startswith(FALLING) else 4)


@pytest.mark.slow
def test_an_episode_of_full_length() -> None:
    assert compare("HalfCheetah-v5", steps=1001) == 2


OPTIONS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("HalfCheetah", BOTH, {"forward_reward_weight": 2.0, "ctrl_cost_weight": 0.3, "reset_noise_scale": 0.5}),
    ("HalfCheetah", BOTH, {"exclude_current_positions_from_observation": False}),
    ("HalfCheetah", ("v5",), {"frame_skip": 2}),
    ("Hopper", BOTH, {"healthy_z_range": (0.9, 1.4), "healthy_angle_range": (-0.1, 0.1), "healthy_reward": 3.0}),
    ("Hopper", BOTH, {"healthy_state_range": (-2.0, 2.0), "terminate_when_unhealthy": False}),
    ("Walker2d", BOTH, {"healthy_z_range": (1.0, 1.3), "healthy_angle_range": (-0.3, 0.3), "ctrl_cost_weight": 0.1}),
    ("Walker2d", BOTH, {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
    ("Walker2d", ("v5",), {"xml_file": "walker2d.xml", "forward_reward_weight": 0.5, "reset_noise_scale": 0.1}),
    ("Swimmer", BOTH, {"ctrl_cost_weight": 1.0, "exclude_current_positions_from_observation": False}),
    ("Ant", BOTH, {"healthy_z_range": (0.5, 0.9), "healthy_reward": 2.0, "contact_cost_weight": 0.1}),
    ("Ant", BOTH, {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
    ("Ant", ("v4",), {"use_contact_forces": True, "contact_force_range": (-0.5, 0.2)}),
    ("Ant", ("v5",), {"include_cfrc_ext_in_observation": False, "main_body": "aux_1", "forward_reward_weight": 3.0}),
    ("Humanoid", BOTH, {"healthy_z_range": (1.3, 1.5), "healthy_reward": 1.0, "forward_reward_weight": 2.0}),
    ("Humanoid", BOTH, {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
    ("Humanoid", ("v5",), {"contact_cost_weight": 1e-3, "contact_cost_range": (0.1, 0.5)}),
    ("Humanoid", ("v5",), {"include_cinert_in_observation": False, "include_cfrc_ext_in_observation": False}),
    ("HumanoidStandup", ("v5",), {"include_cvel_in_observation": False, "include_qfrc_actuator_in_observation": False}),
    ("HumanoidStandup", ("v5",), {"impact_cost_weight": 1e-3, "impact_cost_range": (0.1, 1.0), "uph_cost_weight": 2.0}),
    ("InvertedPendulum", ("v5",), {"reset_noise_scale": 0.1, "frame_skip": 3}),
    ("InvertedDoublePendulum", ("v5",), {"healthy_reward": 5.0, "reset_noise_scale": 0.3}),
    ("Reacher", ("v5",), {"reward_dist_weight": 2.0, "reward_control_weight": 0.1}),
    ("Pusher", ("v5",), {"reward_near_weight": 1.0, "reward_dist_weight": 2.0, "reward_control_weight": 0.5}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        pytest.param(f"{robot}-{version}", kwargs, id=f"{robot}-{version}-{'-'.join(kwargs)}")
        for robot, versions, kwargs in OPTIONS
        for version in versions
    ],
)
def test_every_option_has_the_effect_it_has_there(env_id: str, kwargs: dict[str, Any]) -> None:
    compare(env_id, steps=40, **kwargs)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "told"),
    [
        ("Ant-v5", {"healthy_z_range": 3}, "healthy_z_range: expected"),
        ("Ant-v5", {"xml_file": "./no_such.xml"}, "no file"),
        ("HalfCheetah-v5", {"frame_skip": 0}, "frame_skip: expected an int of at least 1"),
        ("HalfCheetah-v5", {"frame_stack": True}, "frame_stack: expected"),
        ("HalfCheetah-v5", {"render_mode": "human"}, "render_mode: expected one of"),
        ("HalfCheetah-v5", {"version": 3}, "version: expected 4 or 5"),
    ],
)
def test_options_that_make_no_sense(env_id: str, kwargs: dict[str, Any], told: str) -> None:
    import shoal

    with pytest.raises(EnvConstructError, match=told):
        shoal.make_pool(env_id, 1, engine="native", env_kwargs=kwargs)


def test_simulations_do_not_depend_on_threads_or_the_other_envs() -> None:
    import shoal

    rows = []
    for count, threads in ((1, 1), (5, 2)):
        with shoal.make_pool("Ant-v5", count, num_workers=threads) as pool:
            pool.reset(seed=7)
            rng = np.random.default_rng(0)
            for _ in range(10):
                obs = pool.step(np.tile(rng.uniform(-1, 1, 8).astype(np.float32), (count, 1))).obs
            rows.append(obs[0])
    np.testing.assert_array_equal(*rows)
