"""Workers live exactly as long as their pool: whatever ends it, nothing is left two seconds later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from textwrap import dedent
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import shoal
from shoal.testing import CountingEnv, no_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

METHODS = ["fork!", "forkserver", "spawn"]
GRACE_S = 2.0

# A trainer that says when it is where the test wants it, and then stays there.
TRAINER = dedent("""
    import sys, time
    from functools import partial
    import shoal
    from shoal.testing import CountingEnv, FaultEnv

    method, state = sys.argv[1:]
    fault = partial(FaultEnv, "hang_gil", at=1) if state == "hung" else CountingEnv
    pool = shoal.make_pool([fault, CountingEnv], engine="process", num_workers=2, start_method=method, close_timeout=1)
    pool.reset(seed=0)
    if state == "hung":
        pool.send([0, 0])
    if state == "stepping":
        pool.step([0, 0])
    print(*pool.engine.pids, flush=True)
    if state == "idle":
        time.sleep(60)
    if state == "hung":
        pool.recv()
    while True:
        pool.step([0, 0])
""")


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(processes: list[psutil.Process], limit_s: float = GRACE_S) -> None:
    end = monotonic() + limit_s
    while left := [process for process in processes if lives(process)]:
        if monotonic() > end:
            for process in left:
                process.kill()
            pytest.fail(f"still there after {limit_s} s: {left}")
        sleep(0.01)


@contextmanager
def script(code: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A Python program in a session of its own, and all its descendants once it has printed its first line."""
    command = [sys.executable, "-c", code, *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            pids = [int(word) for word in process.stdout.readline().split()]
            assert pids, process.communicate()[1]
            family = psutil.Process(process.pid).children(recursive=True)
            assert {*pids} <= {member.pid for member in family}
            yield process, family
        finally:
            process.kill()
            process.communicate()


def assert_nothing_outlives(method: str, state: str, number: signal.Signals) -> None:
    with script(TRAINER, method, state) as (process, family):
        # A terminal sends Ctrl-C to the whole group; the other signals are meant for the trainer.
        (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
        stderr = process.communicate(timeout=10)[1]
        assert_gone(family)
    assert process.returncode == -number
    if number is signal.SIGINT:
        assert stderr.count("Traceback") == 1
        assert stderr.strip().endswith("KeyboardInterrupt")
    else:
        assert stderr == ""


STATES = ["idle", "stepping", "hung"]
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
EVERY_END = [(method, state, number) for method in METHODS for state in STATES for number in SIGNALS]
# Every method, every state and every signal once, and the default method with each signal.
SOME_ENDS = [
    ("forkserver", "idle", signal.SIGKILL),
    ("forkserver", "stepping", signal.SIGINT),
    ("forkserver", "hung", signal.SIGTERM),
    ("fork!", "hung", signal.SIGKILL),
    ("spawn", "idle", signal.SIGTERM),
]
SLOW_METHODS = ["forkserver", *(pytest.param(method, marks=pytest.mark.slow) for method in ("fork!", "spawn"))]


@pytest.mark.parametrize(("method", "state", "number"), SOME_ENDS)
def test_nothing_outlives_the_trainer(method: str, state: str, number: signal.Signals) -> None:
    assert_nothing_outlives(method, state, number)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "state", "number"), [end for end in EVERY_END if end not in SOME_ENDS])
def test_nothing_outlives_the_trainer_in_any_state(method: str, state: str, number: signal.Signals) -> None:
    assert_nothing_outlives(method, state, number)


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_ctrl_c_while_envs_are_built_prints_one_traceback(method: str) -> None:
    code = dedent("""
        import os, sys, threading, time
        from functools import partial
        import shoal
        from shoal.testing import FaultEnv

        def tell():
            import multiprocessing
            while len(multiprocessing.active_children()) < 2:
                time.sleep(0.005)
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)

        threading.Thread(target=tell, daemon=True).start()
        envs = [partial(FaultEnv, "slow", where="init", delay_s=30)] * 2
        shoal.make_pool(envs, engine="process", num_workers=2, start_method=sys.argv[1], close_timeout=1)
    """)
    with script(code, method) as (process, family):
        os.killpg(process.pid, signal.SIGINT)
        stderr = process.communicate(timeout=10)[1]
        assert_gone(family)
    assert stderr.count("Traceback") == 1
    assert process.returncode == -signal.SIGINT


# ---------------------------------------------------------------------- ends of another kind

ENDINGS = {
    "the end of the program": "",
    "an error": "raise SystemExit(5)",
    "os._exit": "import os; os._exit(5)",
    "a dropped pool": "del pool; time.sleep(0.5)",
}


@pytest.mark.parametrize("method", SLOW_METHODS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_forgets_to_close_leaves_nothing(ending: str, method: str) -> None:
    code = dedent(f"""
        import time
        import shoal
        from shoal.testing import CountingEnv
        pool = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method={method!r})
        pool.reset(seed=0)
        pool.send([0, 0])
        print(*pool.engine.pids, flush=True)
        time.sleep(0.3)
    """)
    with script(code + ENDINGS[ending]) as (process, family):
        stderr = process.communicate(timeout=10)[1]
        assert_gone(family)
    assert stderr == ""


def test_a_program_with_finalizers_of_its_own_ends_though_nobody_closed_the_pool() -> None:
    # A finalizer made before multiprocessing is imported puts weakref's exit handler behind multiprocessing's, which
    # waits for every child that still runs.
    code = dedent("""
        import tempfile
        folder = tempfile.TemporaryDirectory()
        import shoal
        from shoal.testing import CountingEnv
        pool = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2)
        pool.reset(seed=0)
        print(*pool.engine.pids, flush=True)
        import time; time.sleep(0.3)
    """)
    with script(code) as (process, family):
        assert process.communicate(timeout=5)[1] == ""
        assert_gone(family)
    assert process.returncode == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_dropped_pool_ends_its_workers(method: str) -> None:
    with no_leftovers():
        pool = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method=method)
        pool.reset(seed=0)
        workers = [psutil.Process(pid) for pid in pool.engine.pids]
        del pool
        assert_gone(workers)


def test_two_pools_of_one_program_do_not_hold_each_other() -> None:
    with no_leftovers():
        first = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="fork!")
        second = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="fork!")
        first.reset(seed=0)
        first.close()
        assert len(second.reset(seed=0)) == 2
        second.close()
        del first, second


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


@pytest.mark.parametrize("method", METHODS)
def test_a_forked_child_cannot_end_the_pool_of_its_parent(method: str, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method=method)
    pool.reset(seed=0)
    child = in_child(pool.close)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.step([0, 0]).reward.tolist() == [1.0, 1.0]
    assert all(lives(psutil.Process(pid)) for pid in pool.engine.pids)


def test_a_forked_child_that_runs_to_its_end_is_quiet_and_harmless() -> None:
    code = dedent("""
        import os, sys, time
        import shoal
        from shoal.testing import CountingEnv
        pool = shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2)
        pool.reset(seed=0)
        print(*pool.engine.pids, flush=True)
        time.sleep(0.3)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert pool.step([0, 0]).reward.tolist() == [1.0, 1.0]
        pool.close()
    """)
    with script(code) as (process, family):
        stderr = process.communicate(timeout=10)[1]
        assert_gone(family)
    assert (stderr, process.returncode) == ("", 0)


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
    with script(code) as (process, family):
        workers = process_workers(family)
        process.kill()
        try:
            assert_gone(workers)
        finally:
            for member in family:
                if lives(member):
                    member.kill()


def process_workers(family: list[psutil.Process]) -> list[psutil.Process]:
    """The workers among the descendants of a program: those that the fork server has started."""
    return [member for member in family if "forkserver" in " ".join(member.cmdline()) and not member.children()]


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


@pytest.mark.slow
def test_a_suspended_job_does_not_look_like_hanging_envs() -> None:
    code = dedent("""
        from functools import partial
        import shoal
        from shoal.testing import SleepyEnv
        env = partial(SleepyEnv, 0.02, sigma=0)
        pool = shoal.make_pool(env, 2, engine="process", num_workers=2, step_timeout=1.0)
        pool.reset(seed=0)
        print(*pool.engine.pids, flush=True)
        for _ in range(100):
            pool.step([0, 0])
        pool.close()
    """)
    with script(code) as (process, family):
        os.killpg(process.pid, signal.SIGSTOP)
        sleep(2.5)
        os.killpg(process.pid, signal.SIGCONT)
        stderr = process.communicate(timeout=20)[1]
        assert_gone(family)
    assert (stderr, process.returncode) == ("", 0)
