"""The driving loop counts what really happened, on every engine, in every autoreset mode, in step or out of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.batch import Batch
from shoal.cli.actions import policy_actor
from shoal.cli.drive import EpisodeTally, Progress, drive
from shoal.collect.random_actions import RandomActions
from shoal.errors import ArgumentError, EnvStepError
from shoal.testing import CountingEnv, DictTupleEnv, FaultEnv, ScriptedEnv

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = ("next_step", "same_step", "disabled")
# One episode of three steps with a return of 4.5, ended in turn by either flag.
SCRIPT = [(1.0, False, False, {}), (-2.0, False, False, {}), (5.5, True, False, {})]
SCRIPT += [(0.0, False, False, {}), (4.0, False, False, {}), (0.5, False, True, {})]


def lean(obs: np.ndarray) -> np.ndarray:
    """A policy for CartPole that depends on nothing but the observation."""
    return (obs[:, 2] > 0).astype(np.int64)


def hand_loop(num_envs: int, steps: int, mode: str, seed: int) -> tuple[int, list[float], list[int]]:
    """What ``drive`` should find, computed env by env without a pool: steps, returns and lengths."""
    envs = [gym.make("CartPole-v1") for _ in range(num_envs)]
    obs = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    rewards: list[list[float]] = [[] for _ in envs]
    is_over = [False] * num_envs
    done, returns, lengths = 0, [], []
    while done < steps:
        for i, env in enumerate(envs):
            if is_over[i]:
                obs[i], is_over[i] = env.reset()[0], False
                continue
            obs[i], reward, terminated, truncated, _ = env.step(int(lean(obs[i][None])[0]))
            done += 1
            rewards[i].append(float(reward))
            if terminated or truncated:
                returns.append(sum(rewards[i]))
                lengths.append(len(rewards[i]))
                rewards[i] = []
                if mode == "next_step":
                    is_over[i] = True
                else:
                    obs[i] = env.reset()[0]
    return done, returns, lengths


@pytest.mark.parametrize("mode", MODES)
def test_the_result_is_that_of_a_loop_written_by_hand(mode: str, engine: str, make_pool: Callable[..., Any]) -> None:
    pool = make_pool("CartPole-v1", 3, engine=engine, autoreset=mode)
    result = drive(pool, policy_actor(lean), steps=1000, seed=7)
    steps, returns, lengths = hand_loop(3, 1000, mode, seed=7)
    assert returns, "the test needs episodes that end"
    assert (result.steps, result.episodes) == (steps, len(returns))
    assert result.mean_return == pytest.approx(np.mean(returns))
    assert result.std_return == pytest.approx(np.std(returns))
    assert result.mean_length == pytest.approx(np.mean(lengths))


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_returns_are_right_whatever_the_order_of_arrival(
    mode: str, batch_size: int, engine: str, make_pool: Callable[..., Any]
) -> None:
    pool = make_pool(lambda: ScriptedEnv(SCRIPT), 4, engine=engine, autoreset=mode, batch_size=batch_size)
    result = drive(pool, steps=60, seed=0)
    assert result.steps >= 60
    assert 60 / 3 - 4 <= result.episodes <= result.steps / 3
    assert (result.mean_return, result.std_return, result.mean_length) == (4.5, 0.0, 3.0)
    assert result.batch_size == batch_size


def test_the_same_seed_gives_the_same_run(make_pool: Callable[..., Any]) -> None:
    results = [drive(make_pool("CartPole-v1", 4, engine="serial"), steps=500, seed=3) for _ in range(2)]
    assert results[0].mean_return == results[1].mean_return
    assert results[0].episodes == results[1].episodes > 0


def test_a_policy_sees_as_many_rows_as_it_has_to_answer(engine: str, make_pool: Callable[..., Any]) -> None:
    seen: list[int] = []

    def act(obs: np.ndarray, rows: int) -> np.ndarray:
        assert len(obs) == rows
        seen.append(rows)
        return np.zeros(rows, np.int64)

    pool = make_pool(lambda: CountingEnv(), 4, engine=engine, autoreset="disabled", batch_size=3)
    drive(pool, act, steps=50, seed=1)
    assert seen[0] == 4, "at first all envs need an action"
    assert set(seen[1:]) <= {1, 2, 3}


def test_nested_observations_are_cut_to_the_rows_that_go_on(make_pool: Callable[..., Any]) -> None:
    pool = make_pool(DictTupleEnv, 3, engine="serial", autoreset="disabled", batch_size=2, max_episode_steps=3)
    rows_seen = []
    random_actions = RandomActions(pool.spec.action, seed=1)

    def act(obs: Any, rows: int) -> Any:
        leaves = [obs]
        while leaves:
            leaf = leaves.pop()
            if isinstance(leaf, (dict, tuple)):
                leaves += leaf.values() if isinstance(leaf, dict) else leaf
            else:
                assert len(leaf) == rows
        rows_seen.append(rows)
        return random_actions(obs, rows)

    assert drive(pool, act, steps=30, seed=1).mean_length == 3.0
    assert 1 in rows_seen


def test_the_parts_of_the_time_add_up(engine: str, make_pool: Callable[..., Any]) -> None:
    result = drive(make_pool("CartPole-v1", 4, engine=engine), steps=2000)
    assert result.envs_s + result.pool_s + result.loop_s == pytest.approx(result.elapsed_s)
    assert min(result.envs_s, result.pool_s, result.loop_s) > 0
    assert result.steps_per_s == pytest.approx(result.steps / result.elapsed_s)


def test_ctrl_c_gives_the_result_so_far(make_pool: Callable[..., Any]) -> None:
    calls = 0

    def act(obs: np.ndarray, rows: int) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return np.zeros(rows, np.int64)

    result = drive(make_pool(lambda: ScriptedEnv(SCRIPT), 2, engine="serial"), act, steps=1000)
    # Three steps and a reset, twice, and two more steps; for each of two envs.
    assert (result.interrupted, result.steps, result.episodes) == (True, 16, 4)


def test_a_run_too_short_for_an_episode_has_no_mean(make_pool: Callable[..., Any]) -> None:
    result = drive(make_pool("CartPole-v1", 4, engine="serial"), steps=4)
    assert (result.episodes, result.mean_return, result.std_return, result.mean_length) == (0, None, None, None)
    assert json.loads(json.dumps(result.as_dict()))["mean_return"] is None


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_returns_that_overflow_are_null_in_json(make_pool: Callable[..., Any]) -> None:
    script = [(1e308, False, False, {}), (1e308, True, False, {})]
    told = drive(make_pool(lambda: ScriptedEnv(script), 1, engine="serial"), steps=8).as_dict()
    assert (told["episodes"] > 0, told["mean_return"], told["mean_length"]) == (True, None, 2.0)
    json.dumps(told, allow_nan=False)


def test_progress_is_told(make_pool: Callable[..., Any]) -> None:
    told: list[Progress] = []
    drive(make_pool("CartPole-v1", 4, engine="serial"), steps=400, on_progress=told.append, progress_every_s=0.0)
    assert [p.steps for p in told] == sorted(p.steps for p in told)
    assert told[0].recent_return is None
    assert told[-1].steps >= 400 == told[-1].total_steps
    assert told[-1].episodes > 0
    # A CartPole gets 1 per step.
    assert told[-1].recent_return == told[-1].recent_length is not None


def test_faults_go_to_the_caller(engine: str, make_pool: Callable[..., Any]) -> None:
    pool = make_pool(lambda: FaultEnv("raise", where="step", at=3), 2, engine=engine)
    with pytest.raises(EnvStepError, match=r"env \d"):
        drive(pool, steps=100)


def test_steps_must_be_positive(make_pool: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match="steps"):
        drive(make_pool("CartPole-v1", 1), steps=0)


def row(reward: float, *, over: bool = False, first: bool = False, elapsed: int = 1) -> Batch:
    """A batch of one row of env 0."""
    flags = np.array([over]), np.array([False])
    return Batch(None, np.array([reward]), *flags, np.array([0]), np.array([elapsed]), np.array([first]))


def test_an_episode_that_was_cut_off_by_a_reset_does_not_leak_into_the_next() -> None:
    tally = EpisodeTally(1)
    tally.add(row(100.0))
    tally.add(row(0.0, first=True, elapsed=0))
    tally.add(row(2.0, over=True))
    assert (tally.steps, tally.statistics.episodes, tally.statistics.mean_return) == (2, 1, 2.0)


def test_running_mean_and_deviation_are_exact_for_large_returns() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=500)
    tally = EpisodeTally(1)
    for value in values:
        tally.add(row(float(value), over=True))
    assert tally.statistics.mean_return == pytest.approx(values.mean(), abs=1e-6)
    assert tally.statistics.std_return == pytest.approx(values.std(), rel=1e-6)
    assert tally.statistics.recent_return == pytest.approx(values[-100:].mean(), abs=1e-6)


@pytest.mark.slow
def test_the_loop_needs_neither_typer_nor_rich() -> None:
    import subprocess
    import sys

    code = "import sys; sys.modules['typer'] = sys.modules['rich'] = None; import shoal.cli.drive"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert shoal.__version__
