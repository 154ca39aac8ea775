"""T21: a fork while other threads live is refused with advice, since it copies the locks that they hold.

`start_method="fork!"` forces it; the other start methods have nothing to fear.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import threading
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from trainer_processes import run_program

import shoal
from shoal import errors
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

OPTIONS: dict[str, Any] = {"engine": "process", "num_workers": 2}


@contextlib.contextmanager
def living_thread(name: str, *, daemon: bool = False) -> Iterator[threading.Lock]:
    """A thread that lives and holds a lock meanwhile."""
    lock, holds, let_go = threading.Lock(), threading.Event(), threading.Event()

    def live() -> None:
        with lock:
            holds.set()
            let_go.wait()

    thread = threading.Thread(target=live, name=name, daemon=daemon)
    thread.start()
    holds.wait()
    try:
        yield lock
    finally:
        let_go.set()
        thread.join()


def assert_steps(pool: shoal.Pool) -> None:
    pool.reset(seed=0)
    assert pool.step([0, 0]).reward.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("daemon", [False, True], ids=["", "daemon"])
def test_t21_fork_is_refused_while_another_thread_lives(daemon: bool, make_pool: Callable[..., shoal.Pool]) -> None:
    with living_thread("logs-uploader", daemon=daemon), pytest.raises(errors.ResourceError) as caught:
        make_pool(CountingEnv, 2, start_method="fork", **OPTIONS)
    told = str(caught.value)
    assert "logs-uploader" in told
    assert "forkserver" in told
    assert "fork!" in told


def test_t21_fork_names_every_thread(make_pool: Callable[..., shoal.Pool]) -> None:
    with living_thread("logs-uploader"), living_thread("prefetch"), pytest.raises(errors.ResourceError) as caught:
        make_pool(CountingEnv, 2, start_method="fork", **OPTIONS)
    assert "logs-uploader" in str(caught.value)
    assert "prefetch" in str(caught.value)


@pytest.mark.parametrize("method", [None, "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_t21_the_other_methods_work_in_the_same_situation(
    method: str | None, make_pool: Callable[..., shoal.Pool]
) -> None:
    with living_thread("logs-uploader"):
        assert_steps(make_pool(CountingEnv, 2, start_method=method, **OPTIONS))


def test_t21_a_fork_can_be_forced(make_pool: Callable[..., shoal.Pool]) -> None:
    with living_thread("logs-uploader"):
        pool = make_pool(CountingEnv, 2, start_method="fork!", **OPTIONS)
        assert_steps(pool)
        assert "fork" in repr(pool)


def test_t21_a_careful_fork_leaves_it_to_the_fork_server(make_pool: Callable[..., shoal.Pool]) -> None:
    with living_thread("logs-uploader"):
        pool = make_pool(CountingEnv, 2, start_method="fork?", **OPTIONS)
        assert_steps(pool)
        assert "forkserver" in repr(pool)


# What else lives in a process that may fork. These are programs, since pytest's own watchdog is a thread.
HARMLESS = {
    "nothing": "",
    "a thread that has ended": "ended = threading.Thread(target=int); ended.start(); ended.join()",
    "threads of shoal": "threads = shoal.make_pool(CountingEnv, 2, engine='thread', num_workers=2)",
    "another pool of processes": "other = shoal.make_pool(CountingEnv, 2, **options)",
    "numpy at work": "numpy.ones((300, 300)) @ numpy.ones((300, 300))",
    "a watchdog": "faulthandler.dump_traceback_later(300)",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HARMLESS)
def test_t21_what_holds_no_lock_of_the_users_is_no_reason_to_refuse(what: str) -> None:
    code = """
        import faulthandler, threading
        import numpy
        import shoal
        from shoal.testing import CountingEnv

        options = dict(engine="process", num_workers=2, start_method="fork")
        HARMLESS
        with shoal.make_pool(CountingEnv, 2, **options) as pool:
            pool.reset(seed=0)
            print(pool.step([0, 0]).reward.tolist())
    """
    ended = run_program(dedent(code).replace("HARMLESS", HARMLESS[what]))
    assert (ended.stderr, ended.stdout, ended.code) == ("", "[1.0, 1.0]\n", 0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_t21_threads_of_a_library_are_seen_however_few_blas_has() -> None:
    # Numpy told to use one thread leaves room in a count that expects one for every other core.
    code = dedent("""
        import numpy
        import shoal, torch
        from shoal.testing import CountingEnv

        torch.set_num_threads(2)
        ones = torch.ones(600, 600)
        ones @ ones
        try:
            shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="fork").close()
        except shoal.errors.ResourceError as error:
            print(error)
    """)
    ended = run_program(code, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert (ended.code, ended.stderr) == (0, "")
    assert "forkserver" in ended.stdout


# Threads that are unknown to the threading module, where one of numpy's could be expected.
UNKNOWN = {
    "on one core": "os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]); import numpy",
    "after a fork": "import numpy; os.waitpid(os.fork() or os._exit(0), 0)",
    "beside a watchdog": "import faulthandler; faulthandler.dump_traceback_later(300)",
}


@pytest.mark.slow
@pytest.mark.parametrize("when", UNKNOWN)
def test_t21_one_unknown_thread_is_enough_to_refuse(when: str) -> None:
    code = """
        import _thread, os, time
        WHEN
        import shoal
        from shoal.testing import CountingEnv

        _thread.start_new_thread(time.sleep, (60,))
        time.sleep(0.1)
        try:
            shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="fork").close()
        except shoal.errors.ResourceError as error:
            print(error)
    """
    ended = run_program(dedent(code).replace("WHEN", UNKNOWN[when]))
    assert (ended.code, ended.stderr) == (0, "")
    assert "(1 of " in ended.stdout


@pytest.mark.slow
def test_t21_a_pool_made_in_a_thread_counts_the_main_thread_as_no_danger_to_itself() -> None:
    # The thread that forks is the one that goes on in the child; the main thread is then the other one.
    code = dedent("""
        import threading
        import shoal
        from shoal.testing import CountingEnv

        def train():
            try:
                with shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2, start_method="fork") as pool:
                    pool.reset(seed=0)
                    print(pool.step([0, 0]).reward.tolist())
            except shoal.errors.ResourceError as error:
                print("refused:", error)

        trainer = threading.Thread(target=train, name="trainer")
        trainer.start()
        trainer.join()
    """)
    ended = run_program(code)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout == "[1.0, 1.0]\n" or "forkserver" in ended.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_t21_torch_at_work_in_the_trainer_hangs_no_env(method: str) -> None:
    # Its threads are not Python's, so they can be overlooked; what may not happen is an env that waits for them.
    code = dedent("""
        import json, sys
        import torch
        import shoal
        from shoal.testing import CountingEnv

        class Multiplies(CountingEnv):
            def step(self, action):
                torch.set_num_threads(2)
                ones = torch.ones(600, 600)
                assert float((ones @ ones).sum()) == 600.0**3
                return super().step(action)

        torch.set_num_threads(2)
        ones = torch.ones(600, 600)
        ones @ ones
        options = dict(engine="process", num_workers=2, start_method=sys.argv[1], step_timeout=4)
        try:
            with shoal.make_pool(Multiplies, 2, **options) as pool:
                pool.reset(seed=0)
                print(json.dumps(pool.step([0, 0]).reward.tolist()))
        except shoal.errors.ResourceError as error:
            print(json.dumps(str(error)))
    """)
    ended = run_program(code, method)
    assert (ended.code, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert told == [1.0, 1.0] or (method == "fork" and "forkserver" in told)
