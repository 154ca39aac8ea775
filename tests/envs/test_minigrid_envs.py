"""minigrid's envs under EnvPool's ids: the same rows as minigrid's own, in EnvPool's structure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("minigrid")
from rows import pool_rows, single_rows

import shoal
from shoal.envs.minigrid import TASKS, decode_mission
from shoal.envs.minigrid.env import GridMaker
from shoal.errors import ArgumentError, BackendUnavailable, EnvResetError, WrongType
from shoal.registry import find

EMPTY = "MiniGrid-Empty-5x5-v0"
KEY = "MiniGrid-DoorKey-5x5-v0"
MAZES = [task_id for task_id in TASKS if "-WFC-" in task_id]
FORWARD, RIGHT = 2, 1
SHORTEST = [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD]  # to the goal of the empty room

Info = dict[str, Any]


def own(task_id: str, **options: Any) -> Any:
    return gym.make(task_id, disable_env_checker=True, **options).unwrapped


def assert_same_rows(pool: list[Info], single: list[Info]) -> None:
    for row, twin in zip(pool, single, strict=True):
        assert decode_mission(row["obs"]["mission"]) == twin["obs"]["mission"]
        assert row["obs"]["direction"] == twin["obs"]["direction"]
        np.testing.assert_array_equal(row["obs"]["image"], twin["obs"]["image"])
        assert [row[k] for k in ("reward", "terminated", "truncated")] == [
            twin[k] for k in ("reward", "terminated", "truncated")
        ]


def play(task_id: str, engine: str, autoreset: str, steps: int = 60, limit: int = 25) -> bool:
    """Compare a pool with minigrid's own envs; whether an episode has ended meanwhile."""
    options = {"num_envs": 3, "seed": 7, "max_episode_steps": limit}
    envs = shoal.make_gymnasium(task_id, engine=engine, autoreset=autoreset, **options)
    actions = np.random.default_rng(1).integers(0, envs.single_action_space.n, (steps, 3))
    twins = single_rows(lambda: own(task_id, max_steps=limit), 3, 7, actions, autoreset)
    has_ended = False
    for rows, others in zip(pool_rows(envs, actions), twins, strict=True):
        assert_same_rows(rows, others)
        has_ended |= any(row["terminated"] or row["truncated"] for row in rows)
    return has_ended


# ---------------------------------------------------------------------- ids


def test_minigrid_has_every_id_with_that_limit() -> None:
    assert len(TASKS) == 177
    assert set(TASKS) <= set(shoal.list_all_envs())
    for task_id, limit in TASKS.items():
        if task_id in MAZES:
            continue
        env = GridMaker(task_id)()
        assert limit in (None, env.unwrapped.max_steps), task_id
        assert env.action_space.n == (3 if "Dynamic" in task_id else 7), task_id


@pytest.mark.parametrize("task_id", MAZES)
def test_mazes_say_what_they_lack(task_id: str) -> None:
    from minigrid.envs import wfc

    if Path(wfc.__file__).with_name("patterns").is_dir():
        pytest.skip("this minigrid has its patterns")
    for make in (shoal.make_spec, shoal.make_gymnasium):
        with pytest.raises(BackendUnavailable, match=task_id):
            make(task_id)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)  # type: ignore[arg-type]
    monkeypatch.delitem(gym.registry, KEY)
    assert KEY in shoal.list_all_envs()
    for make in (shoal.make_gymnasium, shoal.make_vec):
        with pytest.raises(BackendUnavailable, match=r"shoal\[minigrid\]"):
            make(KEY)


@pytest.mark.slow
def test_no_library_is_imported_for_the_list_of_ids() -> None:
    script = "import sys, shoal; shoal.list_all_envs(); shoal.make_spec('CartPole-v1').config; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "shoal.registry" in loaded
    assert {"minigrid", "Box2D", "pygame", "shoal.envs.minigrid.env"}.isdisjoint(loaded)


def test_an_env_that_somebody_registered_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    other = gym.envs.registration.EnvSpec(KEY, "gymnasium.envs.classic_control:CartPoleEnv")
    monkeypatch.setitem(gym.registry, KEY, other)
    assert find(KEY).env == other


def test_gymnasiums_door_opens_minigrids_own_env() -> None:
    with shoal.make_vec(KEY, 2, engine="serial") as envs:
        obs, _ = envs.reset(seed=1)
    assert obs["mission"] == ("use the key to open the door and then get to the goal",) * 2


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize(
    "task_id",
    [KEY, "MiniGrid-Dynamic-Obstacles-6x6-v0", "MiniGrid-PutNear-6x6-N2-v0", "BabyAI-GoToSeqS5R2-v0"],
)
def test_rows_are_minigrids(task_id: str, autoreset: str) -> None:
    assert play(task_id, "serial", autoreset)


def test_without_autoreset() -> None:
    assert not play(KEY, "serial", "disabled", steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("task_id", [KEY, "BabyAI-GoToLocal-v0"])
def test_rows_of_processes(task_id: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert play(task_id, "process", "next_step")
    assert "Overriding environment" not in capfd.readouterr().err


def test_the_time_limit_of_a_level_depends_on_its_mission() -> None:
    task_id = "BabyAI-GoToSeqS5R2-v0"
    twin = own(task_id)
    _, limit = twin.reset(seed=5), twin.max_steps
    with shoal.make_gymnasium(task_id, seed=5) as envs:
        assert envs.config["max_episode_steps"] == 2**31 - 1
        envs.reset()
        for step in range(1, limit + 1):
            *_, truncated, _ = envs.step(np.array([6]))
            assert truncated[0] == (step == limit)


def test_the_reward_is_measured_by_the_time_limit() -> None:
    with shoal.make_gymnasium(EMPTY, max_episode_steps=7) as envs:
        envs.reset()
        rows = [envs.step(np.array([action]))[1:4] for action in SHORTEST]
    assert [float(reward[0]) for reward, _, _ in rows[:-1]] == [0.0] * 4
    reward, terminated, truncated = rows[-1]
    assert reward[0] == np.float32(1 - 0.9 * 5 / 7)
    assert (terminated[0], truncated[0]) == (True, False)


# ---------------------------------------------------------------------- structure


@pytest.mark.parametrize(("task_id", "size"), [(KEY, 96), ("BabyAI-GoToObj-v0", 512)])
@pytest.mark.parametrize("env_type", ["gymnasium", "gym", "dm"])
def test_structure_in_every_dialect(env_type: str, task_id: str, size: int) -> None:
    with shoal.make(task_id, env_type, num_envs=2, engine="serial") as envs:
        envs.reset()
        result = envs.step(np.zeros(2, int))
        if env_type == "dm":
            seen = result.observation._asdict()
            assert list(seen) == ["env_id", "players", "direction", "image", "mission", "agent_pos", "mission_id"]
            specs = envs.observation_spec()
            assert (specs.direction.num_values, specs.direction.dtype) == (4, np.int32)
            assert (specs.mission.shape, specs.mission.dtype) == ((size,), np.uint8)
            assert (specs.image.shape, specs.agent_pos.shape) == ((7, 7, 3), (2,))
        else:
            seen = {**result[0], **result[-1]}
            assert list(result[0]) == ["direction", "image", "mission"]
            assert envs.spec.observation_space == gym.spaces.Dict(
                direction=gym.spaces.Discrete(4),
                image=gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
                mission=gym.spaces.Box(0, 255, (size,), np.uint8),
            )
    forms = {name: (seen[name].dtype, seen[name].shape) for name in ("direction", "image", "mission")}
    assert forms == {
        "direction": (np.int32, (2,)),
        "image": (np.uint8, (2, 7, 7, 3)),
        "mission": (np.uint8, (2, size)),
    }
    assert (seen["agent_pos"].dtype, seen["agent_pos"].shape) == (np.int32, (2, 2))
    assert (seen["mission_id"].dtype, seen["mission_id"].shape) == (np.int32, (2,))


def test_where_the_agent_is_and_what_it_is_to_do() -> None:
    with shoal.make_gymnasium(EMPTY) as envs:
        places = [envs.reset()[1]["agent_pos"][0].tolist()]
        places += [envs.step(np.array([action]))[4]["agent_pos"][0].tolist() for action in SHORTEST]
    assert places == [[1, 1], [2, 1], [3, 1], [3, 1], [3, 2], [3, 3]]
    with shoal.make_gymnasium("BabyAI-GoToObj-v0") as envs:
        assert envs.reset()[1]["mission_id"].tolist() == [-1]


def test_last_observations_are_arrays_too() -> None:
    with shoal.make_gymnasium(EMPTY, autoreset="same_step") as envs:
        envs.reset()
        for action in SHORTEST:
            obs, _, terminated, _, info = envs.step(np.array([action]))
    assert terminated.all()
    assert decode_mission(info["final_obs"]["mission"][0]) == decode_mission(obs["mission"][0])
    assert info["final_info"]["agent_pos"].tolist() == [[3, 3]]
    assert info["agent_pos"].tolist() == [[1, 1]]


# ---------------------------------------------------------------------- options


def test_options_are_those_of_minigrids_class() -> None:
    config = shoal.make_spec(EMPTY).config
    assert (config.size, config.agent_view_size, config.mission_bytes, config.max_episode_steps) == (5, 7, 96, 100)
    with shoal.make_gymnasium(EMPTY, size=8, agent_view_size=5, render_mode="rgb_array") as envs:
        assert envs.reset()[0]["image"].shape == (1, 5, 5, 3)
        assert envs.render().shape == (1, 256, 256, 3)
    with pytest.raises(TypeError, match="did you mean size"):
        shoal.make_gymnasium(EMPTY, sizes=8)


@pytest.mark.parametrize(
    ("task_id", "settled"), [("MiniGrid-Empty-5x5-v0", "see_through_walls"), ("BabyAI-GoToObj-v0", "num_rows")]
)
def test_what_the_id_settles_is_no_option(task_id: str, settled: str) -> None:
    assert settled not in shoal.make_spec(task_id).settings.config
    with pytest.raises(WrongType, match=f"{settled} is settled by the id"):
        GridMaker(task_id)(**{settled: 1})


def test_room_for_the_mission() -> None:
    with shoal.make_gymnasium(KEY, mission_bytes=53) as envs:
        assert envs.reset()[0]["mission"].shape == (1, 53)
    with shoal.make_gymnasium(KEY, mission_bytes=52) as envs, pytest.raises(EnvResetError, match="takes 53 bytes"):
        envs.reset()
    with pytest.raises(ArgumentError, match="mission_bytes"):
        GridMaker(KEY)(mission_bytes=0)


def test_an_id_of_ones_own() -> None:
    shoal.register("Test/Room-v0", EMPTY, size=6)
    with shoal.make_gymnasium("Test/Room-v0") as envs:
        assert envs.config["size"] == 6
        envs.reset()
        assert all(not envs.step(np.array([action]))[2].any() for action in SHORTEST)
