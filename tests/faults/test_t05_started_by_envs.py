"""T5: what an env has started goes with its worker, however that ends; unless it was meant to live on its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest
from trainer_processes import METHODS, METHODS_HERE, assert_gone, lives, program

from shoal import errors
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import shoal

    Children = Callable[[shoal.Pool], list[psutil.Process]]

ACTIONS = [0, 0]


class WithChild(CountingEnv):
    """An env with a process beside it, which ends only if it is told to."""

    def __init__(self, *, leaves: bool = False) -> None:
        super().__init__()
        sleep = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
        self.child = subprocess.Popen(sleep, start_new_session=leaves)

    @property
    def child_pid(self) -> int:
        return self.child.pid

    def close(self) -> None:
        self.child.terminate()
        self.child.wait()


@pytest.fixture
def children() -> Iterator[Children]:
    """Finds the processes that the envs of a pool have started, and ends what is left of them."""
    found: list[psutil.Process] = []

    def find(pool: shoal.Pool) -> list[psutil.Process]:
        own = [psutil.Process(pid) for pid in pool.get_attr("child_pid")]
        found.extend(own)
        return own

    yield find
    for child in found:
        if lives(child):
            child.kill()


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.slow if m == "spawn" else ()) for m in METHODS_HERE]
)
def test_t05_what_an_env_has_started_goes_with_a_worker_that_is_killed(
    method: str, make_pool: Callable[..., shoal.Pool], children: Children
) -> None:
    pool = make_pool(WithChild, 2, engine="process", num_workers=2, start_method=method)
    pool.reset(seed=0)
    first, second = children(pool)
    os.kill(pool.engine.pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(errors.WorkerDied):
        pool.step(ACTIONS)
    assert_gone([first])
    assert lives(second)


def test_t05_what_an_env_has_started_stays_if_it_has_left_the_group(
    make_pool: Callable[..., shoal.Pool], children: Children
) -> None:
    pool = make_pool(WithChild, 2, engine="process", num_workers=1, env_kwargs={"leaves": True})
    pool.reset(seed=0)
    own = children(pool)
    os.kill(pool.engine.pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(errors.WorkerDied):
        pool.step(ACTIONS)
    assert all(map(lives, own))


def test_t05_a_restarted_env_has_one_process_beside_it(
    make_pool: Callable[..., shoal.Pool], children: Children
) -> None:
    pool = make_pool(WithChild, 2, engine="process", num_workers=1, on_fault="restart")
    pool.reset(seed=0)
    before = children(pool)
    os.kill(pool.engine.pids[0], signal.SIGKILL)  # type: ignore[attr-defined]
    assert pool.step(ACTIONS).truncated.all()
    pool.step(ACTIONS)
    assert_gone(before)
    assert all(map(lives, children(pool)))


TRAINER = dedent("""
    import subprocess, sys
    import shoal
    from shoal.testing import CountingEnv

    class WithChild(CountingEnv):
        def __init__(self):
            super().__init__()
            sleep = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
            self.child = subprocess.Popen(sleep, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    pool = shoal.make_pool(WithChild, 2, engine="process", num_workers=2, start_method=sys.argv[1])
    pool.reset(seed=0)
    print(*pool.engine.pids, flush=True)
    while True:
        pool.step([0, 0])
""")


@pytest.mark.parametrize("method", [pytest.param(m, marks=pytest.mark.slow if m == "spawn" else ()) for m in METHODS])
def test_t05_what_envs_have_started_goes_with_a_trainer_that_is_killed(method: str) -> None:
    with program(TRAINER, method) as trainer:
        sleepers = [member for member in trainer.family if "-S" in member.cmdline()]
        assert len(sleepers) == 2
        os.kill(trainer.process.pid, signal.SIGKILL)
        assert trainer.end().code == -signal.SIGKILL
