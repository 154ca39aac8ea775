"""T07: a step that comes too late is never taken for another one.

Every row of a counting env has the number of its step in its observation and in its reward, and the twins know both:
a row of two different times, or one that was written over, cannot pass.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_cases import FAULTY, SEED, ZEROS, envs_with, with_faulty
from trainer_processes import wait_until
from twins import Twins

import shoal
from shoal import Restart, errors
from shoal.testing import CountingEnv, FaultEnv, release_hangs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A thread of its own for each env: nobody waits behind the late one.
THREADS: dict[str, Any] = {"engine": "thread", "step_timeout": 0.15, "close_timeout": 2.0}
AT_ONCE = Restart(backoff_s=0.0)


def late_envs(folder: Path) -> list[Any]:
    return envs_with("hang", "step", at=2, once_file=folder / "once")


def threads_of(env_id: int) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"shoal-lane-{env_id}"]


def taken_until_late(pool: shoal.Pool, twins: Twins) -> None:
    """Step until env 1 was given up."""
    twins.take_reset(pool.reset(seed=SEED), SEED)
    while not twins.told:
        twins.take(pool.step(ZEROS), ZEROS)
    assert [told["kind"] for told in twins.told] == ["EnvTimeout"]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_t07_what_a_thread_writes_after_its_env_was_replaced_goes_nowhere(
    autoreset: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(late_envs(tmp_path), on_fault=AT_ONCE, autoreset=autoreset, **THREADS)
    twins = Twins(4, SEED, autoreset, episode_length=50)
    taken_until_late(pool, twins)
    twins.take(pool.step(ZEROS), ZEROS)
    assert len(threads_of(FAULTY)) == 2
    before = pool.latest()
    release_hangs()
    # The old thread ends when it has written its row and closed its env.
    wait_until(lambda: len(threads_of(FAULTY)) == 1)
    after = pool.latest()
    assert np.array_equal(before.obs, after.obs)
    assert np.array_equal(before.reward, after.reward)
    for turn in range(5):
        twins.take(pool.step([turn] * 4), [turn] * 4)
    assert pool.stats().faults == 1


def test_t07_a_thread_that_comes_back_before_its_env_is_replaced_goes_on_with_the_new_one(
    tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(late_envs(tmp_path), on_fault=AT_ONCE, **THREADS)
    twins = Twins(4, SEED, "next_step", episode_length=50)
    taken_until_late(pool, twins)
    release_hangs()
    wait_until(lambda: bool(pool.engine._results.items))
    for turn in range(5):
        twins.take(pool.step([turn] * 4), [turn] * 4)
    assert len(threads_of(FAULTY)) == 1
    assert pool.stats().faults == 1


class LateArray:
    """An observation that becomes an array when it is let go: its env has returned, and its row is being written."""

    def __init__(self, array: Any, let_go: threading.Event) -> None:
        self._array = array
        self._let_go = let_go

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self._let_go.wait()
        return self._array


def returns_late_array(let_go: threading.Event) -> type[CountingEnv]:
    made: list[CountingEnv] = []

    class ReturnsLateArray(CountingEnv):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            made.append(self)

        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (LateArray(obs, let_go) if len(made) == 1 else obs, *rest)

    return ReturnsLateArray


def test_t07_an_env_is_not_replaced_while_its_row_is_being_written(make_pool: Callable[..., shoal.Pool]) -> None:
    let_go = threading.Event()
    pool = make_pool(with_faulty(returns_late_array(let_go)), on_fault=AT_ONCE, **THREADS)
    try:
        twins = Twins(4, SEED, "next_step", episode_length=50)
        taken_until_late(pool, twins)
        twins.take(pool.step(ZEROS), ZEROS)
        assert [told["kind"] for told in twins.told] == ["EnvTimeout"] * 2
    finally:
        let_go.set()
    wait_until(lambda: bool(pool.engine._results.items))
    for turn in range(5):
        twins.take(pool.step([turn] * 4), [turn] * 4)
    assert pool.stats().faults == len(twins.told) == 2


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_t07_a_process_that_was_too_slow_is_gone_and_its_row_with_it(
    autoreset: str, asynchronous: bool, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with("slow", "step", at=2, once_file=tmp_path / "once", delay_s=3600.0)
    pool = make_pool(
        fns,
        engine="process",
        num_workers=2,
        step_timeout=0.5,
        on_fault=AT_ONCE,
        autoreset=autoreset,
        batch_size=2 if asynchronous else None,
    )
    twins = Twins(4, SEED, autoreset, episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    pool.send(ZEROS)
    deadline, since = time.monotonic() + 60, 0
    while since < 8:  # the others go on meanwhile, as often as they can
        batch = pool.recv(timeout=20)
        # Both envs of the worker are told of, each when its own first row is there, with any number of batches between.
        since += len(twins.told) >= 2
        twins.take(batch, ZEROS)
        pool.send([0] * len(batch), batch.env_id)
        assert time.monotonic() < deadline, twins.told
    assert sorted(told["env_id"] for told in twins.told) == [0, 1]
    assert {told["env_id"]: told["kind"] for told in twins.told}[FAULTY] == "EnvTimeout"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["thread", "process"])
def test_t07_a_caller_that_runs_out_of_patience_gets_the_same_rows_later(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    slow = partial(FaultEnv, "slow", delay_s=0.1, at=1, repeat=True, tag=FAULTY, episode_length=50)
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(4)]
    fns[FAULTY] = slow
    pool = make_pool(fns, engine=engine, num_workers=2)
    twins = Twins(4, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    impatience = 0
    for turn in range(5):
        pool.send([turn] * 4)
        while True:
            try:
                batch = pool.recv(timeout=0.01)
                break
            except errors.RecvTimeout:
                impatience += 1
        twins.take(batch, [turn] * 4)
    assert impatience >= 5
