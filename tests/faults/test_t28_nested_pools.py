"""T28: a pool inside an env, a daemonic process or a DataLoader's worker works, or says why it cannot."""

from __future__ import annotations

import importlib.util
import json
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from trainer_processes import METHODS_HERE, assert_gone, lives, run_program

import shoal
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

CONSTRUCT_S = 30.0  # a fork server of its own for every env, each of which may have to load torch


def nesting_env(**inner: Any) -> gymnasium.Env[Any, Any]:
    """An env whose step is a step of a whole pool; its class is local, so that workers need not import the tests."""

    class Nesting(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-np.inf, np.inf, (2, 8), np.float64)
        action_space = spaces.Discrete(5)

        def __init__(self) -> None:
            self.pool = shoal.make_pool(CountingEnv, 2, env_kwargs={"episode_length": 50}, **inner)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return self.pool.reset(seed=seed).obs, {}

        def step(self, action: Any) -> Any:
            batch = self.pool.step([action, action])
            return batch.obs, float(batch.reward.sum()), False, False, {}

        def inner_pids(self) -> list[int]:
            return list(getattr(self.pool.engine, "pids", []))

        def close(self) -> None:
            self.pool.close()

    return Nesting()


def make_nested(make_pool: Callable[..., shoal.Pool], outer: str, **inner: Any) -> shoal.Pool:
    options = {"engine": "process", "num_workers": 2, "start_method": outer, "construct_timeout": CONSTRUCT_S}
    return make_pool(partial(nesting_env, **inner), 2, **options)


INNER: dict[str, dict[str, Any]] = {
    "serial": {"engine": "serial"},
    "thread": {"engine": "thread", "num_workers": 2},
    **{method: {"engine": "process", "num_workers": 2, "start_method": method} for method in METHODS_HERE},
}
PAIRS = [
    ("forkserver", "thread"),
    ("fork!", "serial"),
    pytest.param("fork!", "fork!", marks=pytest.mark.slow),
    pytest.param("fork!", "forkserver", marks=pytest.mark.slow),
    pytest.param("forkserver", "fork!", marks=pytest.mark.slow),
    pytest.param("forkserver", "forkserver", marks=pytest.mark.slow),
    pytest.param("spawn", "spawn", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_t28_a_pool_inside_an_env_of_a_pool_works_and_ends_with_it(
    outer: str, inner: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_nested(make_pool, outer, **INNER[inner])
    pool.reset(seed=0)
    assert pool.step([1, 2]).reward.tolist() == [2.0, 2.0]
    assert pool.step([1, 2]).reward.tolist() == [4.0, 4.0]
    pids = [pid for own in pool.call("inner_pids") for pid in own]
    assert len(set(pids)) == (4 if inner in METHODS_HERE else 0)
    workers = [psutil.Process(pid) for pid in pids]
    assert all(lives(worker) for worker in workers)
    pool.close()
    assert_gone(workers)


@pytest.mark.slow
def test_t28_inner_workers_end_when_the_outer_worker_is_killed(make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_nested(make_pool, "forkserver", **INNER["forkserver"])
    pool.reset(seed=0)
    workers = [psutil.Process(pid) for own in pool.call("inner_pids") for pid in own]
    for pid in pool.engine.pids:
        psutil.Process(pid).kill()
    assert_gone(workers)


@pytest.mark.slow
def test_t28_a_fork_of_a_process_with_a_fork_server_starts_its_own_and_keeps_nobody_elses() -> None:
    code = dedent("""
        import os
        import shoal
        from multiprocessing import forkserver
        from shoal.testing import CountingEnv

        def play():
            with shoal.make_pool(CountingEnv, 2, engine="process", num_workers=2) as pool:
                pool.reset(seed=0)
                assert pool.step([0, 0]).reward.tolist() == [1.0, 1.0]

        play()
        server = forkserver._forkserver
        alive = os.fstat(server._forkserver_alive_fd)
        if not (pid := os.fork()):
            fds = [int(fd) for fd in os.listdir("/proc/self/fd")[:-1]]
            open_files = [os.fstat(fd) for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
            play()
            print(alive in open_files, flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        play()
        print("done")
    """)
    ended = run_program(code)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "False\ndone\n", "")


# ---------------------------------------------------------------------- processes that may have no children

# What a pool did in such a process: its rewards, or the classes and the text of the error.
ATTEMPT = dedent("""
    import json, sys
    import shoal
    from shoal.testing import CountingEnv

    engine, method = sys.argv[1:]
    options = dict(engine=engine, num_workers=2 if engine != "auto" else None)
    if method != "-":
        options["start_method"] = method

    def attempt():
        try:
            with shoal.make_pool(CountingEnv, 2, **options) as pool:
                pool.reset(seed=0)
                return {"rewards": pool.step([0, 0]).reward.tolist()}
        except Exception as error:
            return {"kinds": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}
""")


def assert_works_or_is_refused(stdout: str, *, may_be_refused: bool) -> None:
    told = json.loads(stdout)
    if may_be_refused and "text" in told:
        # Python's own word for such a process, and a way out of it.
        assert "ShoalError" in told["kinds"], told
        assert "daemonic" in told["text"]
        assert "thread" in told["text"]
    else:
        assert told == {"rewards": [1.0, 1.0]}


ENGINES = [("process", "forkserver"), ("process", "fork"), ("auto", "-"), ("thread", "-")]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "method"), ENGINES)
def test_t28_a_pool_in_a_daemonic_process_works_or_is_refused(engine: str, method: str) -> None:
    code = ATTEMPT + dedent("""
        import multiprocessing
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=lambda: theirs.send(attempt()), daemon=True)
        process.start()
        print(json.dumps(ours.recv()))
        process.join()
    """)
    ended = run_program(code, engine, method)
    assert (ended.code, ended.stderr) == (0, "")
    assert_works_or_is_refused(ended.stdout, may_be_refused=engine != "thread")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(("engine", "method"), [("process", "forkserver"), ("thread", "-")])
def test_t28_a_pool_in_a_worker_of_a_data_loader_works_or_is_refused(engine: str, method: str) -> None:
    code = ATTEMPT + dedent("""
        from torch.utils.data import DataLoader, IterableDataset

        class Rollouts(IterableDataset):
            def __iter__(self):
                yield attempt()

        [told] = DataLoader(Rollouts(), batch_size=None, num_workers=1)
        print(json.dumps(told))
    """)
    ended = run_program(code, engine, method)
    assert (ended.code, ended.stderr) == (0, "")
    assert_works_or_is_refused(ended.stdout, may_be_refused=engine == "process")
