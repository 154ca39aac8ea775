"""``engine="envpool"``: what is run, what is refused before anything moves, and what is left behind."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'shoal[envpool]'")

import envpool

import shoal
from shoal.envs.envpool import kind_of
from shoal.envs.envpool.names import family_of
from shoal.envs.envpool.sim import EnvPoolSim, _seed
from shoal.errors import ActionError, ArgumentError, EnvResetError, FaultError, StateError
from shoal.native import Columns
from shoal.registry import own_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


# ---------------------------------------------------------------------- what is run


def test_gymnasiums_face_has_envpools_infos_and_true_spaces() -> None:
    with shoal.make_vec("Highway-v0", 3, engine="envpool") as envs:
        obs, infos = envs.reset(seed=1)
        assert obs in envs.observation_space
        assert infos["speed"].shape == infos["crashed"].shape == (3,)
        obs, rewards, *_, infos = envs.step(envs.action_space.sample())
        assert rewards.dtype == np.float64
        assert infos["elapsed_step"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("env_type", ["gym", "gymnasium", "dm"])
def test_envpools_face_runs_on_envpool(env_type: str) -> None:
    config: dict[str, Any] = {"engine": "envpool", "num_envs": 3, "seed": -5}
    with shoal.make("Catch-v0", env_type, **config) as envs:
        result = envs.reset()
        theirs = envpool.make("Catch-v0", env_type="gymnasium", num_envs=3, seed=-5).reset()[0]
        obs = {"gym": lambda: result, "gymnasium": lambda: result[0], "dm": lambda: result.observation.obs}[env_type]()
        np.testing.assert_array_equal(obs, theirs)
        assert envs.config["height"] == 10
        assert pickle.loads(pickle.dumps(envs.spec)).config.height == 10


def test_options_that_hold_one_number_are_no_ranges() -> None:
    spec = shoal.make_spec("FetchReach-v4", engine="envpool")
    assert spec.config.obj_range == 0.15
    assert isinstance(spec.observation_space, spaces.Dict)


def test_every_seed_is_an_int32_and_small_ones_are_themselves() -> None:
    assert [_seed(s) for s in (0, 7, 2**31 - 1, 2**31, 2**32 - 5)] == [0, 7, 2**31 - 1, -(2**31), -5]
    assert -(2**31) <= _seed(2**70) < 2**31


def test_a_seed_for_one_env_leaves_the_others_alone(make_pool: Callable[..., Pool]) -> None:
    pool, twin = (make_pool("CartPole-v1", 3, engine="envpool", seed=5) for _ in range(2))
    assert np.array_equal(pool.reset().obs, twin.reset().obs)
    assert np.array_equal(pool.reset(seed=[6], env_id=[2]).obs[0], twin.latest().obs[1])
    actions = np.array([1, 0, 1])
    ours, theirs = pool.step(actions), twin.step(actions)
    assert np.array_equal(ours.obs[:2], theirs.obs[:2])


def test_an_env_without_a_seed_is_like_no_other(make_pool: Callable[..., Pool]) -> None:
    obs = make_pool("CartPole-v1", 3, engine="envpool").reset().obs
    assert len(np.unique(obs, axis=0)) == 3


def test_what_was_returned_never_changes(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("CartPole-v1", 4, engine="envpool", seed=1)
    held = [pool.reset()]
    copies = [held[0].obs.copy()]
    for _ in range(30):
        held.append(pool.step(np.ones(4, np.int64)))
        copies.append(held[-1].obs.copy())
    for batch, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(batch.obs, copy)


def test_an_interrupt_between_command_and_result_mixes_up_nothing() -> None:
    kind = kind_of("CartPole-v1")()
    sim = EnvPoolSim(kind, 3, 2)
    columns = Columns(
        [np.zeros((3, 4), np.float32)], np.zeros(3), np.zeros(3, bool), np.zeros(3, bool), {"elapsed_step": np.zeros(3)}
    )
    everyone = np.arange(3, dtype=np.int32)
    sim.reset(everyone, {0: 1, 1: 2, 2: 3}, {}, columns)
    assert sim._only is not None
    sim._only.start_step(everyone[:2], [np.ones(3, np.int64)])  # and its rows are never taken
    sim.step(everyone[2:], [np.ones(3, np.int64)], columns)
    assert columns.info["elapsed_step"].tolist() == [0, 0, 1]
    sim.step(None, [np.ones(3, np.int64)], columns)
    assert columns.info["elapsed_step"].tolist() == [2, 2, 2]
    sim._only._begin()  # and the command is never given
    sim.step(None, [np.ones(3, np.int64)], columns)
    assert columns.info["elapsed_step"].tolist() == [3, 3, 3]
    sim.close()


def test_threads_end_with_the_pool(make_pool: Callable[..., Pool]) -> None:
    before = threads()
    pool = make_pool("CartPole-v1", 4, engine="envpool", num_workers=2)
    pool.reset(seed=1)
    assert threads() > before
    pool.close()
    pool.close()
    assert threads() == before


def test_a_limit_of_the_pool_is_one_of_envs_that_ignore_theirs(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("Catch-v0", 2, engine="envpool", max_episode_steps=3, seed=1)
    pool.reset()
    flags = [pool.step(np.ones(2, np.int64)) for _ in range(4)]
    assert [batch.truncated.all() for batch in flags] == [False, False, True, False]
    assert [batch.first.all() for batch in flags] == [False, False, False, True]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("task_id", "options", "says"),
    [
        ("TicTacToe-v1", {}, "2 players"),
        ("CartPool-v1", {}, "CartPole-v1"),
        (lambda: gym.make("CartPole-v1"), {}, "by their ids"),
        ("CartPole-v1", {"wrappers": [gym.Wrapper]}, "wrappers"),
        ("CartPole-v1", {"env_kwargs": [{}, {}]}, "one set of options"),
        ("CartPole-v1", {"env_kwargs": {"render_mode": "human"}}, "render_mode"),
        ("CartPole-v1", {"env_kwargs": {"max_episode_steps": "x"}}, "max_episode_steps"),
        ("CartPole-v1", {"max_episode_steps": 2**40}, "refuses"),
    ],
)
def test_what_envpool_cannot_do_is_refused_when_the_pool_is_made(task_id: Any, options: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        shoal.make_pool(task_id, 2, engine="envpool", **options)


def test_unknown_options_are_named() -> None:
    with pytest.raises(TypeError, match="heights"):
        shoal.make_pool("Catch-v0", 2, engine="envpool", env_kwargs={"heights": 3})
    with pytest.raises(TypeError, match="height"):
        shoal.make_gymnasium("Catch-v0", engine="envpool", heights=3)


def test_snapshots_options_and_pictures_are_refused_and_nothing_has_moved(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("CartPole-v1", 2, engine="envpool", seed=1)
    before = pool.reset().obs
    for wish in (pool.snapshot, lambda: pool.restore(None), lambda: pool.set_attr("gravity", 3.0)):  # type: ignore[arg-type]
        with pytest.raises((StateError, FaultError)):
            wish()
    with pytest.raises(FaultError, match="render_mode"):
        pool.render()
    with pytest.raises(EnvResetError, match="options"):
        pool.reset(options={"low": 0.1}, env_id=[0])
    assert pool.get_attr("config")[0]["max_episode_steps"] == 500
    np.testing.assert_array_equal(pool.latest([1]).obs[0], before[1])


def test_actions_and_ids_are_checked_before_envpool_sees_them(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("CartPole-v1", 3, engine="envpool", seed=1)
    before = pool.reset().obs
    bad: list[Any] = [
        np.array(1),
        np.zeros(2, int),
        np.zeros(4, int),
        np.zeros((3, 1), int),
        np.zeros(3),
        np.array([0, 2, 0]),
        np.array([0, -1, 0]),
        {"action": 1},
        None,
    ]
    for action in bad:
        with pytest.raises(ActionError):
            pool.step(action)
    for ids in ([3], [-1], [0, 0], [0.5], "a", [2**40]):
        with pytest.raises((ActionError, ArgumentError)):
            pool.step(np.zeros(len(ids), int), ids)
        with pytest.raises((ActionError, ArgumentError)):
            pool.reset(env_id=ids)
    np.testing.assert_array_equal(pool.latest().obs, before)
    assert pool.step(np.zeros(3, int)).fields["elapsed_step"].tolist() == [1, 1, 1]


def test_continuous_actions_are_numbers(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("Pendulum-v1", 2, engine="envpool", seed=1)
    pool.reset()
    for value in (np.nan, np.inf, 3.0):
        with pytest.raises(ActionError):
            pool.step(np.full((2, 1), value, np.float32))


# ---------------------------------------------------------------------- names


def test_every_id_that_only_envpool_has_is_known_without_it() -> None:
    only = [name for name in envpool.list_all_envs() if own_task(name) is None and name not in gym.registry]
    assert len(only) > 1000
    assert [name for name in only if family_of(name) is None] == []
