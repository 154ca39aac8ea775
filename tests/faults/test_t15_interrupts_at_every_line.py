"""T15: a Ctrl-C at any line of a pool, and the program goes on: nothing hangs, no row is made up, a reset mends it."""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from itertools import count
from linecache import getline
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

import shoal
from shoal.errors import FaultError, NothingInFlight, StateError, WorkerDied
from shoal.testing import CountingEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ROOT = str(Path(shoal.__file__).parent)
SOON_S = 10.0
BEFORE, CUT, AFTER = 3, 1, 2
"""Actions: of the step before the one that is cut short, of that one, and of the one after."""


def interrupt_at(line: int, call: Callable[[], Any]) -> bool:
    """Make a call, and raise KeyboardInterrupt before so many lines of shoal's were run; False if there were fewer."""
    lines: Iterator[int] = count()
    latest: dict[FrameType, int] = {}
    is_cut = False

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal is_cut
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line" and not is_cut:
            is_possible = not _is_between_block_and_with(frame, latest.get(frame, 0))
            latest[frame] = frame.f_lineno
            if is_possible and next(lines) == line:
                is_cut = True
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        assert is_cut
    finally:
        sys.settrace(None)
    return is_cut


def _is_between_block_and_with(frame: FrameType, latest: int) -> bool:
    """Whether a ``with`` is at the edge of its block: Python never looks for a signal there, only a tracer can."""
    text = getline(frame.f_code.co_filename, frame.f_lineno).strip()
    if text == "try:":
        return getline(frame.f_code.co_filename, latest).strip().startswith("with ")
    return text.startswith("with ") and latest > frame.f_lineno


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
    """Every line, and whether the program receives what is left before it resets."""
    return ((line, is_patient) for line in count() for is_patient in (True, False))


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
def test_t15_a_pool_survives_an_interrupt_at_every_line(
    call: Callable[[shoal.Pool], None], batch_size: int, way: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    options: dict[str, Any] = {"engine": "process", "inline": True} if "inline" in way else {"engine": way}
    if way != "serial":
        options["num_workers"] = 2
    env = partial(CountingEnv, episode_length=1000)
    pool = make_pool(env, 2, step_timeout=SOON_S, batch_size=batch_size, **options)
    for line, is_patient in twice():
        pool.reset(seed=line)
        pool.step([BEFORE, BEFORE])
        was_cut = interrupt_at(line, lambda: call(pool))
        if is_patient:
            take_what_is_left(pool)
        assert [read_row(obs).step for obs in pool.reset(seed=line).obs] == [0, 0]
        rows = [read_row(obs) for obs in pool.step([AFTER, AFTER]).obs]
        assert [(row.step, row.action) for row in rows] == [(1, AFTER)] * 2
        if not was_cut:
            break
    assert line > 20


@pytest.mark.parametrize("task_id", ["Pendulum-v1", "InvertedPendulum-v5"])
def test_t15_a_compiled_or_native_pool_makes_up_no_row(task_id: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pytest.importorskip("numba")
    pytest.importorskip("mujoco")
    pool = make_pool(task_id, 2)
    actions = np.zeros((2, 1), np.float32)
    for line, is_patient in twice():
        pool.reset(seed=line)
        pool.step(actions)
        was_cut = interrupt_at(line, lambda: pool.step(actions))
        try:
            while is_patient:
                assert set(pool.recv(timeout=SOON_S).elapsed_step.tolist()) <= {2}
        except (NothingInFlight, StateError, FaultError):
            pass
        assert pool.reset(seed=line).elapsed_step.tolist() == [0, 0]
        assert pool.step(actions).elapsed_step.tolist() == [1, 1]
        if not was_cut:
            break
    assert line > 20


def test_t15_a_long_request_to_a_process_that_was_cut_off_costs_that_at_most(
    make_pool: Callable[..., shoal.Pool],
) -> None:
    pool = make_pool(CountingEnv, 2, engine="process", num_workers=2, reset_timeout=SOON_S)
    told = set()
    for line in count():
        pool.reset(seed=line)
        was_cut = interrupt_at(line, lambda: pool.reset(seed=5, options={"note": "long" * 5000}))
        try:
            pool.reset(seed=line)
        except WorkerDied as error:
            told.add(str(error))
        assert [read_row(obs).step for obs in pool.reset(seed=line).obs] == [0, 0]
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
