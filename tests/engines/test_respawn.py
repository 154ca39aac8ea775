"""A worker in the place of one that is gone: whatever dies while it comes, the next attempt finds everything in order.

Four envs in two workers: envs 0 and 1 share the first, which is killed, envs 2 and 3 the second, which must not notice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import threading
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from descriptors import is_open
from interrupts import interrupt_once
from trainer_processes import lives, wait_until

import shoal
from shoal import errors
from shoal.engines.process import crew as crew_module
from shoal.engines.process import launch
from shoal.engines.process.stderr import StderrRelay
from shoal.recovery import Restart
from shoal.testing import CountingEnv, no_leftovers, read_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ZEROS = [0] * 4
AT_ONCE = Restart(budget=None, backoff_s=0.0)


@pytest.fixture
def make(make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """A pool that restarts its envs at once."""
    fns = [partial(CountingEnv, tag=i, episode_length=10**6) for i in range(4)]
    options: dict[str, Any] = {"engine": "process", "num_workers": 2, "close_timeout": 1.0, "on_fault": AT_ONCE}
    return lambda fns=fns, **more: make_pool(fns, **{**options, **more})


def kill(pid: int) -> None:
    """Kill a worker, and wait until it is gone, without taking its exit code from whoever started it."""
    process = psutil.Process(pid)
    process.kill()
    wait_until(lambda: not lives(process))


def first_pid(pool: shoal.Pool) -> int:
    return pool.engine.pids[0]


def faults_of(batch: shoal.Batch) -> dict[int, dict[str, Any]]:
    return {int(batch.env_id[row]): info["fault"] for row, info in batch.infos if "fault" in info}


def assert_goes_on(pool: shoal.Pool, others_at: int) -> None:
    """Every env takes steps, the neighbours where they were."""
    for number in range(1, 4):
        rows = [read_row(obs) for obs in pool.step(ZEROS).obs]
        assert [row.tag for row in rows] == [0, 1, 2, 3]
        assert [row.step for row in rows[2:]] == [others_at + number] * 2
    assert not set(pool.engine.crew.lost)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["forkserver", "fork!", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("times", [1, 3])
def test_a_worker_that_is_killed_again_and_again_is_replaced(
    times: int, method: str, make: Callable[..., shoal.Pool]
) -> None:
    pool = make(start_method=method)
    pool.reset(seed=0)
    pids = {first_pid(pool)}
    for number in range(times):
        kill(first_pid(pool))
        batch = pool.step(ZEROS)
        faults = faults_of(batch)
        assert {i: fault["incarnation"] for i, fault in faults.items()} == {0: number + 1, 1: number + 1}
        assert "killed by SIGKILL" in faults[0]["message"]
        assert batch.truncated.tolist() == [True, True, False, False]
        assert [read_row(obs).step for obs in pool.step(ZEROS).obs[2:]] == [2 * number + 2] * 2
        pids.add(first_pid(pool))
    assert len(pids) == times + 1
    assert_goes_on(pool, 2 * times)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["forkserver", "fork!", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_whose_exit_code_somebody_else_has_taken_is_replaced_too(
    method: str, make: Callable[..., shoal.Pool]
) -> None:
    pool = make(start_method=method)
    pool.reset(seed=0)
    worker = psutil.Process(first_pid(pool))
    worker.kill()
    worker.wait(10)  # as a program does that waits for any of its children
    assert "the worker process is gone" in faults_of(pool.step(ZEROS))[0]["message"]
    assert_goes_on(pool, 1)


# ---------------------------------------------------------------------- death at every line of it


class Assassin:
    """Kills the next replacements at one moment of their start."""

    def __init__(self, moment: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = times
        start, attach = launch._start, crew_module.Crew._attach

        def started(boot: Any, method: str) -> Any:
            if boot.generation and self._strikes(moment, "unborn"):
                raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
            process = start(boot, method)
            if boot.generation and self._strikes(moment, "newborn"):
                kill(process.pid)
            elif boot.generation and self._strikes(moment, "any time"):
                threading.Timer(random.uniform(0, 0.05), os.kill, (process.pid, signal.SIGKILL)).start()
            return process

        def attached(crew: Any, worker: Any, plan: Any, rounds: int) -> None:
            is_new = crew._generations[worker.index] > 0
            if is_new and self._strikes(moment, "before it is told"):
                kill(worker.pid)
            attach(crew, worker, plan, rounds)
            if is_new and self._strikes(moment, "after it was told"):
                kill(worker.pid)

        monkeypatch.setattr(launch, "_start", started)
        monkeypatch.setattr(crew_module.Crew, "_attach", attached)

    def _strikes(self, moment: str, now: str) -> bool:
        if moment != now or not self.left:
            return False
        self.left -= 1
        return True


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("moment", ["unborn", "newborn", "before it is told", "after it was told"])
def test_a_replacement_that_dies_is_replaced_in_turn(
    moment: str, times: int, make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make()
    pool.reset(seed=0)
    assassin = Assassin(moment, times, monkeypatch)
    kill(first_pid(pool))
    steps = 0
    while assassin.left or pool.engine.crew.lost or steps < 2:
        batch = pool.step(ZEROS)
        steps += 1
        assert [read_row(obs).step for obs in batch.obs[2:]] == [steps] * 2
        assert not batch.truncated[2:].any()
        assert steps < 20
    assert_goes_on(pool, steps)


def test_why_a_replacement_could_not_start_is_told(
    make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make()
    pool.reset(seed=0)
    Assassin("unborn", 1, monkeypatch)
    kill(first_pid(pool))
    assert "killed by SIGKILL" in faults_of(pool.step(ZEROS))[0]["message"]
    told = faults_of(pool.step(ZEROS))[0]
    assert told["phase"] == "construct"
    assert "worker 0 could not be started" in told["message"]
    assert "temporarily unavailable" in told["message"]


def test_how_a_replacement_ended_is_told(make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make()
    pool.reset(seed=0)
    Assassin("newborn", 1, monkeypatch)
    kill(first_pid(pool))
    pool.step(ZEROS)
    told = "\n".join(fault["message"] for _ in range(2) for fault in faults_of(pool.step(ZEROS)).values())
    assert "killed by SIGKILL" in told


@pytest.mark.slow
def test_replacements_that_die_at_any_time_are_replaced_in_turn(
    make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make()
    pool.reset(seed=0)
    assassin = Assassin("any time", 15, monkeypatch)
    kill(first_pid(pool))
    steps, end = 0, monotonic() + 40
    while assassin.left:
        steps += 1
        assert [read_row(obs).step for obs in pool.step(ZEROS).obs[2:]] == [steps] * 2
        assert monotonic() < end
    sleep(0.1)  # the last one strikes
    for _ in range(10):
        pool.step(ZEROS)
    assert_goes_on(pool, steps + 10)


# ---------------------------------------------------------------------- a Ctrl-C


def test_a_ctrl_c_while_a_replacement_starts_costs_nobody_a_file(
    make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make(on_fault="raise")
    pool.reset(seed=0)
    kill(first_pid(pool))
    with pytest.raises(errors.WorkerDied):
        pool.step(ZEROS)
    interrupt_once(monkeypatch, StderrRelay, "add", after=True)
    with pytest.raises(KeyboardInterrupt):
        pool.reset(seed=0)
    mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    with contextlib.suppress(errors.WorkerDied):
        pool.reset(seed=0)
    pool.reset(seed=0)
    pool.close()
    assert all(map(is_open, mine))
    for fd in mine:
        os.close(fd)


# ---------------------------------------------------------------------- hangs, and a pool that is closed meanwhile


def hanging_once(flag: str) -> type[CountingEnv]:
    """An env whose first reset in its life hangs, and whose later ones take a while."""

    class HangsOnce(CountingEnv):
        def reset(self, **how: Any) -> Any:
            if not os.path.exists(flag):
                open(flag, "x").close()
                sleep(60)
            sleep(0.3)
            return super().reset(**how)

    return HangsOnce


def test_a_replacement_has_the_whole_of_its_time(tmp_path: Path, make: Callable[..., shoal.Pool]) -> None:
    """The time that its predecessor hung, at the same command of the same env, is not held against it."""
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(4)]
    fns[0] = partial(hanging_once(str(tmp_path / "flag")), tag=0, episode_length=50)
    pool = make(fns, reset_timeout=1.5, construct_timeout=1.5)
    batch = pool.reset(seed=0)
    assert "no answer after" in faults_of(batch)[0]["message"]
    assert faults_of(batch)[0]["incarnation"] == 1
    assert [read_row(obs).step for obs in pool.step(ZEROS).obs] == [1] * 4


def test_a_pool_that_is_closed_while_it_replaces_a_worker_leaves_nothing(
    make: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for delay_s in (0.0, 0.01, 0.05):
        with no_leftovers():
            pool = make()
            pool.reset(seed=0)
            kill(first_pid(pool))
            pool.step(ZEROS)
            closer = threading.Timer(delay_s, pool.close)
            closer.start()
            with pytest.raises(errors.ShoalError):
                kill_and_step(pool)
            closer.join()
            pool.close()
            del pool


def kill_and_step(pool: shoal.Pool) -> None:
    while True:
        with contextlib.suppress(psutil.NoSuchProcess):
            kill(first_pid(pool))
        pool.step(ZEROS)


def test_a_worker_that_hangs_before_it_takes_a_large_request_is_given_up(make: Callable[..., shoal.Pool]) -> None:
    """What is sent to it does not fit the socket, so whoever sends it has to wait, but not for ever."""
    pool = make(on_fault="raise", reset_timeout=0.5, step_timeout=0.5)
    pool.reset(seed=0)
    os.kill(first_pid(pool), signal.SIGSTOP)
    start = monotonic()
    with pytest.raises(errors.EnvTimeout):
        pool.reset(seed=0, options={"blob": bytes(10**7)})
    assert monotonic() - start < 5.0
    wait_until(lambda: not psutil.pid_exists(first_pid(pool)))
