"""Two laws of EnvPool's envs behind a pool: each has the rows it has alone, and those that EnvPool itself returns."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_kinds import MODES, assert_same, random_actions, rows_of

pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'shoal[envpool]'")

import envpool

from shoal.envs.envpool import kind_of
from shoal.errors import NothingInFlight, ShoalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool

NUM_ENVS = 4
CHEAP = ("CartPole-v1", "Catch-v0", "Pendulum-v1")
bounded = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
some_ids = st.none() | st.lists(st.sampled_from(range(NUM_ENVS)), min_size=1, max_size=NUM_ENVS, unique=True)
calls = st.tuples(
    st.sampled_from(["step", "step", "step", "step", "send", "recv", "reset", "async_reset"]),
    some_ids,
    st.integers(0, 1000),
    st.none() | st.integers(0, 2**70),
)
traces = st.lists(calls, min_size=1, max_size=25)


def outcome(pool: Pool, call: tuple[str, list[int] | None, int, int | None]) -> Any:
    """What a call returns, or how it is refused."""
    name, ids, number, seed = call
    try:
        if "reset" in name:
            batch = getattr(pool, name)(seed, None, ids)
        elif name == "recv":
            batch = pool.recv()
        else:
            count = NUM_ENVS if ids is None else len(ids)
            batch = getattr(pool, name)(random_actions(pool.spec.action, count, number), ids)
    except ShoalError as error:
        return type(error), str(error)
    return None if batch is None else rows_of(batch)


def drain(pool: Pool) -> list[Any]:
    rows = []
    while True:
        try:
            rows.append(rows_of(pool.recv()))
        except NothingInFlight:
            return rows


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

    @bounded
    @given(trace=traces, seed=st.integers(0, 1000))
    def law(trace: list[Any], seed: int) -> None:
        assert_same(*(rows_of(pool.restart(seed=seed)) for pool in (together, alone)), "the first reset")
        for number, call in enumerate(trace):
            assert_same(*(outcome(pool, call) for pool in (together, alone)), f"{number}: {call}")
        assert_same(*(drain(pool) for pool in (together, alone)), "what was under way at the end")

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
