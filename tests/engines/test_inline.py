"""What is particular to a pool whose caller is one of the workers."""

from __future__ import annotations

import gc
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal import errors, testing
from shoal.testing import CountingEnv, FaultEnv, SleepyEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable

ZEROS = [0] * 4
OWN, THEIRS = 3, 0


class PidEnv(CountingEnv):
    """Knows where it lives."""

    def pid(self) -> int:
        return os.getpid()


class Wide(CountingEnv):
    """Has another action space than its neighbours."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = gym.spaces.Discrete(77)


def envs_with(fault: str, env_id: int, where: str = "step", **settings: Any) -> list[Any]:
    """Four envs, of which one is faulty; of two workers, the caller has envs 2 and 3."""
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(4)]
    fns[env_id] = partial(FaultEnv, fault, **{"where": where, "at": 2, "tag": env_id, "episode_length": 50, **settings})
    return fns


@pytest.fixture
def make(make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """A pool of one worker process and the caller."""
    options: dict[str, Any] = {"engine": "process", "num_workers": 2, "inline": True, "close_timeout": 1.0}
    return lambda env_fns, num_envs=None, **more: make_pool(env_fns, num_envs, **{**options, **more})


def steps_of(batch: shoal.Batch) -> list[int]:
    return [read_row(obs).step for obs in batch.obs]


def test_the_last_share_of_the_envs_lives_in_this_process(make: Callable[..., shoal.Pool]) -> None:
    pool = make(PidEnv, 5, num_workers=3)
    first, second = pool.engine.pids
    assert pool.call("pid") == (first, first, second, second, os.getpid())
    assert pool.stats().num_workers == 3
    assert "2 processes, forkserver, and the caller" in repr(pool)


def test_without_other_workers_the_caller_is_the_serial_engine(make: Callable[..., shoal.Pool]) -> None:
    for options in ({"num_workers": 1}, {"num_workers": 2, "num_envs": 1}):
        stats = make(CountingEnv, **{"num_envs": 3, **options}).stats()
        assert (stats.engine, stats.engine_reason) == ("serial", "the caller is the only worker")


def test_other_engines_have_no_place_for_the_caller(make: Callable[..., shoal.Pool]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"inline: the caller .* not of 'thread'"):
        make(CountingEnv, 4, engine="thread")


def test_auto_heeds_it_where_it_takes_processes(make: Callable[..., shoal.Pool]) -> None:
    pool = make(CountingEnv, 4, engine="auto")
    assert "and the caller" in repr(pool)
    assert pool.stats().engine_reason == "workers were asked for"


def test_a_construction_error_names_envs_of_both_sides(make: Callable[..., shoal.Pool]) -> None:
    fns = envs_with("raise", OWN, "init")
    fns[THEIRS] = envs_with("raise", THEIRS, "init")[THEIRS]
    with pytest.raises(errors.EnvConstructError) as caught:
        make(fns)
    assert caught.value.env_ids == (THEIRS, OWN)


@pytest.mark.parametrize("odd", [THEIRS, OWN])
def test_an_env_with_other_spaces_is_named_on_either_side(odd: int, make: Callable[..., shoal.Pool]) -> None:
    fns: list[Any] = [CountingEnv] * 4
    fns[odd] = Wide
    with pytest.raises(errors.EnvConstructError, match=r"env . differs from env 0: its action space"):
        make(fns)


@pytest.mark.parametrize("faulty", [THEIRS, OWN])
def test_an_exception_on_either_side_leaves_the_other_rows_whole(faulty: int, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("raise", faulty))
    pool.reset(seed=0)
    pool.step(ZEROS)
    with pytest.raises(errors.EnvStepError, match=f"env {faulty}"):
        pool.step(ZEROS)
    batch = pool.recv()
    assert batch.env_id.tolist() == [i for i in range(4) if i != faulty]
    assert steps_of(batch) == [2, 2, 2]
    pool.reset(env_id=[faulty])
    assert pool.step(ZEROS).elapsed_step.tolist() == [1 if i == faulty else 3 for i in range(4)]


@pytest.mark.parametrize("faulty", [THEIRS, OWN])
def test_an_env_on_either_side_is_built_anew(faulty: int, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("raise", faulty), on_fault=shoal.Restart(backoff_s=0.0))
    pool.reset(seed=0)
    batches = [pool.step(ZEROS) for _ in range(4)]
    assert [batch.truncated.tolist() for batch in batches][1] == [i == faulty for i in range(4)]
    assert batches[-1].elapsed_step.tolist() == [1 if i == faulty else 4 for i in range(4)]
    assert pool.stats().restarts == 1


def test_the_death_of_a_worker_spares_the_callers_envs(make: Callable[..., shoal.Pool]) -> None:
    pool = make(CountingEnv, 4, on_fault=shoal.Restart(backoff_s=0.0))
    pool.reset(seed=0)
    pool.step(ZEROS)
    os.kill(pool.engine.pids[0], signal.SIGKILL)
    batch = pool.step(ZEROS)
    assert batch.truncated.tolist() == [True, True, False, False]
    assert batch.elapsed_step.tolist()[2:] == [2, 2]
    pool.step(ZEROS)
    assert pool.step(ZEROS).elapsed_step.tolist() == [1, 1, 4, 4]


def test_an_interrupt_in_the_callers_share_loses_no_row(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("keyboard_interrupt", 2), num_workers=2)
    pool.reset(seed=0)
    pool.step(ZEROS)
    with pytest.raises(KeyboardInterrupt):
        pool.step(ZEROS)
    with pytest.raises(errors.EnvStepError, match="env 2"):
        pool.recv()
    batch = pool.recv()
    assert batch.env_id.tolist() == [0, 1, 3]
    assert steps_of(batch) == [2, 2, 2]


def test_rows_of_workers_need_not_wait_for_the_callers_envs(make: Callable[..., shoal.Pool]) -> None:
    fns: list[Any] = [
        partial(SleepyEnv, tag=i, mean_s=0.0 if i < 2 else 0.3, sigma=0.0, episode_length=50) for i in range(4)
    ]
    pool = make(fns, batch_size=2)
    pool.async_reset(seed=0)
    while pool.under_way:
        pool.recv()
    pool.send(np.zeros(4, np.int64), [2, 3, 0, 1])
    # While the caller is at the first of its own, those of the worker have come; the second of its own is not begun.
    ids = pool.recv().env_id.tolist()
    assert 3 not in ids
    assert len(ids) == 2


def test_a_pool_that_waits_is_given_what_is_there(make: Callable[..., shoal.Pool]) -> None:
    pool = make(partial(SleepyEnv, mean_s=0.02, episode_length=50), 4, batch_size=3)
    pool.async_reset(seed=0)
    seen: list[int] = []
    while pool.under_way:
        seen += pool.recv(timeout=5, min_batch=1, max_wait=0.001).env_id.tolist()
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_closed_pool_holds_no_file_even_while_it_is_referenced(make: Callable[..., shoal.Pool]) -> None:
    before = testing.leftovers()
    pool = make(CountingEnv, 4)
    pool.reset(seed=0)
    pool.step(ZEROS)
    pool.close()
    pool.close()
    gc.collect()
    assert not testing.leftovers().since(before).fds, repr(pool)


def test_a_forgotten_pool_cleans_up_after_itself() -> None:
    pool = shoal.make_pool(CountingEnv, 4, engine="process", num_workers=2, inline=True)
    pool.reset(seed=0)
    del pool  # the check for leaks does the rest


def test_views_of_both_sides_are_of_one_memory(make: Callable[..., shoal.Pool]) -> None:
    pool = make(CountingEnv, 4, copy=False)
    pool.reset(seed=0)
    one = pool.step(ZEROS)
    two = pool.step(ZEROS)
    assert one.obs.base is not None
    assert (steps_of(one), steps_of(two)) == ([1] * 4, [2] * 4)
