"""Games in pools: every door and face, and the law that an env does not notice the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("ale_py")
import shoal
from shoal.envs.atari import TASKS
from shoal.envs.atari.console import roms
from shoal.envs.atari.env import AtariEnv
from shoal.errors import ActionError, ArgumentError

if TYPE_CHECKING:
    from shoal.batch import Batch

SMALL: dict[str, Any] = {"img_height": 20, "img_width": 20, "noop_max": 5}
NUM_ENVS = 4


# ---------------------------------------------------------------------- ids


def test_every_id_has_its_game() -> None:
    assert len(TASKS) == 104
    assert {task.kwargs["task"] for task in TASKS.values()} <= set(roms.get_all_rom_ids())
    assert set(TASKS) <= set(shoal.list_all_envs())


def test_a_name_that_is_nearly_right() -> None:
    with pytest.raises(ArgumentError, match="did you mean 'Pong-v5'"):
        shoal.make_gymnasium("Pnog-v5")
    with pytest.raises(ArgumentError, match="Pong"):
        shoal.make_vec("ALE/Pnog-v5", 1)


def test_envpools_config() -> None:
    spec = shoal.make_spec("MsPacman-v5", num_envs=3, frame_skip=2)
    config = spec.config._asdict()
    told = {
        "stack_num": 4, "frame_skip": 2, "noop_max": 30, "zero_discount_on_life_loss": False, "episodic_life": False,
        "reward_clip": False, "use_fire_reset": True, "img_height": 84, "img_width": 84, "task": "ms_pacman",
        "mode": -1, "difficulty": -1, "full_action_space": False, "repeat_action_probability": 0.0,
        "use_inter_area_resize": True, "gray_scale": True, "max_episode_steps": 27000, "num_envs": 3,
    }  # fmt: skip
    assert config | told == config
    assert spec.observation_space.shape == (4, 84, 84)
    assert spec.action_space.n == 9
    arrays = {name: (array.shape, array.dtype) for name, array in spec.state_array_spec.items()}
    assert arrays["info:ram"] == ([128], np.uint8)
    assert arrays["info:lives"] == arrays["info:terminated"] == ([-1], np.int32)
    assert arrays["info:reward"] == ([-1], np.float32)
    assert spec.observation_spec().terminated.num_values == 2
    with pytest.raises(TypeError, match="frame_skip"):
        shoal.make_gymnasium("Pong-v5", frame_skp=2)


@pytest.mark.slow
def test_gymnasiums_ids_are_gymnasiums_envs() -> None:
    import gymnasium as gym

    with shoal.make_vec("ALE/Pong-v5", 1, engine="serial") as ours:
        theirs = gym.make("ALE/Pong-v5")
        np.testing.assert_array_equal(ours.reset(seed=4)[0][0], theirs.reset(seed=4)[0])
        for action in (2, 3, 0, 2, 5, 4):
            obs, reward, *_, info = theirs.step(action)
            own, own_reward, *_, own_info = ours.step(np.array([action]))
            np.testing.assert_array_equal(own[0], obs)
            assert (own_reward[0], own_info["lives"][0]) == (reward, info["lives"])
        theirs.close()


# ---------------------------------------------------------------------- faces


def test_envpools_gymnasium_dialect() -> None:
    with shoal.make_gymnasium("Pong-v5", num_envs=2, engine="serial") as envs:
        obs, info = envs.reset()
        assert (obs.shape, obs.dtype) == ((2, 4, 84, 84), np.uint8)
        kinds = {"lives": np.int32, "reward": np.float32, "terminated": np.int32, "ram": np.uint8}
        assert {name: info[name].dtype for name in kinds} == kinds
        assert info["ram"].shape == (2, 128)
        obs, reward, *_, info = envs.step(np.array([1, 2]))
        assert reward.dtype == np.float32
        assert info["elapsed_step"].tolist() == [1, 1]
        with pytest.raises(ActionError, match="row 1"):
            envs.step(np.array([0, 6]))
        assert envs.step(np.array([0, 5]))[-1]["elapsed_step"].tolist() == [2, 2]  # nothing had moved


@pytest.mark.slow
def test_no_idle_frames_at_all() -> None:
    with shoal.make_gymnasium("Pong-v5", engine="serial", noop_max=0) as envs:
        assert envs.reset()[0].any()


def lose_a_life(envs: Any) -> Any:
    envs.reset()
    for k in range(600):
        row = envs.step(np.array([1 if k % 5 == 0 else 0], np.int32))
        lives = row.observation.lives if hasattr(row, "observation") else row[-1]["lives"]
        if lives[0] == 4:
            return row
    raise AssertionError("nobody lost a life")


@pytest.mark.parametrize("autoreset", ["next_step", pytest.param("same_step", marks=pytest.mark.slow)])
def test_lives_as_episodes(autoreset: str) -> None:
    options = {"episodic_life": True, "engine": "serial", "autoreset": autoreset, **SMALL}
    with shoal.make_gymnasium("Breakout-v5", **options) as envs:
        _, _, terminated, _, info = lose_a_life(envs)
        assert terminated[0]
        if autoreset == "next_step":
            *_, terminated, _, info = envs.step(np.array([0]))
            assert not terminated[0]
        assert (info["lives"][0], info["terminated"][0]) == (4, 0)
        assert info["elapsed_step"][0] > 0  # the game goes on
        _, info = envs.reset()
        assert (info["lives"][0], info["elapsed_step"][0]) == (5, 0)


@pytest.mark.slow
def test_the_discount_of_a_lost_life() -> None:
    with shoal.make_dm("Breakout-v5", zero_discount_on_life_loss=True, engine="serial", **SMALL) as envs:
        fields = ("env_id", "players", "obs", "lives", "reward", "terminated", "ram")
        assert envs.reset().observation._fields == envs.observation_spec()._fields == fields
        lost = lose_a_life(envs)
        assert (lost.discount[0], lost.step_type[0]) == (0.0, 1)
        assert envs.step(np.array([0], np.int32)).discount[0] == 1.0


@pytest.mark.slow
def test_render() -> None:
    with shoal.make_gymnasium("Pong-v5", num_envs=2, engine="serial", render_mode="rgb_array") as envs:
        envs.reset()
        assert envs.render([0, 1]).shape == (2, 210, 160, 3)


def test_the_limit_can_be_chosen() -> None:
    with shoal.make_gymnasium("Pong-v5", engine="serial", max_episode_steps=3, **SMALL) as envs:
        envs.reset()
        assert [bool(envs.step(np.array([0]))[3][0]) for _ in range(4)] == [False, False, True, False]


# ---------------------------------------------------------------------- the law


def alone(seed: int, actions: list[int], autoreset: str, **options: Any) -> list[Any]:
    """The rows of one env in a pool of its own."""
    with shoal.make_pool("Breakout-v5", 1, engine="serial", autoreset=autoreset, env_kwargs=options) as pool:
        rows = [row_of(pool.reset(seed=[seed]), 0)]
        for action in actions:
            rows.append(row_of(pool.step(np.array([action])), 0))
            if autoreset == "disabled" and (rows[-1][2] or rows[-1][3]):
                rows.append(row_of(pool.reset(), 0))
        return rows


def row_of(batch: Batch, k: int) -> tuple[Any, ...]:
    final = batch.finals[k][0].tobytes() if k in batch.finals else None
    told = {name: column[k].tolist() for name, column in batch.fields.items()}
    flags = bool(batch.terminated[k]), bool(batch.truncated[k]), bool(batch.first[k])
    return batch.obs[k].tobytes(), float(batch.reward[k]), *flags, int(batch.elapsed_step[k]), told, final


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_env_does_not_notice_the_others(autoreset: str, is_async: bool) -> None:
    options = {"episodic_life": True, "repeat_action_probability": 0.25, **SMALL}
    seeds = [7, 3, 2**40, 11]
    rng = np.random.default_rng(1)
    told: list[list[int]] = [[] for _ in seeds]
    seen: list[list[Any]] = [[] for _ in seeds]

    def take(batch: Batch) -> list[int]:
        for k, i in enumerate(batch.env_id.tolist()):
            seen[i].append(row_of(batch, k))
        return [i for k, i in enumerate(batch.env_id.tolist()) if batch.terminated[k] or batch.truncated[k]]

    with shoal.make_pool(
        "Breakout-v5",
        NUM_ENVS,
        engine="process",
        num_workers=2,
        batch_size=2 if is_async else None,
        autoreset=autoreset,
        env_kwargs=options,
    ) as pool:
        take(pool.reset(seed=seeds))
        for _ in range(90):
            # Some of them at a time, in any order.
            ids = rng.permutation(NUM_ENVS)[: 2 if is_async else rng.integers(1, NUM_ENVS + 1)]
            actions = rng.integers(0, 4, len(ids))
            for i, action in zip(ids.tolist(), actions.tolist(), strict=True):
                told[i].append(action)
            ended = take(pool.step(actions, ids))
            if autoreset == "disabled" and ended:
                take(pool.reset(env_id=ended))
    assert any(row[2] for rows in seen for row in rows), "no episode has ended, so little was tested"
    for i, seed in enumerate(seeds):
        assert seen[i] == alone(seed, told[i], autoreset, **options), f"env {i}"


@pytest.mark.slow
def test_a_pool_of_envs_with_options_of_their_own() -> None:
    kwargs = [{"task": "pong", **SMALL}, {"task": "pong", "frame_skip": 2, **SMALL}]
    with shoal.make_pool(AtariEnv, 2, engine="serial", env_kwargs=kwargs) as pool:
        pool.reset(seed=1)
        obs = pool.step(np.array([2, 2])).obs
        assert (obs[0] != obs[1]).any()
