"""T15: a Ctrl-C anywhere in a pool, and the program goes on: nothing hangs, no row is made up, a reset mends it."""

from __future__ import annotations

import contextlib
import signal
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from interrupts import interrupt_at

import shoal
from shoal.errors import EnvStepError, FaultError, NothingInFlight, StateError, WorkerDied
from shoal.testing import CountingEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON_S = 10.0
BEFORE, CUT, AFTER, FAIL = 3, 1, 2, 0
"""Actions: of the step before the one that is cut short, of that one, of the one after, and one that fails."""


def take_what_is_left(pool: shoal.Pool) -> None:
    """Receive until there is nothing more; what comes answers the call that was cut short, or is an error."""
    try:
        while True:
            rows = [read_row(obs) for obs in pool.recv(timeout=SOON_S).obs]
            assert all(row.action == CUT or row.step == 0 for row in rows), f"rows of a step that never was: {rows}"
    except (NothingInFlight, StateError):
        pass
    except FaultError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise


def twice() -> Iterator[tuple[int, bool]]:
    """Every point, and whether the program receives what is left before it resets."""
    return ((point, is_patient) for point in count() for is_patient in (True, False))


def step(pool: shoal.Pool) -> None:
    pool.step([CUT, CUT])


def send_and_receive(pool: shoal.Pool) -> None:
    pool.send([CUT, CUT])
    while pool.under_way:
        pool.recv()


def reset(pool: shoal.Pool) -> None:
    pool.reset(seed=5)


@pytest.mark.parametrize("batch_size", [2, 1])
@pytest.mark.parametrize("call", [step, send_and_receive, reset])
@pytest.mark.parametrize("way", ["serial", "thread", "process", "inline process"])
def test_t15_a_pool_survives_an_interrupt_anywhere(
    call: Callable[[shoal.Pool], None], batch_size: int, way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    options: dict[str, Any] = {"engine": "process", "inline": True} if "inline" in way else {"engine": way}
    if way != "serial":
        options["num_workers"] = 2
    env = partial(CountingEnv, episode_length=1000)
    pool = make_pool(env, 2, step_timeout=SOON_S, batch_size=batch_size, **options)
    for point, is_patient in twice():
        pool.reset(seed=point)
        pool.step([BEFORE, BEFORE])
        was_cut = interrupt_at(point, lambda: call(pool))
        if is_patient:
            take_what_is_left(pool)
        assert [read_row(obs).step for obs in pool.reset(seed=point).obs] == [0, 0]
        rows = [read_row(obs) for obs in pool.step([AFTER, AFTER]).obs]
        assert [(row.step, row.action) for row in rows] == [(1, AFTER)] * 2
        if not was_cut:
            break
    assert point > 20


class Talking(CountingEnv):
    """Its infos have a text, which no column can hold; told to fail, it does."""

    def step(self, action: Any) -> Any:
        if action == FAIL:
            raise RuntimeError("as told")
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "told": f"action {action}"}


def step_and_fail(pool: shoal.Pool) -> None:
    with contextlib.suppress(EnvStepError):
        pool.step([CUT, FAIL, CUT])


def read_tags(pool: shoal.Pool) -> None:
    pool.get_attr("tag")


def step_all(pool: shoal.Pool) -> None:
    pool.step([CUT] * 3)


def check_what_is_left(pool: shoal.Pool, call: Callable[[shoal.Pool], None]) -> None:
    """What comes is of the step that was cut short, with all that belongs to it, or an error."""
    try:
        while True:
            batch = pool.recv(timeout=SOON_S)
            told = {row: info.get("told") for row, info in batch.infos}
            for row, obs in enumerate(batch.obs):
                assert call is not read_tags, "a row though nobody has stepped"
                assert call is not step_and_fail or batch.env_id[row] != 1, "a row of an env that failed"
                assert (read_row(obs).action, told.get(row)) == (CUT, f"action {CUT}")
    except (NothingInFlight, StateError, EnvStepError):
        pass


@pytest.mark.parametrize("call", [step_all, step_and_fail, read_tags])
@pytest.mark.parametrize("way", ["serial", "thread", "process", "inline process"])
def test_t15_infos_faults_and_answers_survive_an_interrupt_anywhere(
    call: Callable[[shoal.Pool], None], way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    options: dict[str, Any] = {"engine": "process", "inline": True} if "inline" in way else {"engine": way}
    if way != "serial":
        options["num_workers"] = 2
    pool = make_pool(partial(Talking, episode_length=1000), 3, step_timeout=SOON_S, reset_timeout=SOON_S, **options)
    for point in count():
        pool.reset(seed=point)
        pool.step([BEFORE] * 3)
        was_cut = interrupt_at(point, lambda: call(pool))
        check_what_is_left(pool, call)
        assert [read_row(obs).step for obs in pool.reset(seed=point).obs] == [0, 0, 0]
        batch = pool.step([AFTER] * 3)
        assert {row: info["told"] for row, info in batch.infos} == dict.fromkeys(range(3), f"action {AFTER}")
        if not was_cut:
            break
    assert point > 20


@pytest.mark.parametrize("task_id", ["Pendulum-v1", "InvertedPendulum-v5"])
def test_t15_a_compiled_or_native_pool_makes_up_no_row(task_id: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pytest.importorskip("numba")
    pytest.importorskip("mujoco")
    pool = make_pool(task_id, 2)
    actions = np.zeros((2, 1), np.float32)
    for point, is_patient in twice():
        pool.reset(seed=point)
        pool.step(actions)
        was_cut = interrupt_at(point, lambda: pool.step(actions))
        try:
            while is_patient:
                assert set(pool.recv(timeout=SOON_S).elapsed_step.tolist()) <= {2}
        except (NothingInFlight, StateError, FaultError):
            pass
        assert pool.reset(seed=point).elapsed_step.tolist() == [0, 0]
        assert pool.step(actions).elapsed_step.tolist() == [1, 1]
        if not was_cut:
            break
    assert point > 15


def test_t15_a_long_request_to_a_process_that_was_cut_off_costs_that_at_most(
    make_pool: Callable[..., shoal.Pool],
) -> None:
    pool = make_pool(CountingEnv, 2, engine="process", num_workers=2, reset_timeout=SOON_S)
    told = set()
    for point in count():
        pool.reset(seed=point)
        was_cut = interrupt_at(point, lambda: pool.reset(seed=5, options={"note": "long" * 5000}))
        try:
            pool.reset(seed=point)
        except WorkerDied as error:
            told.add(str(error))
        assert [read_row(obs).step for obs in pool.reset(seed=point).obs] == [0, 0]
        if not was_cut:
            break
    assert told
    assert all("an interrupt has cut off what it was being sent" in text for text in told), told


class Lingering(CountingEnv):
    """Takes its time to close."""

    def close(self) -> None:
        time.sleep(0.4)


def test_t15_a_close_that_was_interrupted_can_be_finished() -> None:
    pool = shoal.make_pool(Lingering, 2, engine="process", num_workers=2)
    pool.reset(seed=1)
    pids = pool.engine.pids  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            pool.close()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    pool.close()
    assert not any(map(psutil.pid_exists, pids))
