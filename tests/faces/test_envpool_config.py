"""What EnvPool's front doors take, and what they say a pool will be like before there is one."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal import registry
from shoal.envs.catch import Catch
from shoal.errors import ArgumentError, BackendUnavailable, WrongType
from shoal.testing import CountingEnv, DictTupleEnv, SampleEnv, TextEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_LIMIT = 2**31 - 1


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it; one env is in Gymnasium's registry."""
    monkeypatch.setattr(registry, "_registered", {})
    spec = gym.envs.registration.EnvSpec(
        "Count-v0", "shoal.testing:CountingEnv", kwargs={"tag": 8}, max_episode_steps=6
    )
    monkeypatch.setitem(gym.registry, "Count-v0", spec)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """``shoal.make`` on the serial engine, with every pool closed in the end."""
    made: list[Any] = []

    def make_one(task_id: Any = "CartPole-v1", env_type: str = "gymnasium", **config: Any) -> Any:
        made.append(shoal.make(task_id, env_type, **{"engine": "serial", **config}))
        return made[-1]

    yield make_one
    for pool in made:
        pool.close()
    made.clear()


# ---------------------------------------------------------------------- which class


@pytest.mark.parametrize("env_type", ["gym", "gymnasium", "dm"])
def test_shortcuts_make_the_same_class(make: Any, env_type: str) -> None:
    shortcut = {"gym": shoal.make_gym, "gymnasium": shoal.make_gymnasium, "dm": shoal.make_dm}[env_type]
    name = {"gym": "Gym", "gymnasium": "Gymnasium", "dm": "DM"}[env_type]
    with shortcut("CartPole-v1", engine="serial") as pool:
        assert type(pool) is type(make(env_type=env_type))
        assert type(pool) is type(make("phys2d/CartPole-v0", env_type))
        assert type(pool).__name__ == f"CartPole{name}EnvPool"


def test_gymnasium_is_the_default_dialect() -> None:
    with shoal.make("CartPole-v1", engine="serial") as pool:
        assert isinstance(pool, gym.vector.VectorEnv)


def test_other_dialects_are_refused() -> None:
    with pytest.raises(AssertionError):
        shoal.make("CartPole-v1", "nope")
    with pytest.raises(ArgumentError, match=r"env_type.*'dm', 'gym', 'gymnasium'.*'nope'"):
        shoal.make("CartPole-v1", "nope")


@pytest.mark.parametrize("door", [shoal.make, shoal.make_spec])
def test_an_unknown_task_is_named(door: Any) -> None:
    with pytest.raises(ArgumentError, match=r"NoSuchEnv-v0.*list_all_envs"):
        door("NoSuchEnv-v0")


def test_dm_without_dm_env_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['dm_env'] = None\n"
        "import shoal\n"
        "shoal.make('CartPole-v1', 'gym', engine='serial').close()\n"
        "try: shoal.make_dm('CartPole-v1', engine='serial')\n"
        "except shoal.errors.BackendUnavailable as error: print(error)\n"
        "try: shoal.make_spec('CartPole-v1').action_spec()\n"
        "except shoal.errors.BackendUnavailable as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["dm_env is not installed: pip install 'shoal[dm]'"] * 2
    assert issubclass(BackendUnavailable, ImportError)


@pytest.mark.parametrize(
    "statement", ["from shoal.minigrid import decode_mission", "import shoal.minigrid", "from shoal import minigrid"]
)
def test_envpools_modules_can_be_imported_by_name(statement: str) -> None:
    script = f"{statement}; import shoal; print(shoal.minigrid.decode_mission([104, 105, 0]), shoal.minigrid.__name__)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["hi", "shoal.minigrid"]


# ---------------------------------------------------------------------- config


def test_defaults_are_envpools_and_in_its_order(make: Any) -> None:
    config = make().config
    assert list(config.items())[:5] == [
        ("num_envs", 1),
        ("batch_size", 1),
        ("num_threads", 0),
        ("max_num_players", 1),
        ("thread_affinity_offset", -1),
    ]
    assert list(config)[5:11] == [
        "base_path",
        "seed",
        "env_seed",
        "gym_reset_return_info",
        "max_episode_steps",
        "reward_threshold",
    ]
    assert (config["seed"], config["env_seed"], config["gym_reset_return_info"]) == (42, [], True)
    assert (config["max_episode_steps"], config["reward_threshold"]) == (500, 475.0)
    assert os.path.isdir(config["base_path"])
    assert config["autoreset"] == "next_step"


def test_the_config_is_a_dict_of_the_callers(make: Any) -> None:
    pool = make(num_envs=2)
    pool.config["num_envs"] = 7
    assert pool.config["num_envs"] == 2


def test_repr_shows_the_class_and_the_whole_config(make: Any) -> None:
    pool = make(num_envs=3)
    assert repr(pool).startswith("CartPoleGymnasiumEnvPool(num_envs=3, batch_size=3, num_threads=0, ")
    assert str(pool) == repr(pool)
    assert len(pool) == 3
    assert (pool.all_env_ids.dtype, pool.all_env_ids.tolist()) == (np.int32, [0, 1, 2])


@pytest.mark.parametrize(
    "config",
    [
        {"num_envs": 0},
        {"num_envs": -3},
        {"num_envs": 2, "batch_size": 3},
        {"num_envs": 2, "batch_size": -1},
        {"batch_size": 2},
        {"num_threads": -1},
        {"max_num_players": 0},
        {"thread_affinity_offset": -2},
        {"max_episode_steps": -1},
        {"seed": 2**31},
        {"seed": -(2**31) - 1},
        {"num_envs": 2, "seed": [5]},
        {"num_envs": 2, "seed": np.zeros((1, 2), int)},
        {"num_envs": 2, "seed": [1, 2**31]},
        {"num_envs": 2, "env_seed": [1]},
        {"seed": np.array(5)},
        {"env_seed": np.array(5)},
        {"num_envs": 2, "env_seed": [1, 2], "seed": [1, 2]},
        {"autoreset": "never"},
        {"engine": "steam"},
        {"gym_reset_return_info": False},
        {"from_pixels": True},
        {"render_mode": "ansi"},
        {"render_env_id": 1},
        {"render_env_id": -1},
        {"render_width": -1},
        {"render_camera_id": "above"},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(make: Any, config: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError) as caught:
        make(**config)
    assert isinstance(caught.value, ValueError)
    # What EnvPool asserts is an AssertionError here too.
    is_asserted = config.keys() & {"num_envs", "batch_size", "max_num_players", "seed", "env_seed"}
    assert isinstance(caught.value, AssertionError) or not is_asserted


def test_only_the_classic_dialect_can_do_without_infos() -> None:
    with pytest.raises(ArgumentError, match="gym_reset_return_info: only env_type='gym'"):
        shoal.make_dm("CartPole-v1", gym_reset_return_info=False)
    assert shoal.make_spec("CartPole-v1", gym_reset_return_info=False).config.gym_reset_return_info is False


@pytest.mark.parametrize("kind", [KeyError, AssertionError])
def test_an_unknown_task_is_an_error_of_envpools_kinds_too(kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^no task is called 'Nope'"):
        shoal.make_spec("Nope")


def test_a_lake_has_a_size(make: Any) -> None:
    assert make("FrozenLake-v1", size=8).observation_space == spaces.Discrete(64)
    with pytest.raises(ArgumentError, match="size: expected one of"):
        make("FrozenLake-v1", size=5)


def test_gymnasiums_functional_ids_are_those_of_the_compiled_envs(make: Any) -> None:
    assert make("phys2d/Pendulum-v0").config["version"] == 0
    assert shoal.make_spec("phys2d/Pendulum-v0").task.is_compiled


@pytest.mark.parametrize(
    "config",
    [
        {"num_envs": 2.0},
        {"num_envs": "2"},
        {"num_envs": None},
        {"seed": 1.5},
        {"seed": "12"},
        {"num_envs": 1, "seed": [1.5]},
    ],
    ids=str,
)
def test_numbers_of_the_wrong_kind_are_type_errors(make: Any, config: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="expected an int") as caught:
        make(**config)
    assert isinstance(caught.value, ArgumentError)


@pytest.mark.parametrize(
    "config",
    [
        {"env_seed": 3},
        {"env_seed": "12"},
        {"env_seed": None},
        {"reward_threshold": "a"},
        {"base_path": 3},
        {"base_path": None},
        {"nope": 1},
    ],
    ids=str,
)
def test_what_is_no_value_at_all_is_of_both_kinds(make: Any, config: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(config))) as caught:
        make(**config)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("path", ["assets", Path("assets")], ids=repr)
def test_a_path_is_shown_as_a_string(path: Any) -> None:
    assert shoal.make_spec("CartPole-v1", base_path=path).config.base_path == "assets"


@pytest.mark.parametrize("door", [shoal.make, shoal.make_gym, shoal.make_dm, shoal.make_spec])
def test_an_unknown_key_is_a_type_error_that_knows_better(door: Any) -> None:
    with pytest.raises(TypeError, match=r"CartPole-v1.*'num_env'.*num_envs"):
        door("CartPole-v1", num_env=3)
    with pytest.raises(TypeError, match=r"Count-v0.*'tags'.*did you mean tag"):
        door("Count-v0", tags=3)


def test_a_batch_size_without_num_envs_is_no_trouble(make: Any) -> None:
    assert make(batch_size=1).config["batch_size"] == 1
    assert make(batch_size=0).config["batch_size"] == 1
    assert make(num_envs=np.int64(3), batch_size=0).config["batch_size"] == 3


def test_limit_and_threshold_replace_the_tasks_own(make: Any) -> None:
    pool = make(max_episode_steps=2, reward_threshold=666)
    assert pool.config["reward_threshold"] == pool.spec.reward_threshold == 666.0
    pool.reset()
    flags = [bool(pool.step(np.zeros(1, int))[3][0]) for _ in range(4)]
    assert flags == [False, True, False, False]


def test_a_limit_of_none_lets_episodes_run(make: Any) -> None:
    for limit in (None, NO_LIMIT):
        pool = make("Pendulum-v1", max_episode_steps=limit)
        assert pool.config["max_episode_steps"] == NO_LIMIT
        pool.reset()
        assert not any(pool.step(np.zeros((1, 1), np.float32))[3][0] for _ in range(210))


def test_a_limit_of_zero_is_a_limit_of_one(make: Any) -> None:
    pool = make(max_episode_steps=0)
    pool.reset()
    assert pool.step(np.zeros(1, int))[3].tolist() == [True]


def test_envs_without_a_limit_say_so() -> None:
    assert shoal.make_spec("Catch-v0").config.max_episode_steps == NO_LIMIT
    assert shoal.make_spec("Catch-v0").reward_threshold is None


def test_options_of_the_env_are_config(make: Any) -> None:
    pool = make("Catch-v0", height=4, width=3)
    assert (pool.config["height"], pool.config["width"]) == (4, 3)
    assert pool.observation_space.shape == (4, 3)
    assert shoal.make_spec("Catch-v0").config.height == 10


def test_a_whole_number_for_a_float_is_a_float() -> None:
    class Light(CountingEnv):
        def __init__(self, weight: float = 0.5) -> None:
            super().__init__()

    assert isinstance(shoal.make_spec(Light, weight=-9).config.weight, float)
    assert shoal.make_spec(Light, weight=True).config.weight is True


def test_zero_and_one_for_a_bool_are_bools() -> None:
    spec = shoal.make_spec("Blackjack-v1", natural=1, sab=0)
    assert (spec.config.natural, spec.config.sab) == (True, False)
    assert isinstance(spec.config.natural, bool)


@pytest.mark.parametrize(
    ("task_id", "option"),
    [
        ("Pong-v5", {"gray_scale": "no"}),
        ("Pong-v5", {"episodic_life": "x"}),
        ("Pong-v5", {"frame_skip": 4.0}),
        ("HalfCheetah-v4", {"ctrl_cost_weight": "a"}),
        ("HalfCheetah-v4", {"reset_noise_scale": None}),
        ("HalfCheetah-v4", {"frame_skip": 2.5}),
        ("Ant-v4", {"healthy_z_range": ("a", 1.0)}),
        ("WalkerWalk-v1", {"frame_skip": 2.5}),
        ("DogRun-v1", {"frame_skip": 2.5}),
        ("Catch-v0", {"height": 6.5}),
        ("CliffWalking-v1", {"is_slippery": "x"}),
        ("FrozenLake-v1", {"size": 8.0}),
        ("Blackjack-v1", {"natural": "x"}),
        ("LunarLander-v3", {"gravity": "a"}),
    ],
    ids=str,
)
def test_options_of_the_wrong_type_are_type_errors(make: Any, task_id: str, option: dict[str, Any]) -> None:
    for library in ("ale_py", "mujoco.batch", "dm_control", "Box2D"):
        pytest.importorskip(library)
    with pytest.raises(TypeError, match=f"{task_id}: {next(iter(option))}: expected") as caught:
        make(task_id, engine="auto", **option)
    assert isinstance(caught.value, ArgumentError)


@pytest.mark.parametrize(
    ("task_id", "option", "shown"),
    [
        ("Pong-v5", {"reward_clip": 2}, True),
        ("Pong-v5", {"gray_scale": np.False_}, False),
        ("Pong-v5", {"stack_num": np.int64(3)}, 3),
        ("Blackjack-v1", {"natural": 2}, True),
        ("HalfCheetah-v4", {"ctrl_cost_weight": np.float32(0.5)}, 0.5),
        ("HalfCheetah-v4", {"ctrl_cost_weight": True}, 1.0),
        ("Ant-v4", {"healthy_z_min": 0}, 0.0),
        ("Reacher-v5", {"ctrl_cost_weight": 2}, 2.0),
        ("Ant-v5", {"main_body": "torso"}, "torso"),
    ],
    ids=str,
)
def test_options_have_the_types_that_the_env_declares(task_id: str, option: dict[str, Any], shown: Any) -> None:
    for library in ("ale_py", "mujoco.batch"):
        pytest.importorskip(library)
    value = shoal.make_spec(task_id, **option).config._asdict()[next(iter(option))]
    assert (type(value), value) == (type(shown), shown)


def test_an_env_of_the_users_judges_its_options_itself() -> None:
    class Loose(CountingEnv):
        def __init__(self, rows: int = 3, *, is_wide: bool = False) -> None:
            super().__init__()

    class Small(Catch):
        def __init__(self, *, height: Any = "small") -> None:
            super().__init__(height=4 if height == "small" else height)

    assert shoal.make_spec(Loose, rows=2.5, is_wide="very").config[-2:] == (2.5, "very")
    assert shoal.make_spec(Small, height="small").observation_space.shape == (4, 5)


def test_the_class_of_an_error_reaches_the_caller_from_the_env(make: Any) -> None:
    class Picky(CountingEnv):
        def __init__(self) -> None:
            raise WrongType("it takes nothing")

    with pytest.raises(WrongType, match="Picky: it takes nothing"):
        make(Picky)


@pytest.mark.parametrize(
    ("task_id", "name", "shown"),
    [
        ("FrozenLake-v1", "size", 4),
        ("FrozenLake8x8-v1", "size", 8),
        ("Walker2d-v3", "xml_file", "walker2d.xml"),
        ("Walker2d-v4", "xml_file", "walker2d.xml"),
        ("Walker2d-v5", "xml_file", "walker2d_v5.xml"),
        ("Pusher-v2", "xml_file", "pusher.xml"),
        ("Pusher-v4", "xml_file", "pusher.xml"),
        ("Pusher-v5", "xml_file", "pusher_v5.xml"),
        ("DogRun-v1", "frame_skip", 3),
        ("QuadrupedRun-v1", "frame_skip", 4),
        ("WalkerWalk-v1", "frame_skip", 10),
    ],
)
def test_the_config_shows_what_the_env_settles_itself(task_id: str, name: str, shown: Any) -> None:
    for library in ("mujoco.batch", "dm_control"):
        pytest.importorskip(library)
    for given in ({}, {name: None}, {"engine": "serial"}):
        assert shoal.make_spec(task_id, **given).config._asdict()[name] == shown


def test_the_size_of_a_lake_is_that_of_its_map() -> None:
    assert shoal.make_spec("FrozenLake-v1", map_name="8x8").config.size == 8
    assert shoal.make_spec("FrozenLake-v1", desc=["SFG"]).config.size is None


class OpenMinded(CountingEnv):
    """Takes any options."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        return obs, {**info, "asked": len(options or ())}


def test_options_that_a_reset_does_not_know_are_refused_where_that_is_known(make: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\['bogus'\] are not known; there are \['reset_mask', 'low', 'high'\]"):
        make("CartPole-v1").reset(options={"bogus": 1})
    assert make(OpenMinded, num_envs=2).reset(options={"bogus": 1})[1]["asked"].tolist() == [1, 1]


def test_options_of_a_python_env_reach_it(make: Any) -> None:
    shoal.register("Mine-v0", CountingEnv, tag=4, episode_length=3)
    pool = make("Mine-v0", num_envs=2, infos=True)
    assert (pool.config["tag"], pool.config["infos"], pool.config["episode_length"]) == (4, True, 3)
    assert pool.pool.get_attr("tag") == (4, 4)
    with pytest.raises(TypeError, match=r"'tags'.*did you mean tag"):
        make("Mine-v0", tags=3)


def test_a_registration_of_gymnasiums_has_options_and_a_limit(make: Any) -> None:
    pool = make("Count-v0", num_envs=2, episode_length=99)
    assert type(pool).__name__ == "CountGymnasiumEnvPool"
    assert (pool.config["tag"], pool.config["ending"], pool.config["max_episode_steps"]) == (8, "random", 6)
    assert pool.pool.get_attr("episode_length") == (99, 99)
    pool.reset()
    assert [pool.step([0, 0])[3].tolist() for _ in range(6)][4:] == [[False, False], [True, True]]
    assert make("Count-v0", tag=1, max_episode_steps=2).pool.get_attr("tag") == (1,)


def test_an_env_class_needs_no_name(make: Any) -> None:
    pool = make(CountingEnv, num_envs=2, tag=9)
    assert type(pool).__name__ == "CountingEnvGymnasiumEnvPool"
    assert pool.pool.get_attr("tag") == (9, 9)


def test_what_the_env_refuses_is_reported_with_the_env(make: Any) -> None:
    with pytest.raises(shoal.errors.EnvConstructError, match="episode_length must be at least 1"):
        make(CountingEnv, episode_length=0)


# ---------------------------------------------------------------------- seeds


def first_obs(make: Any, **config: Any) -> Any:
    return make(**config).reset()[0]


def test_env_i_gets_seed_plus_i(make: Any) -> None:
    np.testing.assert_array_equal(first_obs(make, num_envs=4, seed=10)[2:], first_obs(make, num_envs=2, seed=12))
    assert len(np.unique(first_obs(make, num_envs=4)[:, 0])) == 4


def test_the_default_seed_is_42(make: Any) -> None:
    np.testing.assert_array_equal(first_obs(make, num_envs=2), first_obs(make, num_envs=2, seed=42))


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_each_env_may_have_a_seed_of_its_own(make: Any, kind: Any) -> None:
    pool = make(num_envs=3, seed=kind([12, 10, 11]))
    assert pool.config["env_seed"] == [12, 10, 11]
    assert pool.config["seed"] == 0
    np.testing.assert_array_equal(pool.reset()[0], first_obs(make, num_envs=3, seed=10)[[2, 0, 1]])


def test_a_range_is_a_list_of_seeds(make: Any) -> None:
    assert make(num_envs=3, seed=range(3)).config["env_seed"] == [0, 1, 2]
    own = make(num_envs=2, env_seed=[3, 4])
    assert (own.config["env_seed"], own.config["seed"]) == ([3, 4], 42)
    np.testing.assert_array_equal(own.reset()[0], first_obs(make, num_envs=2, seed=3))


def test_of_both_kinds_of_seeds_those_of_the_envs_count(make: Any) -> None:
    pool = make(num_envs=2, env_seed=[3, 4], seed=9)
    assert (pool.config["env_seed"], pool.config["seed"]) == ([3, 4], 9)
    np.testing.assert_array_equal(pool.reset()[0], first_obs(make, num_envs=2, seed=3))


def test_new_seeds_replace_those_of_a_spec(make: Any) -> None:
    spec = shoal.make_spec("CartPole-v1", num_envs=2, engine="serial", seed=[3, 4])
    assert make(spec, seed=9).config["env_seed"] == []
    listed = shoal.make_spec("CartPole-v1", num_envs=2, engine="serial", env_seed=[3, 4])
    np.testing.assert_array_equal(make(listed, seed=9).reset()[0], first_obs(make, num_envs=2, seed=9))
    single = shoal.make_spec("CartPole-v1", num_envs=2, engine="serial", seed=9)
    assert make(single, env_seed=[3, 4]).config["env_seed"] == [3, 4]


def test_negative_seeds_are_seeds(make: Any) -> None:
    whole = first_obs(make, num_envs=4, seed=-2)
    np.testing.assert_array_equal(whole[1:], first_obs(make, num_envs=3, seed=-1))
    np.testing.assert_array_equal(whole[2:], first_obs(make, num_envs=2, seed=0))
    np.testing.assert_array_equal(whole[:2], first_obs(make, num_envs=2, seed=[-2, -1]))
    assert len(np.unique(whole[:, 0])) == 4
    pool = make(num_envs=4)
    np.testing.assert_array_equal(pool.reset(seed=-2)[0], whole)
    np.testing.assert_array_equal(pool.reset(np.array([3, 1]), seed=-2)[0], whole[[3, 1]])
    np.testing.assert_array_equal(pool.reset([1, 2], seed=[-1, 0])[0], whole[1:3])


def test_no_seed_draws_one_and_shows_it(make: Any) -> None:
    pools = [make(num_envs=2, seed=None) for _ in range(2)]
    drawn = [pool.config["seed"] for pool in pools]
    assert drawn[0] != drawn[1]
    obs = pools[0].reset()[0]
    np.testing.assert_array_equal(obs, first_obs(make, num_envs=2, seed=drawn[0]))
    np.testing.assert_array_equal(obs, make(pools[0].spec).reset()[0])


def test_resets_go_on_with_the_generator(make: Any) -> None:
    pool = make(num_envs=2)
    assert not np.array_equal(pool.reset()[0], pool.reset()[0])


def test_seed_only_warns(make: Any) -> None:
    with pytest.warns(UserWarning, match="no effect"):
        make().seed(3)


# ---------------------------------------------------------------------- specs


def test_a_spec_has_the_config_as_a_tuple() -> None:
    spec = shoal.make_spec("CartPole-v1", num_envs=4, max_episode_steps=7)
    assert (spec.config.num_envs, spec.config.batch_size, spec.config.max_episode_steps) == (4, 4, 7)
    assert spec.config._fields[:2] == ("num_envs", "batch_size")
    assert spec.gen_config().num_envs == 1
    assert spec.gen_config().max_episode_steps == 500
    assert shoal.make_spec("CartPole-v1", gym_reset_return_info=False).config.gym_reset_return_info is False


def test_a_spec_is_shown_as_its_class_and_its_config() -> None:
    spec = shoal.make_spec("CartPole-v1")
    assert repr(spec).startswith("CartPoleEnvSpec(num_envs=1, batch_size=1, num_threads=0, ")
    assert repr(spec) == f"CartPoleEnvSpec({', '.join(f'{k}={v!r}' for k, v in spec.config._asdict().items())})"
    assert repr(shoal.make_spec("phys2d/Pendulum-v0", num_envs=4)).startswith("PendulumEnvSpec(num_envs=4, ")


def test_the_type_of_a_config_belongs_to_the_class_of_the_spec() -> None:
    spec, other = shoal.make_spec("CartPole-v1", num_envs=4), shoal.make_spec("CartPole-v1")
    kind = type(spec)
    assert (kind.__name__, kind) == ("CartPoleEnvSpec", type(other))
    assert kind.gen_config._fields[:3] == ("num_envs", "batch_size", "num_threads")
    assert kind.gen_config._field_defaults["batch_size"] == 0
    assert type(spec.config) is type(other.config) is kind.gen_config
    assert type(shoal.make_spec("CartPole-v0")).gen_config().max_episode_steps == 200
    assert type(pickle.loads(pickle.dumps(spec))) is kind
    assert other.config == kind.gen_config()._replace(batch_size=1, base_path=other.config.base_path)


def test_the_class_of_a_spec_makes_specs_of_configs(make: Any) -> None:
    spec = shoal.make_spec("CartPole-v1", num_envs=4, engine="serial", sutton_barto_reward=True)
    kind = type(spec)
    assert kind(spec.config).config == spec.config
    own = kind(kind.gen_config(num_envs=2, seed=12, engine="serial"))
    assert (type(own), own.config.num_envs, own.config.batch_size) == (kind, 2, 2)
    assert pickle.loads(pickle.dumps(own)).config == own.config
    with type(make())(own) as pool:
        np.testing.assert_array_equal(pool.reset()[0], first_obs(make, num_envs=2, seed=12))
    for cls, config in ((kind, {}), (kind, "CartPole-v1"), (shoal.EnvSpec, spec.config)):
        with pytest.raises(WrongType, match="expected a config"):
            cls(config)


@pytest.mark.parametrize(
    ("task_id", "given"),
    [
        ("CartPole-v1", {"num_envs": 3, "seed": [5, 1, 9]}),
        ("Ant-v4", {"healthy_z_min": 0.3, "use_contact_force": True}),
        ("HumanoidStandup-v2", {"contact_cost_max": 5.0}),
        ("Pusher-v4", {"ctrl_cost_weight": 0.3}),
        ("WalkerWalk-v1", {"frame_stack": 2}),
        ("FrozenLake-v1", {"size": 8}),
    ],
)
def test_a_config_can_be_given_back(make: Any, task_id: str, given: dict[str, Any]) -> None:
    for library in ("mujoco.batch", "dm_control"):
        pytest.importorskip(library)
    pool = make(task_id, engine="auto", **given)
    assert make(task_id, **pool.config).config == pool.config


def test_names_of_one_option_have_to_agree() -> None:
    pytest.importorskip("mujoco.batch")
    alike = {"healthy_z_min": 0.3, "healthy_z_max": 0.9, "healthy_z_range": (0.3, 0.9)}
    assert shoal.make_spec("Ant-v4", **alike).config.healthy_z_range == (0.3, 0.9)
    for other in ((0.3, 1.0), (0.3,), (0.3, 0.9, 1.0), None):
        with pytest.raises(ArgumentError, match=r"healthy_z_m.. and healthy_z_range were both given"):
            shoal.make_spec("Ant-v4", **{**alike, "healthy_z_range": other})
    with pytest.raises(ArgumentError, match="use_contact_force and use_contact_forces were both given"):
        shoal.make_spec("Ant-v4", use_contact_force=True, use_contact_forces=False)


def test_tasks_of_one_name_do_not_share_a_config() -> None:
    def thing(default: float) -> type[CountingEnv]:
        class Thing(CountingEnv):
            def __init__(self, weight: float = default) -> None:
                super().__init__()

        return Thing

    first, second = shoal.make_spec(thing(1.0)), shoal.make_spec(thing(2.0))
    assert (type(first).gen_config().weight, type(second).gen_config().weight) == (1.0, 2.0)


def test_options_that_an_env_does_not_name_are_in_the_config() -> None:
    class Whatever(CountingEnv):
        def __init__(self, weight: float, **rest: Any) -> None:
            super().__init__(**rest)

    spec = shoal.make_spec(functools.partial(Whatever), weight=2, tag=3)
    assert (spec.config.weight, spec.config.tag) == (2, 3)


def test_a_pool_has_the_spec_it_was_made_from(make: Any) -> None:
    pool = make(num_envs=2, max_episode_steps=9)
    assert pool.spec.config._asdict() == pool.config
    for spec in (pool.spec, shoal.make_spec("CartPole-v1")):
        assert spec.observation_space == spec.gymnasium_observation_space == pool.observation_space
        assert spec.action_space == spec.gymnasium_action_space == pool.action_space


def test_the_arrays_of_a_batch_are_listed_in_order() -> None:
    arrays = shoal.make_spec("CartPole-v1").state_array_spec
    told = {key: (str(array.dtype), array.shape) for key, array in arrays.items()}
    assert list(told.items()) == [
        ("info:env_id", ("int32", [])),
        ("info:players.env_id", ("int32", [-1])),
        ("elapsed_step", ("int32", [])),
        ("done", ("bool", [])),
        ("reward", ("float32", [-1])),
        ("discount", ("float32", [-1])),
        ("step_type", ("int32", [])),
        ("trunc", ("bool", [])),
        ("obs", ("float32", [4])),
    ]
    assert (arrays["discount"].minimum, arrays["discount"].maximum) == (0.0, 1.0)
    np.testing.assert_array_equal(arrays["obs"].maximum, gym.spec("CartPole-v1").make().observation_space.high)


def test_info_fields_of_a_compiled_env_are_among_them() -> None:
    array = shoal.make_spec("Acrobot-v1").state_array_spec["info:state"]
    assert (array.dtype, array.shape) == (np.float32, [2])


@pytest.mark.parametrize(
    ("task_id", "dtype", "shape", "minimum", "maximum", "is_discrete"),
    [
        ("CartPole-v1", np.int32, [-1], 0, 1, True),
        ("Pendulum-v1", np.float32, [-1, 1], -2.0, 2.0, False),
    ],
)
def test_the_arrays_of_an_action(
    task_id: str, dtype: Any, shape: list[int], minimum: Any, maximum: Any, is_discrete: bool
) -> None:
    arrays = shoal.make_spec(task_id).action_array_spec
    assert list(arrays) == ["env_id", "players.env_id", "action"]
    action = arrays["action"]
    assert (action.dtype, action.shape, action.is_discrete) == (dtype, shape, is_discrete)
    assert (action.minimum, action.maximum) == (minimum, maximum)


@pytest.mark.parametrize(
    ("space", "minimum", "maximum"),
    [
        (spaces.Box(np.float32([-1, 0, 0]), np.float32([1, 1, 1])), [-1, 0, 0], [1, 1, 1]),
        (spaces.Box(np.float32([0, 0]), np.float32([1, 2])), [0, 0], [1, 2]),
        (spaces.MultiDiscrete([2, 3]), [0, 0], [1, 2]),
        (spaces.Box(np.float32([0, 0]), np.float32([1, 1])), 0, 1),
    ],
    ids=str,
)
def test_both_bounds_have_elements_if_one_has(space: Any, minimum: Any, maximum: Any) -> None:
    array = shoal.make_spec(functools.partial(SampleEnv, space)).state_array_spec["obs"]
    assert (np.shape(array.minimum), np.shape(array.maximum)) == (np.shape(minimum), np.shape(maximum))
    np.testing.assert_array_equal(array.minimum, minimum)
    np.testing.assert_array_equal(array.maximum, maximum)


def test_nested_spaces_have_names_with_dots() -> None:
    spec = shoal.make_spec(DictTupleEnv)
    arrays = spec.state_array_spec
    assert {"obs:camera", "obs:inner.pixels", "obs:inner.mode", "obs:pair.0", "obs:echo.mix.1"} <= arrays.keys()
    assert arrays["obs:gear"].is_discrete
    assert (arrays["obs:gear"].minimum, arrays["obs:gear"].maximum) == (3, 6)
    assert (arrays["obs:knobs"].dtype, arrays["obs:knobs"].shape) == (np.int32, [2])
    assert list(spec.action_array_spec)[2:] == ["force", "gear", "mix.0", "mix.1"]
    assert shoal.make_spec(TextEnv).state_array_spec["obs"].dtype == object


def test_specs_of_dm_env_have_single_env_shapes() -> None:
    from dm_env import specs

    spec = shoal.make_spec("Pendulum-v1")
    state = spec.observation_spec()
    assert type(state).__name__ == "State"
    assert state._fields == ("env_id", "players", "obs")
    assert state.players.env_id.shape == ()
    assert state.obs.shape == (3,)
    assert state.obs.dtype == np.float32
    action = spec.action_spec()
    assert isinstance(action, specs.BoundedArray)
    assert (action.shape, action.dtype) == ((1,), np.float32)
    np.testing.assert_array_equal(action.minimum, -2)
    discrete = shoal.make_spec("CartPole-v1").action_spec()
    assert isinstance(discrete, specs.DiscreteArray)
    assert (discrete.num_values, discrete.dtype) == (2, np.int32)
    assert shoal.make_spec("FrozenLake-v1").observation_spec().obs.num_values == 16
    nested = shoal.make_spec(DictTupleEnv)
    assert nested.observation_spec().inner.pixels.dtype == np.uint8
    assert nested.action_spec().mix._fields == ("n0", "n1")


def test_specs_of_dm_env_are_named_after_the_last_part() -> None:
    spec = shoal.make_spec(DictTupleEnv)
    state, action = spec.observation_spec(), spec.action_spec()
    assert (state.env_id.name, state.players.env_id.name, state.inner.pixels.name) == ("env_id", "env_id", "pixels")
    assert (action.players.env_id.name, action.force.name, action.mix.n1.name) == ("env_id", "force", "1")


def test_a_spec_of_a_python_env_leaves_nothing_open() -> None:
    class Watched(CountingEnv):
        made: list[Any] = []

        def __init__(self) -> None:
            super().__init__()
            self.made.append(self)

    assert shoal.make_spec(Watched).observation_space.shape == (8,)
    assert [env.is_closed for env in Watched.made] == [True]


# ---------------------------------------------------------------------- forms of spaces


def observed(make: Any, space: spaces.Space[Any]) -> tuple[Any, Any]:
    pool = make(functools.partial(SampleEnv, space), num_envs=3)
    return pool.observation_space, pool.reset()[0]


def test_a_discrete_stays_one_and_its_numbers_are_int32(make: Any) -> None:
    space, obs = observed(make, spaces.Discrete(7, start=-3))
    assert space == spaces.Discrete(7, start=-3)
    assert (obs.dtype, obs.shape) == (np.int32, (3,))
    assert all(value in space for value in obs)


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-5, 5, (2,), np.int64), spaces.MultiDiscrete([3, 4], start=[1, 2])],
    ids=["box", "multi-discrete"],
)
def test_int64_that_fits_becomes_int32(make: Any, space: Any) -> None:
    given, obs = observed(make, space)
    assert given.dtype == np.int32
    assert obs.dtype == np.int32
    assert all(row in given for row in obs)


def test_int64_that_does_not_fit_stays(make: Any) -> None:
    given, obs = observed(make, spaces.Box(0, 2**40, (2,), np.int64))
    assert given.dtype == obs.dtype == np.int64


def test_a_tuple_of_numbers_becomes_one_array(make: Any) -> None:
    space, obs = observed(make, spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11, start=1), spaces.Discrete(2))))
    assert space == spaces.Box(0, 31, (3,), np.int32)
    assert (obs.dtype, obs.shape) == (np.int32, (3, 3))
    assert all(row in space for row in obs)


def test_any_other_tuple_becomes_a_dict(make: Any) -> None:
    space, obs = observed(make, spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Discrete(3))))
    assert list(space.spaces) == list(obs) == ["0", "1"]
    assert obs["0"].shape == (3, 2)
    assert obs["1"].dtype == np.int32


def test_nested_observations_are_in_the_space_they_are_said_to_be_in(make: Any) -> None:
    pool = make(DictTupleEnv, num_envs=2)
    obs, _ = pool.reset()

    def row(value: Any, i: int) -> Any:
        if isinstance(value, dict):
            return {key: row(item, i) for key, item in value.items()}
        return np.asarray(value[i]) if value.dtype.kind == "f" else value[i]

    assert isinstance(pool.observation_space, spaces.Dict)
    assert obs["pair"].keys() == {"0", "1"}
    assert obs["inner"]["mode"].dtype == np.int32
    for i in range(2):
        assert row(obs, i) in pool.observation_space


def test_what_is_no_array_comes_as_objects(make: Any) -> None:
    obs, _ = make(TextEnv, num_envs=2).reset()
    assert obs.dtype == object
    assert all(isinstance(text, str) for text in obs)


# ---------------------------------------------------------------------- making again


@pytest.mark.parametrize("env_type", ["gym", "gymnasium", "dm"])
def test_a_pickled_pool_is_a_fresh_one_of_its_kind(make: Any, env_type: str) -> None:
    pool = make(num_envs=3, env_type=env_type, seed=5, max_episode_steps=9)
    for again in (pickle.loads(pickle.dumps(pool)), copy.deepcopy(pool)):
        with again:
            assert type(again) is type(pool)
            assert again.config == pool.config
            assert again.pool is not pool.pool


def test_a_pickled_spec_can_be_made_into_a_pool(make: Any) -> None:
    pool = make(CountingEnv, num_envs=2, tag=3, seed=None)
    spec = pickle.loads(pickle.dumps(pool.spec))
    assert spec.observation_space == pool.observation_space
    again = make(spec)
    np.testing.assert_array_equal(again.reset()[0], pool.reset()[0])
    direct = type(pool)(spec)
    np.testing.assert_array_equal(direct.reset()[0], again.reset(seed=again.config["seed"])[0])
    direct.close()


def test_a_spec_serves_every_dialect_and_takes_changes(make: Any) -> None:
    spec = make(num_envs=2, seed=5).spec
    classic = make(spec, "gym", num_envs=3)
    assert classic.config["gym_reset_return_info"] is False
    assert classic.reset().shape == (3, 4)
    assert make(classic.spec).reset()[0].shape == (3, 4)


# ---------------------------------------------------------------------- engines


def test_compiled_ids_run_on_the_kernel_engine_unless_told_otherwise(make: Any) -> None:
    assert make(engine="auto").stats().engine == "kernel"
    assert make(engine="serial").stats().engine == "serial"


def test_engines_agree(make: Any) -> None:
    def play(engine: str, **config: Any) -> list[Any]:
        pool = make("Acrobot-v1", num_envs=3, engine=engine, max_episode_steps=4, seed=7, **config)
        results = [pool.step(np.array([i % 3, 1, 2])) for i in range(7)]
        return [value for obs, reward, *_, info in results for value in (obs, reward, info["state"])]

    for mine, theirs in zip(play("serial"), play("auto", num_threads=2), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
        assert mine.dtype == theirs.dtype


def test_num_threads_is_the_number_of_workers(make: Any) -> None:
    pool = make(CountingEnv, num_envs=4, engine="thread", num_threads=2)
    assert pool.stats().num_workers == 2
    assert pool.config["num_threads"] == 2


def test_workers_are_pinned_from_the_offset_on(make: Any) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    pool = make(PinnedEnv, num_envs=2, engine="process", num_threads=2, thread_affinity_offset=1)
    expected = [[cpus[1 % len(cpus)]], [cpus[2 % len(cpus)]]]
    assert [list(cpu) for cpu in pool.pool.call("cpus")] == expected


class PinnedEnv(CountingEnv):
    def cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))


def test_a_forgotten_pool_cleans_up_after_itself() -> None:
    for env_type in ("gym", "gymnasium", "dm"):
        pool = shoal.make(CountingEnv, env_type, num_envs=2, engine="thread")
        pool.reset()
        del pool  # the check for leaks does the rest


# ---------------------------------------------------------------------- what a task was registered with


def test_a_task_is_registered_with_settings_of_the_pool_and_of_the_env(make: Any) -> None:
    shoal.register("Few-v0", CountingEnv, tag=5, num_envs=3, batch_size=2, seed=9, autoreset="same_step")
    pool = make("Few-v0")
    config = pool.config
    assert [config[name] for name in ("num_envs", "batch_size", "seed", "autoreset", "tag")] == [
        3,
        2,
        9,
        "same_step",
        5,
    ]
    assert make("Few-v0", num_envs=2, batch_size=2, tag=6).config["num_envs"] == 2
    shoal.register("Fewer-v0", "Few-v0", num_envs=4)
    assert make("Fewer-v0").config["num_envs"] == 4


@pytest.mark.parametrize(("task_id", "option"), [("FrozenLake-v1", {"size": 5}), ("Hopper-v4", {"frame_skip": 0})])
def test_an_option_that_makes_no_sense_is_a_value_error_from_everywhere(task_id: str, option: Any) -> None:
    pytest.importorskip("numba")
    pytest.importorskip("mujoco")
    for door in (shoal.make_gymnasium, shoal.make_dm):
        with pytest.raises(ArgumentError, match=task_id):
            door(task_id, **option)
