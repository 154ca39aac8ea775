"""Commands that have to wait: for their time, or for an env that is not there any more."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from twins import Twins, fault_of

from shoal import Restart, errors
from shoal.spec import RawActions
from shoal.testing import CountingEnv, FaultEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

SEED = 9
WAIT_S = 0.2
WAITS = Restart(backoff_s=WAIT_S, longest_s=WAIT_S)


def envs(count: int = 2, **fault: Any) -> list[Any]:
    """Envs of which the last one fails at every first step."""
    settings: dict[str, Any] = {"fault": "raise", "at": 1, "episode_length": 50, **fault}
    return [partial(CountingEnv, tag=i, episode_length=50) for i in range(count - 1)] + [
        partial(FaultEnv, tag=count - 1, **settings)
    ]


@pytest.fixture
def waiting(make_pool: Callable[..., shoal.Pool]) -> tuple[shoal.Pool, Twins]:
    """A pool whose env 1 has failed twice, so that its third self has to wait."""
    pool = make_pool(envs(), engine="serial", on_fault=WAITS)
    twins = Twins(2, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    while len(twins.told) < 2:
        twins.take(pool.step([0, 0]), [0, 0])
    return pool, twins


def test_a_command_waits_for_its_time(waiting: tuple[shoal.Pool, Twins]) -> None:
    pool, twins = waiting
    start = monotonic()
    twins.take(pool.step([0, 0]), [0, 0])
    assert monotonic() - start > WAIT_S * 0.8
    assert len(twins.told) == 2


def test_others_do_not_wait_with_it(waiting: tuple[shoal.Pool, Twins]) -> None:
    pool, twins = waiting
    pool.send([0, 0], [1, 0])
    batch = pool.recv(min_batch=1, max_wait=0.0)
    assert batch.env_id.tolist() == [0]
    twins.take(batch, [0, 0])
    twins.take(pool.recv(timeout=10), [0, 0])


def test_a_caller_may_lose_patience_and_come_back(waiting: tuple[shoal.Pool, Twins]) -> None:
    pool, twins = waiting
    pool.send([0, 0])
    for _ in range(3):
        with pytest.raises(errors.RecvTimeout, match="1 of 2 rows"):
            pool.recv(timeout=0.01)
    twins.take(pool.recv(timeout=10), [0, 0])


def test_further_commands_queue_behind_one_that_waits(waiting: tuple[shoal.Pool, Twins]) -> None:
    pool, twins = waiting
    for action in (1, 2):
        pool.send([action] * 2)
    twins.take(pool.recv(timeout=10), [1, 1])  # the third self begins
    twins.take(pool.recv(timeout=10), [2, 2])  # and fails at once
    assert len(twins.told) == 3


@pytest.mark.parametrize("seed", [None, 5])
def test_a_reset_takes_the_place_of_one_that_waits(seed: int | None, waiting: tuple[shoal.Pool, Twins]) -> None:
    pool, twins = waiting
    pool.send([0, 0])
    with pytest.raises(errors.RecvTimeout):
        pool.recv(timeout=0.01)
    twins.twins[0].env.step(0)  # the step of env 0 was not dropped, only its row
    start = monotonic()
    batch = pool.reset(seed=seed)
    twins.take_reset(batch, seed)
    assert monotonic() - start > WAIT_S / 2  # it is the same env, and its time has not come yet
    assert fault_of(batch, 1) is None  # that was told by the row of the fault


def test_a_pool_can_be_closed_while_a_command_waits(waiting: tuple[shoal.Pool, Twins]) -> None:
    pool, _ = waiting
    pool.send([0, 0])
    start = monotonic()
    pool.close()
    assert monotonic() - start < WAIT_S


def test_the_callers_seed_and_options_come_before_those_of_the_restart(
    tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs(once_file=tmp_path / "once"), engine="serial", on_fault="restart")
    twins = Twins(2, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take(pool.step([0, 0]), [0, 0])
    twins.take_reset(pool.reset(seed=21, options={"level": 3}), 21)
    assert pool.get_attr("last_options") == ({"level": 3},) * 2


def test_options_without_a_seed_leave_the_new_stream(tmp_path: Path, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs(once_file=tmp_path / "once"), engine="serial", on_fault="restart")
    twins = Twins(2, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take(pool.step([0, 0]), [0, 0])
    twins.take_reset(pool.reset(options={"level": 3}))
    assert pool.get_attr("last_options") == ({"level": 3},) * 2


@pytest.mark.parametrize("engine", ["serial", "thread", "process"])
def test_an_abandoned_fault_is_told_by_the_reset_that_takes_its_place(
    engine: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = [partial(FaultEnv, "raise", at=1, once_file=tmp_path / f"once{i}", tag=i, episode_length=50) for i in (0, 1)]
    pool = make_pool(fns, engine=engine, num_workers=2, batch_size=1, on_fault=Restart(backoff_s=0.0))
    twins = Twins(2, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    pool.send([0, 0])
    first = pool.recv(timeout=10)
    twins.take(first, [0, 0])
    other = 1 - int(first.env_id[0])
    batch = pool.reset(env_id=[other])
    if fault_of(batch, other) is None:
        # Its fault had not been seen when the reset came, so its env is only reset.
        twins.twins[other].elapsed = 0
    twins.take_reset(batch)
    assert (batch.first[0], batch.truncated[0]) == (True, False)
    twins.take(pool.step([0], env_id=[other]), [0, 0])


# ---------------------------------------------------------------------- what cannot be sent


def refuse_reset(pool: shoal.Pool) -> None:
    """Ask for a reset that no worker can be told of."""
    with pytest.raises(errors.ShippingError):
        pool.reset(options={"lock": threading.Lock()})


@pytest.mark.parametrize("keeps_env", [False, True], ids=["built anew", "kept"])
def test_a_refused_reset_leaves_due_what_is_due(keeps_env: bool, make_pool: Callable[..., shoal.Pool]) -> None:
    restart = Restart(keeps_env=keeps_env)
    pool = make_pool(envs(at=2), engine="process", num_workers=1, on_fault=restart)
    pool.reset(seed=SEED)
    pool.step([0, 0])
    assert fault_of(pool.step([0, 0]), 1) is not None
    refuse_reset(pool)
    batch = pool.step([0, 0])
    assert (batch.first.tolist(), batch.elapsed_step.tolist()) == ([False, True], [3, 0])


def test_a_refused_reset_leaves_it_to_the_next_to_build_what_is_gone(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs(), engine="process", num_workers=2)
    pool.reset(seed=SEED)
    os.kill(pool.engine.pids[1], signal.SIGKILL)
    with pytest.raises(errors.WorkerDied):
        pool.step([0, 0])
    pool.recv(timeout=10)
    refuse_reset(pool)
    assert [read_row(obs).step for obs in pool.reset().obs] == [0, 0]


def test_a_refused_reset_drops_no_rows(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs(at=9), engine="process", num_workers=1)
    pool.reset(seed=SEED)
    pool.send([1, 2])
    refuse_reset(pool)
    assert [read_row(obs).action for obs in pool.recv(timeout=10).obs] == [1, 2]


def test_a_refused_send_queues_nothing(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs(at=9), engine="process", num_workers=1)
    pool.reset(seed=SEED)
    pool.send([1], env_id=[0])
    with pytest.raises(errors.ShippingError):
        pool.send(RawActions([2, threading.Lock()]), env_id=[0, 1])
    assert pool.recv(timeout=10).env_id.tolist() == [0]
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=10)
