"""Two laws of EnvPool's envs behind a pool: each has the rows it has alone, and those that EnvPool itself returns."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_kinds import MODES, assert_same, random_actions, rows_of
from law_calls import NUM_ENVS, Call, assert_drained_alike, bounded, outcome, traces

pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'shoal[envpool]'")

import envpool

from shoal.envs.envpool import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool

CHEAP = ("CartPole-v1", "Catch-v0", "Pendulum-v1")
NAMES = ("step", "step", "step", "step", "send", "recv", "reset", "async_reset")


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("task_id", CHEAP)
def test_a_pool_gives_the_rows_of_single_envs(
    task_id: str, autoreset: str, limit: int | None, make_pool: Callable[..., Pool]
) -> None:
    """With seeds for some of the envs in the middle of it, so that they live in several of EnvPool's pools."""
    kwargs = {} if limit is None else {"max_episode_steps": limit}
    options: dict[str, Any] = {"autoreset": autoreset, "max_episode_steps": limit, "env_kwargs": kwargs}
    together = make_pool(task_id, NUM_ENVS, engine="envpool", **options)
    alone = make_pool(kind_of(task_id), NUM_ENVS, engine="serial", **options)

    @bounded(6)
    @given(trace=traces({}, NAMES, max_size=25), seed=st.integers(0, 1000))
    def law(trace: list[Call], seed: int) -> None:
        assert_same(*(rows_of(pool.restart(seed=seed)) for pool in (together, alone)), "the first reset")
        for number, call in enumerate(trace):
            assert_same(*(outcome(pool, call) for pool in (together, alone)), f"{number}: {call}")
        assert_drained_alike(together, alone)

    law()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_asynchronous_pool_gives_every_env_its_own_rows(batch_size: int, make_pool: Callable[..., Pool]) -> None:
    together = make_pool("CartPole-v1", NUM_ENVS, engine="envpool", batch_size=batch_size, seed=3)
    alone = make_pool("CartPole-v1", NUM_ENVS, engine="envpool", seed=3)
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=(60, NUM_ENVS))
    expected = [alone.reset(), *(alone.step(row) for row in actions)]
    together.async_reset()
    turns = np.zeros(NUM_ENVS, np.int64)
    while (turns < len(actions)).all():
        batch = together.recv()
        for row, i in enumerate(batch.env_id.tolist()):
            then = expected[turns[i]]
            np.testing.assert_array_equal(batch.obs[row], then.obs[i])
            assert (batch.reward[row], batch.first[row]) == (then.reward[i], then.first[i])
            if turns[i] < len(actions):
                together.send(actions[turns[i], [i]], [i])
            turns[i] += 1


@pytest.mark.parametrize("task_id", [*CHEAP, "Highway-v0", "Snake-v1", "MiniGrid-Empty-5x5-v0", "FrozenLake-v1"])
def test_next_step_pools_return_what_envpool_returns(task_id: str, make_pool: Callable[..., Pool]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = envpool.make_gymnasium(task_id, num_envs=NUM_ENVS, seed=11)
        expected, info = theirs.reset()
    ours = make_pool(task_id, NUM_ENVS, engine="envpool", seed=11)
    batch = ours.reset()
    spec = theirs.spec.action_array_spec["action"]
    for number in range(120):
        # A choice is int64 in Gymnasium's spaces, and int32 in EnvPool's arrays.
        got = ours.spec.observation.flatten(batch.obs)
        for ours_alone, theirs_alone in zip(got, ours.spec.observation.flatten(expected), strict=True):
            np.testing.assert_array_equal(ours_alone, theirs_alone)
        for name in (field.name for field in ours.spec.info):
            np.testing.assert_array_equal(batch.fields[name], info[name])
        actions = random_actions(ours.spec.action, NUM_ENVS, number)
        batch = ours.step(actions)
        expected, reward, terminated, truncated, info = theirs.step(np.asarray(actions).astype(spec.dtype))
        np.testing.assert_array_equal(batch.reward, reward)
        np.testing.assert_array_equal(batch.terminated, terminated)
        np.testing.assert_array_equal(batch.truncated, truncated)
        np.testing.assert_array_equal(batch.first, info["elapsed_step"] == 0)
