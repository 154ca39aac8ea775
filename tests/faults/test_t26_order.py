"""T26: calls that come out of order are state errors, on every engine, and the pool is usable after each of them."""

from __future__ import annotations

import os
import signal
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from fault_cases import (
    FAULTY,
    SOON_S,
    WAYS,
    ZEROS,
    assert_usable,
    close_in_time,
    envs_with,
    options_of,
    provoke,
    rows_of,
)

import shoal
from shoal import errors
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

FNS = [partial(CountingEnv, tag=i, episode_length=50) for i in range(4)]


def refused(kind: type[Exception], call: Callable[[], object]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert isinstance(caught.value, errors.StateError | errors.ArgumentError)


@pytest.mark.parametrize("batch_size", [None, 2], ids=["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_t26_after_every_refusal_the_pool_is_usable(
    way: str, batch_size: int | None, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(FNS, batch_size=batch_size, **options_of(way))
    refused(errors.NotReset, lambda: pool.step(ZEROS))
    refused(errors.NotReset, lambda: pool.send([0], env_id=[2]))
    refused(errors.NothingInFlight, pool.recv)
    assert [row.tag for row in rows_of(pool.reset(seed=0, env_id=[0, 2]))] == [0, 2]
    refused(errors.NotReset, lambda: pool.step(ZEROS))
    refused(errors.NotReset, lambda: pool.step([0, 0], env_id=[2, 3]))
    refused(errors.NothingInFlight, lambda: pool.recv(timeout=0))
    assert [row.step for row in rows_of(pool.step([0, 0], env_id=[2, 0]))] == [1, 1]
    pool.reset(seed=0)
    pool.send([0, 0], env_id=[1, 3])
    refused(errors.StateError, lambda: pool.step([0, 0], env_id=[0, 2]))
    refused(errors.StateError, lambda: pool.get_attr("tag"))
    refused(errors.StateError, lambda: pool.set_attr("tag", 9))
    refused(errors.StateError, lambda: pool.call("render", env_id=[3]))
    assert sorted(pool.recv(timeout=SOON_S).env_id.tolist()) == [1, 3]
    refused(errors.NothingInFlight, lambda: pool.recv(timeout=0))
    assert pool.get_attr("total_steps") == (0, 1, 0, 1)
    assert_usable(pool)


@pytest.mark.parametrize("way", WAYS)
def test_t26_a_closed_pool_stays_closed(way: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(FNS, **options_of(way))
    pool.reset(seed=0)
    last = pool.step(ZEROS)
    pool.send(ZEROS)
    close_in_time(pool)
    start = monotonic()
    for call in (pool.reset, lambda: pool.step(ZEROS), pool.recv, lambda: pool.get_attr("tag"), pool.snapshot):
        refused(errors.ClosedPool, call)
    pool.close()
    assert monotonic() - start < 0.5
    with pytest.raises(errors.ClosedPool), pool:
        pool.reset(seed=0)
    assert [row.step for row in rows_of(last)] == [1] * 4


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t26_the_last_rows_of_a_closed_pool_are_refused_or_right(
    way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(FNS, **options_of(way))
    pool.reset(seed=0)
    pool.step(ZEROS)
    pool.close()
    try:
        rows = rows_of(pool.latest())
    except errors.ClosedPool:
        return
    assert [row.step for row in rows] == [1] * 4


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t26_a_pool_can_be_closed_before_anything_was_asked_of_it(
    way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    close_in_time(make_pool(FNS, **options_of(way)))


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t26_an_env_that_failed_waits_for_its_reset(way: str, where: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(envs_with("raise", where, 2), **options_of(way))
    provoke(pool, where, 2)
    # The other rows have not been taken yet: what is said is the first thing that stands in the way.
    refused(errors.StateError, lambda: pool.step(ZEROS))
    assert pool.recv(timeout=SOON_S).env_id.tolist() == [0, 2, 3]
    for ids in (None, [FAULTY], [0, FAULTY]):
        refused(errors.StateError, lambda ids=ids: pool.step([0] * len(ids or ZEROS), env_id=ids))
        refused(errors.StateError, lambda ids=ids: pool.send([0] * len(ids or ZEROS), env_id=ids))
        refused(errors.NothingInFlight, lambda: pool.recv(timeout=0))
    steps = 2 if where == "step" else 0
    assert [row.step for row in rows_of(pool.step([0] * 3, env_id=[0, 2, 3]))] == [steps + 1] * 3
    assert [(row.tag, row.step) for row in rows_of(pool.reset(env_id=[FAULTY]))] == [(FAULTY, 0)]
    assert [row.step for row in rows_of(pool.step(ZEROS))] == [steps + 2, 1, steps + 2, steps + 2]


@pytest.mark.parametrize("way", ["serial", "thread", "process"])
def test_t26_a_fault_that_nobody_has_asked_for_is_dropped_by_a_reset(
    way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("raise", "step", 1), **options_of(way))
    pool.reset(seed=0)
    pool.send(ZEROS)
    assert [row.step for row in rows_of(pool.reset(seed=0))] == [0] * 4
    refused(errors.NothingInFlight, lambda: pool.recv(timeout=0))
    assert_usable(pool)


@pytest.mark.parametrize("ask", ["reset", "call", "set_attr", "send"])
def test_t26_a_call_to_a_worker_that_is_gone_is_told_as_such(ask: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(FNS, close_timeout=1.0, **options_of("process"))
    pool.reset(seed=0)
    worker = psutil.Process(pool.engine.pids[0])
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(SOON_S)  # the fork server reaps it, and its end of the socket is closed by then
    calls: dict[str, Callable[[], Any]] = {
        "reset": lambda: pool.reset(seed=0),
        "call": lambda: pool.call("render"),
        "set_attr": lambda: pool.set_attr("tag", 7),
        "send": lambda: (pool.send(ZEROS), pool.recv(timeout=SOON_S)),
    }
    with pytest.raises(errors.WorkerDied, match="killed by SIGKILL") as caught:
        calls[ask]()
    assert caught.value.env_ids == (0, 1)
    close_in_time(pool)


@pytest.mark.parametrize("way", ["serial", "process"])
def test_t26_the_gymnasium_face_refuses_what_the_pool_refuses(way: str) -> None:
    envs = shoal.make_vec(FNS, **options_of(way))
    with pytest.raises(errors.NotReset):
        envs.step(np.zeros(4, int))
    envs.reset(seed=0)
    obs, *_ = envs.step(np.zeros(4, int))
    assert obs[:, 3].tolist() == [1] * 4
    envs.close()
    envs.close()
    for call in (envs.reset, lambda: envs.step(np.zeros(4, int))):
        with pytest.raises(errors.ClosedPool):
            call()
