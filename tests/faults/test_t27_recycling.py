"""T27: a worker whose envs leak is replaced where their episodes end; no row is lost, whatever else fails meanwhile.

The envs' rows are compared with those of a serial pool. Where a process has died, its envs begin anew; the others must
not notice.
"""

from __future__ import annotations

import logging
import os
import resource
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from trainer_processes import lives, wait_until
from wandering import SOON_S, Pair, assert_alike, envs, order, rows_of

import shoal
from shoal import errors
from shoal.recovery import Restart
from shoal.testing import no_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MODES = ("next_step", "same_step", "disabled")
AT_ONCE = Restart(budget=None, backoff_s=0.0)
ZEROS = [0] * 4
MIB = 2**20


def kill(pid: int) -> None:
    """Kill a worker, and wait until it is gone, without taking its exit code from whoever started it."""
    process = psutil.Process(pid)
    process.kill()
    wait_until(lambda: not lives(process))


# ---------------------------------------------------------------------- leaks


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES)
def test_t27_workers_of_leaking_envs_are_replaced_by_themselves(
    autoreset: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    with make_pool(envs(2), engine="process", num_workers=1) as probe:
        limit = max(probe.stats().worker_rss_bytes) + 50 * MIB
    leaking, sound = envs(2, leak_bytes=10 * MIB), envs(2)
    pair = Pair(make_pool, leaking, twin_fns=sound, autoreset=autoreset, num_workers=1, recycle_above=limit)
    before, peak = pair.pids, 0
    end = monotonic() + SOON_S
    # Nobody tells the pool to look: it does so once per second of its steps.
    while set(before) & set(pair.pids):
        assert monotonic() < end, "the worker was not replaced"
        pair.turn()
        peak = max(peak, *pair.pool.stats().worker_rss_bytes)
        if peak > limit + 100 * MIB:  # enough: the machine need not hold more, whatever the time between two looks
            pair.pool.set_attr("leak_bytes", [0, 0])
    assert peak > limit
    assert pair.recycled == 1
    assert max(pair.pool.stats().worker_rss_bytes) < limit
    pair.walk(3)


def test_t27_a_pool_without_the_option_or_below_the_limit_replaces_nobody(make_pool: Callable[..., shoal.Pool]) -> None:
    pair = Pair(make_pool, recycle_above=2**50)
    before = pair.pids
    pair.recycle()
    pair.walk(10)
    assert (pair.recycled, pair.pids) == (0, before)


@pytest.mark.parametrize("wrong", [0, -1])
def test_t27_a_limit_that_is_none_is_refused(wrong: int) -> None:
    with pytest.raises(errors.ArgumentError, match="recycle_above"):
        shoal.make_pool(envs(2), engine="process", recycle_above=wrong)


# ---------------------------------------------------------------------- deaths meanwhile


class Crowd:
    """Four envs in one worker, which is being replaced, and four in another, which must not notice anything."""

    def __init__(self, make_pool: Callable[..., shoal.Pool], folder: Path, autoreset: str, **options: Any) -> None:
        fns = envs(8, orders=folder, episode_length=6)
        place = {"engine": "process", "num_workers": 2, "recycle_above": 1, "close_timeout": 1.0}
        self.pool = make_pool(fns, autoreset=autoreset, **{"on_fault": AT_ONCE, **place, **options})
        self.twin = make_pool(envs(8, episode_length=6), engine="serial", autoreset=autoreset)
        self.pool.reset(seed=7)
        self.twin.reset(seed=7)
        self.pool.engine.recycler.look()
        (self.heir,) = set(self.pool.engine.crew.workers) - {self.worker_of(0), self.worker_of(4)}
        flags = self.pool.engine.control.leaving
        self.leaving = next(w for w in (self.worker_of(0), self.worker_of(4)) if flags[w.index])
        self.movers = self.pool.engine.homes.envs_of(self.leaving.index)
        self.others = [i for i in range(8) if i not in self.movers]
        self.faults: dict[int, list[dict[str, Any]]] = {i: [] for i in range(8)}

    def worker_of(self, env_id: int) -> Any:
        engine = self.pool.engine
        return engine.crew.workers[engine.homes.worker_of(env_id)]

    @property
    def recycled(self) -> int:
        return self.pool.stats().recycled

    def step(self) -> shoal.Batch:
        batch, expected = self.pool.step([1] * 8), rows_of(self.twin.step([1] * 8))
        for i, row in rows_of(batch).items():
            if "fault" in row[6]:
                self.faults[i].append(row[6]["fault"])
            if i in self.others:
                assert_alike(row, expected[i], f"env {i}")
        return batch

    def reset(self, ids: list[int]) -> None:
        self.pool.reset(env_id=ids)

    def walk(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def assert_in_order(self) -> None:
        """Everybody takes steps, nobody is where the pool does not see it, and another worker can be replaced."""
        before = self.recycled
        told = {i: len(faults) for i, faults in self.faults.items()}
        end = monotonic() + SOON_S
        while self.recycled < before + 1:
            assert monotonic() < end
            self.pool.engine.recycler.look()
            self.step()
        self.walk(8)
        assert {i: len(faults) for i, faults in self.faults.items()} == told
        assert len(self.pool.engine.pids) in (2, 3)
        assert set(self.pool.call("pid")) <= set(self.pool.engine.pids)


@pytest.fixture
def crowd(make_pool: Callable[..., shoal.Pool], tmp_path: Path) -> Callable[..., Crowd]:
    return lambda autoreset="next_step", **options: Crowd(make_pool, tmp_path, autoreset, **options)


slow_after_first = ["same_step", pytest.param("next_step", marks=pytest.mark.slow)]


@pytest.mark.parametrize("autoreset", slow_after_first)
def test_t27_the_heir_is_killed_before_anybody_has_come(autoreset: str, crowd: Callable[..., Crowd]) -> None:
    scene = crowd(autoreset)
    kill(scene.heir.pid)
    scene.walk(20)
    assert not any(scene.faults.values())
    scene.assert_in_order()


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES[:2])
def test_t27_the_heir_is_killed_when_some_have_come(autoreset: str, crowd: Callable[..., Crowd]) -> None:
    scene = crowd(autoreset)
    come = scene.movers[:2]
    scene.reset(come)
    kill(scene.heir.pid)
    scene.step()
    assert [i for i, faults in scene.faults.items() if faults] == come
    assert all("killed by SIGKILL" in scene.faults[i][0]["message"] for i in come)
    scene.walk(12)
    scene.assert_in_order()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["init", "reset"])
@pytest.mark.parametrize("autoreset", MODES[:2])
def test_t27_the_heir_dies_while_it_welcomes_an_env(
    autoreset: str, place: str, crowd: Callable[..., Crowd], tmp_path: Path
) -> None:
    scene = crowd(autoreset)
    order(tmp_path, scene.movers[1], place, "kill")
    scene.walk(14)
    assert scene.faults[scene.movers[1]]
    assert not any(scene.faults[i] for i in scene.others)
    scene.assert_in_order()


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES[:2])
def test_t27_an_env_that_cannot_be_built_at_the_heirs_is_a_fault_of_its_own(
    autoreset: str, crowd: Callable[..., Crowd], tmp_path: Path
) -> None:
    scene = crowd(autoreset)
    order(tmp_path, scene.movers[1], "init", "raise")
    scene.walk(14)
    assert {i: len(faults) for i, faults in scene.faults.items() if faults} == {scene.movers[1]: 1}
    assert scene.faults[scene.movers[1]][0]["phase"] == "construct"
    scene.assert_in_order()


@pytest.mark.parametrize("autoreset", slow_after_first)
def test_t27_the_leaving_worker_is_killed_in_the_middle(autoreset: str, crowd: Callable[..., Crowd]) -> None:
    scene = crowd(autoreset)
    gone, left = scene.movers[:2], scene.movers[2:]
    scene.reset(gone)
    kill(scene.leaving.pid)
    scene.step()
    assert [i for i, faults in scene.faults.items() if faults] == left
    assert scene.recycled == 1  # what is left of it is built by the heir
    scene.walk(3)
    assert {scene.worker_of(i).pid for i in scene.movers} == {scene.heir.pid}
    scene.assert_in_order()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["step", "close"])
@pytest.mark.parametrize("autoreset", MODES[:2])
def test_t27_an_env_kills_the_leaving_worker(
    autoreset: str, place: str, crowd: Callable[..., Crowd], tmp_path: Path
) -> None:
    scene = crowd(autoreset)
    scene.walk(4)
    order(tmp_path, scene.movers[2], place, "kill")
    scene.walk(10)
    assert scene.faults[scene.movers[2]]
    assert not any(scene.faults[i] for i in scene.others)
    assert scene.recycled >= 1
    scene.assert_in_order()


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES[:2])
def test_t27_both_are_killed(autoreset: str, crowd: Callable[..., Crowd]) -> None:
    scene = crowd(autoreset)
    scene.reset(scene.movers[:2])
    kill(scene.heir.pid)
    kill(scene.leaving.pid)
    scene.walk(10)
    assert [i for i, faults in scene.faults.items() if faults] == scene.movers
    scene.assert_in_order()


@pytest.mark.slow
def test_t27_without_restarts_a_death_is_an_error_and_a_restart_mends_it(crowd: Callable[..., Crowd]) -> None:
    scene = crowd(on_fault="raise")
    scene.reset(scene.movers[:2])
    kill(scene.leaving.pid)
    with pytest.raises(errors.WorkerDied):
        scene.pool.step([1] * 8)
    scene.pool.recv(timeout=SOON_S)
    # The heir is at work, and does not carry out what its predecessor was told last.
    for _ in range(3):
        assert scene.pool.step([1, 1], scene.movers[:2]).env_id.tolist() == scene.movers[:2]
    scene.pool.restart(scene.movers)
    scene.pool.reset(seed=7)
    scene.twin.reset(seed=7)
    scene.others = list(range(8))
    scene.walk(10)
    scene.assert_in_order()


# ---------------------------------------------------------------------- hangs and shortages


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", MODES[:2])
def test_t27_an_env_that_hangs_when_it_is_let_go_has_a_deadline(
    autoreset: str, crowd: Callable[..., Crowd], tmp_path: Path
) -> None:
    scene = crowd(autoreset, reset_timeout=0.7, step_timeout=0.7)
    order(tmp_path, scene.movers[1], "close", "hang")
    scene.walk(14)
    assert "no answer after" in scene.faults[scene.movers[1]][0]["message"]
    assert not any(scene.faults[i] for i in scene.others)
    assert scene.recycled >= 1
    assert not scene.leaving.is_alive()
    scene.assert_in_order()


@contextmanager
def no_more_files() -> Iterator[None]:
    """One or two more files may be opened, to look at memory, but not those of a worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_t27_an_heir_that_cannot_be_started_is_told_of_once_and_tried_again(
    make_pool: Callable[..., shoal.Pool], caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(make_pool)
    before = pair.pids
    with no_more_files(), caplog.at_level(logging.WARNING, "shoal"):
        for _ in range(3):
            pair.recycle()
            pair.walk(3)
    assert [record.getMessage().split(" ", 2)[2] for record in caplog.records] == ["cannot be replaced now"]
    assert (pair.recycled, pair.pids) == (0, before)
    pair.until_recycled(1)
    pair.walk(5)


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("moment", ["heir started", "some have moved", "on the way", "all have moved"])
def test_t27_closing_meanwhile_leaves_nothing(moment: str) -> None:
    with no_leftovers():
        fns = envs(4, episode_length=2)
        with shoal.make_pool(fns, engine="process", num_workers=1, recycle_above=1, autoreset="same_step") as pool:
            pool.reset(seed=0)
            pool.engine.recycler.look()
            if moment == "some have moved":
                pool.reset(env_id=[0, 1])
            elif moment == "on the way":
                pool.async_reset()
            elif moment == "all have moved":
                pool.reset()
                assert pool.stats().recycled == 1
            workers = [psutil.Process(worker.pid) for worker in pool.engine.crew.workers if worker.is_alive()]
        assert not any(lives(worker) for worker in workers)


def test_t27_a_pool_that_is_forgotten_meanwhile_leaves_nothing() -> None:
    with no_leftovers():
        pool = shoal.make_pool(envs(4), engine="process", num_workers=1, recycle_above=1)
        pool.reset(seed=0)
        pool.engine.recycler.look()
        pool.reset(env_id=[0])
        del pool
