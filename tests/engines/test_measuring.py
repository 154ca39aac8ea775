"""How long a step takes is told apart from how long others kept the env waiting; and what cannot leave a process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from shoal.engines.measuring import measure
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal import Pool

_WORK_S = 1e-3


class Busy(CountingEnv):
    """A millisecond on the core per step."""

    def step(self, action: Any) -> Any:
        end = time.thread_time() + _WORK_S
        while time.thread_time() < end:
            pass
        return super().step(action)


class Sleepy(CountingEnv):
    """A millisecond of waiting per step."""

    def step(self, action: Any) -> Any:
        time.sleep(_WORK_S)
        return super().step(action)


@contextlib.contextmanager
def rivals(count: int) -> Iterator[None]:
    """Other programs, on the one core that is left to this process while they run."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.1)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("count", [0, 3])
def test_an_env_that_computes_does_not_wait_however_busy_the_machine_is(count: int) -> None:
    with rivals(count):
        step_s, on_core = measure(Busy())
    assert on_core > 0.9
    assert step_s < 2 * _WORK_S


@pytest.mark.parametrize("count", [0, 3])
def test_an_env_that_sleeps_waits_however_busy_the_machine_is(count: int) -> None:
    with rivals(count):
        step_s, on_core = measure(Sleepy())
    assert on_core < 0.4
    assert step_s > _WORK_S


def telling(value: Any) -> type[CountingEnv]:
    """An env that is worth sharing, and tells something; local, so that workers need not import the tests."""

    class Telling(CountingEnv):
        def step(self, action: Any) -> Any:
            end = time.perf_counter() + 2 * _WORK_S
            while time.perf_counter() < end:
                pass
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"told": value}

    return Telling


@pytest.mark.parametrize(
    ("value", "options", "engine"),
    [(Fraction(1, 2), {}, "serial"), (Fraction(1, 2), {"allow_pickle": True}, "process"), (0.5, {}, "process")],
    ids=["odd", "pickled", "plain"],
)
def test_what_cannot_leave_a_process_is_not_sent_to_one(
    value: Any, options: dict[str, Any], engine: str, make_pool: Callable[..., Pool]
) -> None:
    pool = make_pool(telling(value), 4, engine="auto", **options)
    assert pool.stats().engine == engine
    assert ("has to stay in this process: info" in pool.stats().engine_reason) is (engine == "serial")
    pool.reset(seed=1)
    assert pool.step([0] * 4).infos[0][1]["told"] == value
