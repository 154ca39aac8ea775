"""What is particular to envs in the caller's thread: whoever closes the pool meanwhile waits for nobody's step."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import shoal
from shoal import Restart
from shoal.engines.base import Command
from shoal.errors import ClosedPool
from shoal.testing import CountingEnv

SOON_S = 20.0
"""Long enough for anything that is going to happen at all."""


class Held(CountingEnv):
    """Stays in its step until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside, self.may_go = threading.Event(), threading.Event()

    def step(self, action: Any) -> Any:
        self.is_inside.set()
        assert self.may_go.wait(SOON_S)
        return super().step(action)


def test_an_env_is_closed_after_its_step_and_not_within_it() -> None:
    env = Held()
    pool = shoal.make_pool(lambda: env, 1, engine="serial")
    pool.reset(seed=1)
    with ThreadPoolExecutor(1) as other:
        step = other.submit(pool.step, [0])
        assert env.is_inside.wait(SOON_S)
        pool.close()
        was_closed_within = env.is_closed
        env.may_go.set()
        assert step.result(SOON_S).elapsed_step.tolist() == [1]
    assert not was_closed_within
    assert env.is_closed


def test_a_closed_engine_runs_nothing() -> None:
    pool = shoal.make_pool(CountingEnv, 1, engine="serial")
    pool.reset(seed=1)
    pool.close()
    engine = pool.engine
    for call in (
        lambda: engine.step_now(0),
        lambda: engine.submit([0], Command.STEP),
        lambda: engine.collect(1, None),
    ):
        with pytest.raises(ClosedPool):
            call()


def test_a_pool_that_is_closed_while_an_env_waits_to_be_built_anew_does_not_build_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, closed = [], []

    class Failing(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            built.append(self)

        def step(self, action: Any) -> Any:
            raise RuntimeError("no more")

        def close(self) -> None:
            closed.append(self)

    def close_meanwhile(seconds: float) -> None:
        pool.close()
        monkeypatch.setattr("shoal.sending.monotonic", lambda: time.monotonic() + seconds)

    rules = Restart(waits_first=True, backoff_s=60.0, longest_s=60.0)
    pool = shoal.make_pool(Failing, 1, engine="serial", on_fault=rules)
    pool.reset(seed=1)
    pool.step([0])
    monkeypatch.setattr("shoal.sending.sleep", close_meanwhile)
    with pytest.raises(ClosedPool):
        pool.step([0])
    assert (len(built), closed) == (1, built)


def test_a_pool_dropped_without_close_closes_its_envs() -> None:
    env = CountingEnv()
    pool = shoal.make_pool(lambda: env, 1, engine="serial")
    pool.reset(seed=1)
    del pool
    gc.collect()
    assert env.is_closed
