"""T5: workers outlive a fork server that is killed, and nobody takes them for dead; what dies later is noticed."""

from __future__ import annotations

import os
import signal
from functools import partial
from multiprocessing import forkserver
from time import monotonic
from typing import TYPE_CHECKING

import psutil
import pytest
from trainer_processes import SOON_S, assert_gone, lives

from shoal import errors
from shoal.testing import CountingEnv, FaultEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import shoal

ACTIONS = [0, 0]


@pytest.fixture
def kill_fork_server() -> Iterator[Callable[[], None]]:
    """Kills the fork server of this process; the next test finds a new one."""

    def kill() -> None:
        server = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
        server.kill()
        # Not ``wait``, which would take its exit code from multiprocessing.
        assert_gone([server], SOON_S)

    yield kill
    forkserver.ensure_running()


@pytest.fixture
def pool(make_pool: Callable[..., shoal.Pool]) -> shoal.Pool:
    """Two envs, each with a worker from the fork server, which begin anew if they fail."""
    pool = make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="forkserver", on_fault="restart")
    pool.reset(seed=0)
    return pool


def worker_pids(pool: shoal.Pool) -> list[int]:
    pids: list[int] = pool.engine.pids  # type: ignore[attr-defined]
    return pids


def until_watched(pool: shoal.Pool) -> None:
    """Step until the pool has looked after its workers several times."""
    end = monotonic() + 0.3
    while monotonic() < end:
        pool.step(ACTIONS)


def test_t05_workers_outlive_their_fork_server(pool: shoal.Pool, kill_fork_server: Callable[[], None]) -> None:
    before = worker_pids(pool)
    kill_fork_server()
    until_watched(pool)
    assert worker_pids(pool) == before
    assert pool.stats().restarts == 0


def test_t05_workers_that_die_after_their_fork_server_are_replaced(
    pool: shoal.Pool, kill_fork_server: Callable[[], None]
) -> None:
    first, second = worker_pids(pool)
    kill_fork_server()
    pool.step(ACTIONS)
    os.kill(first, signal.SIGKILL)
    batch = pool.step(ACTIONS)
    assert batch.truncated.tolist() == [True, False]
    assert "worker 0" in dict(batch.infos)[0]["fault"]["message"]
    assert pool.step(ACTIONS).first.tolist() == [True, False]
    assert worker_pids(pool)[1] == second


def test_t05_a_pool_whose_fork_server_is_dead_ends_its_workers(
    pool: shoal.Pool, kill_fork_server: Callable[[], None]
) -> None:
    workers = [psutil.Process(pid) for pid in worker_pids(pool)]
    kill_fork_server()
    pool.step(ACTIONS)
    assert all(map(lives, workers))
    pool.close()
    assert_gone(workers)


def test_t05_a_hung_worker_is_ended_although_its_fork_server_is_dead(
    make_pool: Callable[..., shoal.Pool], kill_fork_server: Callable[[], None]
) -> None:
    factories = [partial(FaultEnv, "hang", at=3), CountingEnv]
    pool = make_pool(factories, engine="process", num_workers=2, start_method="forkserver", step_timeout=0.5)
    pool.reset(seed=0)
    hung, other = (psutil.Process(pid) for pid in worker_pids(pool))
    kill_fork_server()
    pool.step(ACTIONS)
    pool.step(ACTIONS)
    with pytest.raises(errors.EnvTimeout):
        pool.step(ACTIONS)
    assert_gone([hung])
    assert lives(other)
