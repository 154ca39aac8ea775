"""A pool and the processes around it: a second pool, a forked copy of its program, an idle hour, a terminal.

That nothing outlives a pool, whatever ends it, is in tests/faults: T15 to T19.
"""

from __future__ import annotations

import os
import pty
import signal
import threading
from functools import partial
from textwrap import dedent
from time import sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from trainer_processes import METHODS, METHODS_HERE, SOON_S, assert_gone, lives, program, run_program

import shoal
from shoal.testing import CountingEnv, no_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def test_two_pools_of_one_program_do_not_hold_each_other() -> None:
    with no_leftovers():
        first = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="fork!")
        second = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="fork!")
        first.reset(seed=0)
        first.close()
        assert len(second.reset(seed=0)) == 2
        second.close()
        del first, second


# ---------------------------------------------------------------------- waking


class Sleeper(CountingEnv):
    """Its step takes so many hundredths of a second as its tag says."""

    def step(self, action: Any) -> Any:
        sleep(0.01 * self.tag)
        return super().step(action)


@pytest.mark.parametrize(("batch_size", "rounds"), [(None, 1), (3, 2)])
def test_a_pool_is_woken_once_for_the_rows_it_waits_for(
    batch_size: int | None, rounds: int, make_pool: Callable[..., shoal.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    fns = [partial(Sleeper, tag=tag) for tag in (1, 3, 5, 7, 9, 11)]
    pool = make_pool(fns, engine="process", num_workers=6, batch_size=batch_size)
    pool.reset()
    rounds_of_pool, woken = pool.engine._rounds, []
    wait = rounds_of_pool.waiter.wait
    spy = SimpleNamespace(wait=lambda *args: woken.append(wait(*args)) or woken[-1])
    monkeypatch.setattr(rounds_of_pool, "waiter", spy)
    pool.send(np.zeros(6, np.int64))
    rows = [pool.recv().env_id.tolist() for _ in range(rounds)]
    assert [i for batch in rows for i in batch] == list(range(6))
    # A worker that was about to wake the pool for the call before may do it once in vain.
    assert 0 < woken.count(True) <= 2 * rounds < 6


# ---------------------------------------------------------------------- a forked trainer


def in_child(work: Callable[[], Any]) -> int:
    """Fork, let the child work and leave as a program does, without running the rest of the tests in it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


@pytest.mark.parametrize("method", METHODS_HERE)
def test_a_forked_child_cannot_end_the_pool_of_its_parent(method: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method=method)
    pool.reset(seed=0)
    child = in_child(pool.close)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.step([0, 0]).reward.tolist() == [1.0, 1.0]
    assert all(lives(psutil.Process(pid)) for pid in pool.engine.pids)


def test_a_forked_child_that_runs_to_its_end_is_quiet_and_harmless() -> None:
    code = dedent("""
        import os, sys
        import shoal
        from shoal.testing import CountingEnv
        pool = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2)
        pool.reset(seed=0)
        print(*pool.engine.pids, flush=True)
        sys.stdin.read()
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert pool.step([0, 0]).reward.tolist() == [1.0, 1.0]
        pool.close()
    """)
    with program(code) as trainer:
        ended = trainer.end()
    assert (ended.stderr, ended.code) == ("", 0)


def test_workers_die_with_their_trainer_even_if_a_forked_child_of_it_lives_on() -> None:
    code = dedent("""
        import os, time
        import shoal
        from shoal.testing import CountingEnv
        pool = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2)
        pool.reset(seed=0)
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        print(*pool.engine.pids, flush=True)
        time.sleep(60)
    """)
    with program(code) as trainer:
        workers = [member for member in trainer.family if member.pid in trainer.pids]
        assert len(workers) == 2
        trainer.process.kill()
        assert_gone(workers)


class Staying(CountingEnv):
    """Writes to one pipe when it is closed, and stays until another is written to."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def close(self) -> None:
        (self.folder / "here").write_text("here")
        (self.folder / "go").read_text()


def test_a_child_that_is_forked_while_another_thread_closes_the_pool_can_close_it(
    tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    for name in ("here", "go"):
        os.mkfifo(tmp_path / name)
    pool = make_pool(partial(Staying, tmp_path), 1, engine="process", num_workers=1, close_timeout=SOON_S)
    pool.reset(seed=0)
    closer = threading.Thread(target=pool.close)
    closer.start()
    (tmp_path / "here").read_text()  # the thread waits for the env

    def close_soon() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(2)
        pool.close()

    child = in_child(close_soon)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (tmp_path / "go").write_text("go")
    closer.join()


# ---------------------------------------------------------------------- a signal


class Signalling(CountingEnv):
    """Sends a signal to the trainer when it is closed."""

    def __init__(self, trainer: int) -> None:
        super().__init__()
        self.trainer = trainer

    def close(self) -> None:
        os.kill(self.trainer, signal.SIGUSR1)


@pytest.mark.timeout(SOON_S)
def test_a_signal_handler_may_close_a_pool_that_is_being_closed(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(partial(Signalling, os.getpid()), 1, engine="process", num_workers=1)
    pool.reset(seed=0)
    (worker,) = (psutil.Process(pid) for pid in pool.engine.pids)
    closed = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: closed.append(pool.close()))
    try:
        pool.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert closed == [None]
    assert not lives(worker)


# ---------------------------------------------------------------------- idling


def test_an_idle_pool_uses_no_cpu(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 4, engine="process", num_workers=2, threads_per_worker=2)
    pool.reset(seed=0)
    for _ in range(100):
        pool.step([0] * 4)
    workers = [psutil.Process(pid) for pid in pool.engine.pids]
    before = [sum(worker.cpu_times()[:2]) for worker in workers]
    sleep(1.0)
    used = [sum(worker.cpu_times()[:2]) - start for worker, start in zip(workers, before, strict=True)]
    assert max(used) <= 0.05


TERMINAL = dedent("""
    import os, sys, termios
    import shoal
    from shoal.testing import CountingEnv

    os.open(sys.argv[1], os.O_RDWR)  # the first terminal that the leader of a session opens is the session's

    class Raw(CountingEnv):
        def step(self, action):
            terminal = os.open("/dev/tty", os.O_RDWR)
            termios.tcsetattr(terminal, termios.TCSANOW, termios.tcgetattr(terminal))
            os.close(terminal)
            return super().step(action)

    with shoal.make_pool(Raw, 1, engine="process", num_workers=1, start_method=sys.argv[2], step_timeout=10.0) as pool:
        pool.reset(seed=0)
        print(pool.step([0]).elapsed_step.tolist(), flush=True)
""")


@pytest.mark.parametrize("method", [pytest.param(m, marks=() if m == "fork" else pytest.mark.slow) for m in METHODS])
def test_an_env_may_set_the_terminal_although_its_worker_is_not_in_the_foreground(method: str) -> None:
    ours, theirs = pty.openpty()
    try:
        ended = run_program(TERMINAL, os.ttyname(theirs), method, start_new_session=True)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "[1]\n", "")
