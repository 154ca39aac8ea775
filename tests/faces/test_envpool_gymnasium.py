"""EnvPool's Gymnasium dialect: what comes back, when episodes end, who waits for whom, and whose arrays they are."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as wrappers

import shoal
from shoal.errors import (
    ActionError,
    ArgumentError,
    ClosedPool,
    EnvStepError,
    NothingInFlight,
    NotReset,
    RecvTimeout,
    StateError,
)
from shoal.testing import CountingEnv, DictTupleEnv, FaultEnv, SleepyEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["serial", "kernel"])
def engine(request: pytest.FixtureRequest) -> str:
    """The engines that run compiled envs."""
    return str(request.param)


@pytest.fixture
def make(open_pool: Callable[..., Any]) -> Callable[..., Any]:
    return lambda task_id="CartPole-v1", **config: open_pool(task_id, "gymnasium", **config)


def zeros(count: int = 3) -> Any:
    return np.zeros(count, np.int32)


# ---------------------------------------------------------------------- what it is


def test_it_is_a_vector_env_with_spaces_of_one_env(make: Any) -> None:
    pool = make()
    assert isinstance(pool, VectorEnv)
    assert pool.num_envs == len(pool) == 3
    assert pool.is_vector_env
    assert pool.unwrapped is pool
    assert not pool.is_async
    assert pool.observation_space == pool.single_observation_space
    assert pool.action_space == pool.single_action_space == gym.spaces.Discrete(2)
    assert pool.observation_space.shape == (4,)
    assert pool.render_mode is None


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_mode_is_declared(make: Any, mode: AutoresetMode) -> None:
    assert make(autoreset=mode).metadata["autoreset_mode"] is mode
    assert make(autoreset=mode.name.lower()).config["autoreset"] == mode.name.lower()


def test_results_have_envpools_types(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    obs, info = pool.reset()
    assert (obs.shape, obs.dtype) == ((3, 4), np.float32)
    assert obs.flags.c_contiguous
    assert obs.flags.writeable
    assert set(info) == {"env_id", "players", "elapsed_step"}
    for column in (info["env_id"], info["players"]["env_id"], info["elapsed_step"]):
        assert (column.shape, column.dtype) == ((3,), np.int32)
    assert info["env_id"].tolist() == info["players"]["env_id"].tolist() == [0, 1, 2]
    obs, reward, terminated, truncated, info = pool.step(zeros())
    assert (obs.shape, obs.dtype) == ((3, 4), np.float32)
    assert (reward.tolist(), reward.dtype) == ([1, 1, 1], np.float32)
    for flags in (terminated, truncated):
        assert (flags.shape, flags.dtype) == ((3,), np.bool_)
    assert info["elapsed_step"].tolist() == [1, 1, 1]
    assert set(info) == {"env_id", "players", "elapsed_step"}


def test_toy_text_is_int32(make: Any, engine: str) -> None:
    for task_id, shape in (("FrozenLake-v1", (3,)), ("Taxi-v3", (3,)), ("Blackjack-v1", (3, 3))):
        pool = make(task_id, engine=engine)
        assert (pool.reset()[0].dtype, pool.reset()[0].shape) == (np.int32, shape)
        assert (pool.step(zeros())[0].dtype, pool.step(zeros())[0].shape) == (np.int32, shape)


def test_a_compiled_env_plays_gymnasiums_episodes(make: Any, engine: str) -> None:
    pool = make("Acrobot-v1", num_envs=2, seed=5, max_episode_steps=20, engine=engine)
    envs = gym.make_vec("Acrobot-v1", num_envs=2, vectorization_mode="sync", max_episode_steps=20)
    np.testing.assert_allclose(pool.reset()[0], envs.reset(seed=5)[0], atol=1e-6)
    for i in range(25):
        mine, theirs = pool.step(np.array([i % 3, 2])), envs.step(np.array([i % 3, 2]))
        for a, b in zip(mine[:4], theirs[:4], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    envs.close()


# ---------------------------------------------------------------------- when episodes end


def test_the_first_step_is_a_reset_and_so_is_the_one_after_the_last(make: Any, engine: str) -> None:
    pool = make(max_episode_steps=3, engine=engine)
    rows = []
    for i in range(6):
        obs, reward, terminated, truncated, info = pool.step(np.full(3, i % 2))
        rows.append((info["elapsed_step"][0], reward[0], terminated[0], truncated[0]))
        if reward[0] == 0:
            assert np.abs(obs).max() <= 0.05
    assert rows == [
        (0, 0, False, False),
        (1, 1, False, False),
        (2, 1, False, False),
        (3, 1, False, True),
        (0, 0, False, False),
        (1, 1, False, False),
    ]


def test_a_first_step_gives_what_a_reset_gives(make: Any, engine: str) -> None:
    stepped, reset = make(seed=3, engine=engine), make(seed=3, engine=engine)
    np.testing.assert_array_equal(stepped.step(np.ones(3, int))[0], reset.reset()[0])
    np.testing.assert_array_equal(stepped.step(np.ones(3, int))[0], reset.step(np.ones(3, int))[0])


def test_envs_that_were_never_reset_are_when_they_first_step(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    pool.step(zeros(1), [1])
    assert pool.step(zeros())[4]["elapsed_step"].tolist() == [0, 1, 0]


def test_the_last_observation_is_the_true_one(make: Any, engine: str) -> None:
    pool = make(num_envs=1, engine=engine)
    pool.reset()
    for _ in range(200):
        obs, reward, terminated, truncated, info = pool.step(np.ones(1, int))
        if terminated[0]:
            break
    assert not truncated[0]
    assert reward[0] == 1
    assert abs(obs[0, 2]) > 12 * np.pi / 180
    obs, reward, terminated, _, info = pool.step(np.ones(1, int))
    assert (reward[0], terminated[0], info["elapsed_step"][0]) == (0, False, 0)
    assert np.abs(obs).max() <= 0.05


def test_an_end_at_the_limit_is_both(make: Any) -> None:
    pool = make(functools.partial(CountingEnv, episode_length=2, ending="terminated"), max_episode_steps=2)
    pool.reset()
    pool.step(zeros())
    _, _, terminated, truncated, _ = pool.step(zeros())
    assert terminated.all()
    assert truncated.all()


def test_same_step_has_the_last_observation_beside_the_first(make: Any, engine: str) -> None:
    pool = make("Acrobot-v1", autoreset="same_step", max_episode_steps=3, seed=1, engine=engine)
    twin = make("Acrobot-v1", max_episode_steps=3, seed=1)
    pool.reset()
    twin.reset()
    pool.step(zeros(1), [1])
    twin.step(zeros(1), [1])
    for i in range(4):
        obs, reward, _, truncated, info = pool.step(np.full(3, i % 3))
        if not truncated.any():
            assert "final_obs" not in info
            twin.step(np.full(3, i % 3))
            continue
        assert truncated.tolist() == info["_final_obs"].tolist()
        ended = np.flatnonzero(truncated)
        last, last_reward, *_, last_info = twin.step(np.full(len(ended), i % 3), ended)
        np.testing.assert_allclose(info["final_obs"][ended], last, rtol=1e-6)
        assert info["final_obs"].dtype == np.float32
        assert not info["final_obs"][~truncated].any()
        np.testing.assert_allclose(info["final_info"]["state"][ended], last_info["state"], rtol=1e-6)
        np.testing.assert_array_equal(reward[ended], last_reward)
        np.testing.assert_allclose(obs[ended], twin.step(np.full(len(ended), 0), ended)[0], rtol=1e-6)
        assert info["elapsed_step"][ended].tolist() == [3] * len(ended)
        break
    else:
        pytest.fail("no episode ended")


def test_last_observations_of_nested_spaces_have_their_form(make: Any) -> None:
    pool = make(DictTupleEnv, num_envs=2, autoreset="same_step")
    pool.reset()
    action = {"gear": [0, 0], "force": np.zeros((2, 2), np.float32), "mix": (np.zeros((2, 2), np.int8), [0, 0])}
    pool.step({key: value[:1] if key != "mix" else tuple(v[:1] for v in value) for key, value in action.items()}, [0])
    for _ in range(4):
        obs, *_, info = pool.step(action)
    final = info["final_obs"]
    assert final.keys() == obs.keys()
    assert final["echo"]["mix"]["1"].dtype == np.int32
    assert info["_final_obs"].tolist() == [True, False]
    assert final["camera"][0].any()
    assert not final["camera"][1].any()
    assert info["final_info"]["t"].tolist() == [5, 0]
    assert info["t"].tolist() == [0, 4]


def test_disabled_waits_for_a_reset(make: Any, engine: str) -> None:
    pool = make(autoreset="disabled", max_episode_steps=1, engine=engine)
    assert pool.step(zeros())[4]["elapsed_step"].tolist() == [0, 0, 0]
    assert pool.step(zeros())[3].all()
    with pytest.raises(NotReset):
        pool.step(zeros())
    pool.reset()
    assert pool.step(zeros())[4]["elapsed_step"].tolist() == [1, 1, 1]


# ---------------------------------------------------------------------- reset


def test_some_envs_are_reset_and_only_their_rows_come(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    pool.reset()
    pool.step(zeros())
    for ids in (np.array([2, 0]), [2, 0], np.array([2, 0], np.int32)):
        obs, info = pool.reset(ids)
        assert obs.shape == (2, 4)
        assert info["env_id"].tolist() == [2, 0]
    assert pool.step(zeros())[4]["elapsed_step"].tolist() == [1, 2, 1]


def test_a_mask_chooses_envs(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    pool.reset()
    options = {"reset_mask": np.array([True, False, True])}
    obs, info = pool.reset(options=options)
    assert obs.shape == (2, 4)
    assert info["env_id"].tolist() == [0, 2]
    assert options.keys() == {"reset_mask"}
    seeded, _ = pool.reset(seed=[7, 8, 9], options=options)
    np.testing.assert_array_equal(seeded, pool.reset(seed=[7, 8, 9])[0][[0, 2]])


@pytest.mark.parametrize("mask", [np.array([1, 0, 1]), np.array([1, 0, 1], np.uint8), [1, 0, 1]], ids=repr)
def test_a_mask_may_be_of_zeros_and_ones(make: Any, engine: str, mask: Any) -> None:
    pool = make(engine=engine)
    pool.reset()
    assert pool.reset(options={"reset_mask": mask})[1]["env_id"].tolist() == [0, 2]


def test_infos_begin_with_the_ids_and_end_with_the_steps(make: Any) -> None:
    pool = make("Acrobot-v1", engine="kernel")
    assert list(pool.reset()[1]) == ["env_id", "players", "state", "elapsed_step"]


@pytest.mark.parametrize(
    "options",
    [
        {"unknown": 1},
        {"reset_mask": np.array([True, False])},
        {"reset_mask": np.zeros(3, bool)},
        {"reset_mask": np.zeros(3, int)},
        {"reset_mask": np.array([2, 0, 1])},
        {"reset_mask": np.array([-1, 0, 1])},
        {"reset_mask": np.array([1.0, 0.0, 1.0])},
        {"reset_mask": np.array([[1, 0, 1]])},
        {"reset_mask": np.ones(3, bool), "unknown": 1},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(make: Any, engine: str, options: dict[str, Any]) -> None:
    pool = make(engine=engine)
    with pytest.raises(ArgumentError, match="options"):
        pool.reset(options=options)


def test_a_mask_and_ids_are_too_much(make: Any) -> None:
    with pytest.raises(ArgumentError, match="both"):
        make().reset(np.array([0]), options={"reset_mask": np.ones(3, bool)})


def test_empty_options_are_none(make: Any) -> None:
    assert make().reset(options={})[0].shape == (3, 4)


def test_options_that_the_env_knows_reach_it(make: Any, engine: str) -> None:
    assert np.abs(make("Acrobot-v1", engine=engine).reset(options={"low": 0.0, "high": 0.0})[1]["state"]).max() == 0
    python = make(CountingEnv, engine="serial")
    python.reset(options={"level": 3})
    assert python.pool.get_attr("last_options") == ({"level": 3},) * 3


def test_a_seed_for_reset_is_honoured(make: Any, engine: str) -> None:
    pool, other = make(engine=engine), make(seed=8, engine=engine)
    first = pool.reset(seed=8)[0]
    np.testing.assert_array_equal(first, other.reset()[0])
    np.testing.assert_array_equal(first, pool.reset(seed=[8, 9, 10])[0])
    np.testing.assert_array_equal(first[[2, 0]], pool.reset([2, 0], seed=8)[0])
    with pytest.raises(ArgumentError, match="seed"):
        pool.reset(seed=[1, 2])


# ---------------------------------------------------------------------- infos


def test_infos_of_python_envs_are_arrays_without_masks(make: Any) -> None:
    pool = make(DictTupleEnv, num_envs=2)
    _, info = pool.reset()
    assert not [key for key in info if key.startswith("_")]
    assert info["t"].tolist() == [0, 0]
    assert info["ratio"].shape == (2,)
    assert info["vector"].shape == (2, 3)
    assert info["label"].tolist() == ["step 0", "step 0"]
    assert info["nested"]["depth"]["t"].tolist() == [0, 0]
    assert not [key for key in info["nested"] if key.startswith("_")]


class TellingEnv(CountingEnv):
    """Reports keys that the pool has as well, and some that only some rows have."""

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"env_id": -1, "elapsed_step": -1, "players": -1, "_own": 2}
        return {**info, "rare": self._step} if self.tag else info


def test_the_pools_own_keys_win(make: Any) -> None:
    pool = make(functools.partial(TellingEnv, tag=1, episode_length=9), num_envs=2)
    pool.reset()
    *_, info = pool.step(zeros(2))
    assert info["env_id"].tolist() == info["players"]["env_id"].tolist() == [0, 1]
    assert info["elapsed_step"].tolist() == [1, 1]
    assert info["_own"].tolist() == [2, 2]
    assert info["rare"].tolist() == [1, 1]


def test_fields_of_compiled_envs_are_there_on_every_row(make: Any, engine: str) -> None:
    pool = make("Acrobot-v1", max_episode_steps=2, engine=engine)
    for _ in range(5):
        *_, info = pool.step(zeros())
        assert (info["state"].shape, info["state"].dtype) == ((3, 2), np.float32)
    assert pool.reset([1])[1]["state"].shape == (1, 2)


# ---------------------------------------------------------------------- send and recv


def test_step_is_send_and_recv(make: Any, engine: str) -> None:
    one, two = make(seed=5, engine=engine), make(seed=5, engine=engine)
    for i in range(5):
        action = np.array([1, 0, i % 2])
        two.send(action)
        for mine, theirs in zip(one.step(action)[:4], two.recv()[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_sends_queue_up_and_step_takes_its_turn(make: Any, engine: str) -> None:
    pool = make(num_envs=2, engine=engine)
    pool.reset()
    pool.send(zeros(2))
    pool.send(zeros(2))
    assert pool.step(zeros(2))[4]["elapsed_step"].tolist() == [1, 1]
    assert [pool.recv()[4]["elapsed_step"].tolist() for _ in range(2)] == [[2, 2], [3, 3]]
    assert pool.step(zeros(2))[4]["elapsed_step"].tolist() == [4, 4]


def test_many_sends_do_not_overflow(make: Any) -> None:
    pool = make(functools.partial(CountingEnv, episode_length=99))
    pool.reset()
    for _ in range(30):
        pool.send(zeros())
    assert [int(pool.recv()[4]["elapsed_step"][0]) for _ in range(30)] == list(range(1, 31))


def test_parts_sent_one_after_the_other_come_one_after_the_other(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    pool.reset()
    pool.send(zeros(2), np.array([2, 1]))
    pool.send(zeros(1), np.array([0]))
    results = [pool.recv() for _ in range(2)]
    assert [info["env_id"].tolist() for *_, info in results] == [[2, 1], [0]]
    assert all(obs.any(axis=1).all() for obs, *_ in results)


def test_recv_without_send_says_so(make: Any, engine: str) -> None:
    for batch_size in (3, 2):
        pool = make(engine=engine, batch_size=batch_size)
        pool.reset()
        with pytest.raises(NothingInFlight):
            pool.recv()
        assert pool.step(zeros())[0].shape[1] == 4


def test_async_reset_is_followed_by_recv(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    assert pool.async_reset() is None
    obs, reward, *_, info = pool.recv()
    assert obs.shape == (3, 4)
    assert not reward.any()
    assert not info["elapsed_step"].any()
    pool.async_reset()
    obs, info = pool.recv(reset=True)
    assert info["env_id"].tolist() == [0, 1, 2]
    pool.async_reset()
    assert pool.step(zeros())[4]["elapsed_step"].tolist() == [0, 0, 0]
    assert pool.recv()[4]["elapsed_step"].tolist() == [1, 1, 1]


def test_a_reset_drops_what_was_under_way(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    pool.reset()
    pool.send(zeros())
    pool.reset()
    assert pool.step(zeros())[4]["elapsed_step"].tolist() == [1, 1, 1]


# ---------------------------------------------------------------------- asynchronous pools


def test_an_asynchronous_pool_plays_the_same_episodes(make: Any, engine: str) -> None:
    count, steps = 6, 8
    sync = make(num_envs=count, seed=9, engine=engine)
    expected = [sync.reset()[0]] + [sync.step(np.full(count, i % 2))[0] for i in range(steps)]
    pool = make(num_envs=count, seed=9, batch_size=2, num_threads=2, engine=engine)
    assert pool.is_async
    pool.async_reset()
    taken = np.zeros(count, int)
    while taken.min() <= steps:
        obs, *_, info = pool.recv()
        ids = info["env_id"]
        assert obs.shape == (2, 4)
        for row, i in enumerate(ids):
            if taken[i] <= steps:
                np.testing.assert_array_equal(obs[row], expected[taken[i]][i])
        taken[ids] += 1
        pool.send((taken[ids] - 1) % 2, ids)


def test_one_round_reaches_every_env(make: Any, engine: str) -> None:
    pool = make(num_envs=6, batch_size=2, engine=engine)
    pool.async_reset()
    assert sorted(i for _ in range(3) for i in pool.recv()[4]["env_id"]) == list(range(6))


def test_rows_left_over_roll_into_the_next_batch(make: Any, engine: str) -> None:
    pool = make(num_envs=5, batch_size=2, engine=engine)
    pool.async_reset()
    seen = np.zeros(5, int)
    for _ in range(50):
        *_, info = pool.recv()
        assert len(info["env_id"]) == 2
        seen[info["env_id"]] += 1
        pool.send(zeros(2), info["env_id"])
    assert seen.min() >= 10


def test_reset_of_an_asynchronous_pool_returns_all_it_reset(make: Any, engine: str) -> None:
    pool = make(num_envs=4, batch_size=2, seed=3, engine=engine)
    obs, info = pool.reset()
    assert info["env_id"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(obs, make(num_envs=4, seed=3, engine=engine).reset()[0])


def test_send_without_ids_is_for_all(make: Any, engine: str) -> None:
    pool = make(num_envs=4, batch_size=2, engine=engine)
    pool.reset()
    with pytest.raises(ActionError, match="one action per env"):
        pool.send(zeros(2))
    pool.send(zeros(4))
    assert sorted(i for _ in range(2) for i in pool.recv()[4]["env_id"]) == [0, 1, 2, 3]


def test_step_of_an_asynchronous_pool_returns_a_batch(make: Any, engine: str) -> None:
    pool = make(num_envs=4, batch_size=2, engine=engine)
    pool.async_reset()
    ids = pool.recv()[4]["env_id"]
    for _ in range(20):
        *_, info = pool.step(zeros(2), ids)
        ids = info["env_id"]
        assert len(ids) == 2


def test_recv_can_be_impatient(make: Any) -> None:
    pool = make(functools.partial(SleepyEnv, 0.2), num_envs=2, batch_size=1, engine="thread", num_threads=2)
    pool.reset()
    pool.send(zeros(2))
    with pytest.raises(RecvTimeout):
        pool.recv(timeout=0.001)
    assert sorted(int(pool.recv(timeout=9)[4]["env_id"][0]) for _ in range(2)) == [0, 1]


# ---------------------------------------------------------------------- faults and closing


def test_a_failing_env_is_named_and_the_pool_goes_on(make: Any) -> None:
    pool = make(functools.partial(FaultEnv, "raise", at=2, episode_length=99), num_envs=2)
    pool.reset()
    pool.step(zeros(2))
    with pytest.raises(EnvStepError, match="failed in env 0"):
        pool.step(zeros(2))
    pool.reset()
    assert pool.step(zeros(2))[4]["elapsed_step"].tolist() == [1, 1]


def test_a_closed_pool_says_so(make: Any) -> None:
    pool = make()
    pool.reset()
    pool.close()
    pool.close(terminate=True)
    assert pool.closed
    for call in (pool.reset, lambda: pool.step(zeros()), pool.recv, lambda: pool.send(zeros())):
        with pytest.raises(ClosedPool):
            call()
    assert len(pool) == 3


def test_stats_count(make: Any, engine: str) -> None:
    pool = make(engine=engine)
    pool.reset()
    pool.step(zeros())
    assert (pool.stats().steps, pool.stats().resets) == (3, 3)


# ---------------------------------------------------------------------- whose arrays


@pytest.mark.parametrize("task_id", ["CartPole-v1", "Taxi-v3", "Blackjack-v1", CountingEnv], ids=str)
def test_what_was_returned_never_changes(make: Any, task_id: Any) -> None:
    pool = make(task_id, engine="auto" if isinstance(task_id, str) else "serial")

    def arrays(results: Any) -> list[Any]:
        if isinstance(results, dict):
            return [leaf for value in results.values() for leaf in arrays(value)]
        return [leaf for item in results for leaf in arrays(item)] if isinstance(results, (tuple, list)) else [results]

    kept = arrays([pool.reset(), *(pool.step(zeros()) for _ in range(12))])
    copies = [array.copy() for array in kept]
    for _ in range(12):
        pool.step(zeros())
    for array, copied in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copied)
        assert array.flags.writeable


def test_writing_to_results_reaches_nobody(make: Any, engine: str) -> None:
    pool, other = make(engine=engine), make(engine=engine)
    for _ in range(3):
        obs, reward, terminated, truncated, info = pool.step(zeros())
        expected = other.step(zeros())
        np.testing.assert_array_equal(obs, expected[0])
        for array in (obs, reward, terminated, truncated, info["env_id"], info["elapsed_step"]):
            array[:] = 1
        assert info["players"]["env_id"].tolist() == [0, 1, 2]


# ---------------------------------------------------------------------- Gymnasium's wrappers


def test_gymnasiums_wrappers_work_on_top(make: Any, engine: str) -> None:
    pool = wrappers.RecordEpisodeStatistics(make(max_episode_steps=4, engine=engine))
    pool = wrappers.NormalizeObservation(pool)
    obs, _ = pool.reset(seed=3)
    assert obs.shape == (3, 4)
    infos: list[Any] = [pool.step(np.array([0, 1, 0]))[4] for _ in range(9)]
    assert infos[3]["episode"]["l"].tolist() == [4, 4, 4]
    assert infos[3]["episode"]["r"].tolist() == [4, 4, 4]
    assert infos[8]["episode"]["l"].tolist() == [4, 4, 4]


# ---------------------------------------------------------------------- pictures


def test_pictures_come_in_a_batch(make: Any, engine: str) -> None:
    pool = make(render_mode="rgb_array", engine=engine)
    pool.reset()
    assert pool.render_mode == "rgb_array"
    frames = pool.render()
    assert (frames.shape, frames.dtype) == ((1, 400, 600, 3), np.uint8)
    assert pool.render(1).shape == (1, 400, 600, 3)
    assert pool.render(np.int32(1)).shape == (1, 400, 600, 3)
    for ids in ([0, 2], np.array([0, 2]), (0, 2)):
        frames = pool.render(env_ids=ids)
        assert frames.shape == (2, 400, 600, 3)
    np.testing.assert_array_equal(frames[1:], pool.render(2))


class Drawing(CountingEnv):
    """Draws a picture whose pixels are all different."""

    def render(self) -> Any:
        return np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) + np.uint8(self.tag)


def test_pictures_have_the_size_that_was_asked_for(make: Any) -> None:
    pool = make("Pendulum-v1", num_envs=2, render_mode="rgb_array", render_width=64, render_height=48, render_env_id=1)
    pool.reset()
    assert pool.render().shape == (1, 48, 64, 3)
    original = Drawing().render()
    small = make(Drawing, render_mode="rgb_array", render_width=3, render_height=2)
    np.testing.assert_array_equal(small.render()[0], original[1::2, 1::2])
    large = make(Drawing, render_mode="rgb_array", render_width=12)
    np.testing.assert_array_equal(large.render()[0], original.repeat(2, axis=1))
    whole = make(Drawing, render_mode="rgb_array", render_width=0, render_height=0)
    np.testing.assert_array_equal(whole.render()[0], original)


def test_pictures_show_the_env_that_was_chosen(make: Any) -> None:
    pool = make(CountingEnv, render_mode="rgb_array", render_env_id=2, episode_length=9)
    pool.reset()
    pool.step(zeros(1), [2])
    assert pool.render().max() == 1
    assert [int(frame.max()) for frame in pool.render([0, 2])] == [0, 1]


def test_without_a_mode_there_are_no_pictures(make: Any) -> None:
    with pytest.raises(StateError, match="render_mode") as caught:
        make().render()
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("ids", [[], [3], [-1], [0.5], [[0, 1]], np.array([[0, 1]]), [[0], [1, 2]], [{}]], ids=str)
def test_pictures_of_no_env_are_refused(make: Any, ids: Any) -> None:
    pool = make(CountingEnv, render_mode="rgb_array")
    with pytest.raises(ActionError) as caught:
        pool.render(ids)
    assert isinstance(caught.value, ValueError)


def test_an_env_that_draws_no_pictures_is_named(make: Any) -> None:
    class Writing(CountingEnv):
        def render(self) -> Any:
            return "text"

    with pytest.raises(RuntimeError, match=r"Writing.*str"):
        make(Writing, render_mode="rgb_array").render()
    with pytest.raises(RuntimeError, match="render"):
        make("NChain-v0", render_mode="rgb_array").render()


def test_an_env_that_takes_no_mode_is_named(make: Any) -> None:
    with pytest.raises(ArgumentError, match=r"render_mode.*DictTupleEnv"):
        make(DictTupleEnv, render_mode="rgb_array")


class Window(CountingEnv):
    """Has a window, and counts what it showed."""

    shown = 0

    def __init__(self, render_mode: str | None = None, camera_id: int = 0) -> None:
        super().__init__(render_mode=render_mode)
        self.camera_id = camera_id

    def render(self) -> Any:
        self.shown += 1


def test_one_env_has_a_window(make: Any) -> None:
    pool = make(Window, render_mode="human", render_env_id=1)
    pool.reset()
    assert pool.pool.get_attr("render_mode") == (None, "human", None)
    assert pool.render() is None
    assert pool.render(1) is None
    assert pool.pool.get_attr("shown") == (0, 2, 0)
    with pytest.raises(ArgumentError, match="only env 1"):
        pool.render([0, 1])


def test_a_camera_is_chosen_when_the_pool_is_made(make: Any) -> None:
    pool = make(Window, render_mode="human", render_camera_id=4)
    assert pool.pool.get_attr("camera_id") == (4, 4, 4)
    assert pool.render(camera_id=4) is None
    with pytest.raises(ArgumentError, match="camera_id"):
        pool.render(camera_id=2)


def test_rows_survive_a_picture(make: Any) -> None:
    pool = make(CountingEnv, render_mode="rgb_array", episode_length=9)
    pool.reset()
    pool.render([0, 1, 2])
    assert [read_row(row).step for row in pool.step(zeros())[0]] == [1, 1, 1]


# ---------------------------------------------------------------------- windows, cameras, types


def test_an_env_that_only_draws_is_shown_in_a_window(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pool = make("CartPole-v1", num_envs=2, render_mode="human", render_env_id=1, render_width=60, render_height=40)
    assert pool.metadata["render_modes"] == ["rgb_array", "human"]
    assert pool.render_mode == "human"
    pool.reset()
    assert pool.render() is None
    import pygame

    assert pygame.display.get_surface().get_size() == (60, 40)
    with pytest.raises(ArgumentError, match="only env 1"):
        pool.render(0)
    pool.close()
    assert not pygame.display.get_init()


DRAWING = """
import shoal, time
envs = shoal.make("CartPole-v1", num_envs=2, render_mode={mode!r}, engine={engine!r})
envs.reset()
envs.render()
print("drawn", flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("mode", ["rgb_array", "human"])
def test_a_program_that_has_drawn_still_ends_by_sigterm(engine: str, mode: str) -> None:
    pytest.importorskip("pygame")
    environ = {name: value for name, value in os.environ.items() if name != "SDL_NO_SIGNAL_HANDLERS"}
    environ["SDL_VIDEODRIVER"] = "dummy"
    command = [sys.executable, "-c", DRAWING.format(mode=mode, engine=engine)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as program:
        try:
            assert program.stdout is not None
            assert "drawn" in iter(lambda: program.stdout.readline().strip() or "ended", "ended")
            program.send_signal(signal.SIGTERM)
            assert program.wait(timeout=10) == -signal.SIGTERM
        finally:
            program.kill()


def test_an_env_with_one_view_has_one_camera(make: Any) -> None:
    pool = make("CartPole-v1", num_envs=1, render_mode="rgb_array")
    pool.reset()
    for camera_id in (-1, 0, 3):
        np.testing.assert_array_equal(pool.render(camera_id=camera_id), pool.render())
        other = make("CartPole-v1", num_envs=1, render_mode="rgb_array", render_camera_id=camera_id)
        other.reset()
        np.testing.assert_array_equal(other.render(), pool.render())


def test_an_env_may_be_drawn_twice(make: Any) -> None:
    pool = make("CartPole-v1", num_envs=3, render_mode="rgb_array")
    pool.reset()
    one, two = pool.render([1])[0], pool.render([2])[0]
    np.testing.assert_array_equal(pool.render([2, 1, 2]), [two, one, two])


def test_it_is_an_env_for_code_that_asks(make: Any) -> None:
    pool = make("CartPole-v1", num_envs=2)
    assert isinstance(pool, gym.Env)
    assert isinstance(pool, VectorEnv)
    wrapped = gym.Wrapper(pool)
    assert wrapped.reset()[0].shape == (2, 4)
    assert isinstance(pool, shoal.GymnasiumEnvPool)
    assert isinstance(pool, shoal.EnvPool)
    assert isinstance(pool.spec, shoal.EnvSpec)


@pytest.mark.parametrize("engine", ["kernel", "serial"])
def test_probabilities_are_float32_as_in_envpool(make: Any, engine: str) -> None:
    pool = make("CliffWalkingSlippery-v1", num_envs=2, engine=engine)
    pool.reset()
    prob = pool.step(np.zeros(2, np.int32))[-1]["prob"]
    assert (prob.dtype, prob.tolist()) == (np.float32, [np.float32(1 / 3)] * 2)
    assert pool.spec.state_array_spec["info:prob"].dtype == np.float32
