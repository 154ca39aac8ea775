"""T29: what many envs and many workers cost: descriptors per worker, memory per env, and a word when it is too many."""

from __future__ import annotations

import gc
import json
import os
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest
from trainer_processes import METHODS_HERE, run_program

from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")]

# Measured on Linux with Python 3.11, CountingEnv: a worker costs the trainer 6 descriptors, or 7 if it comes from the
# fork server, and a pool 5 more.
FDS_PER_WORKER = {"fork!": 6, "forkserver": 7, "spawn": 6}
FDS_PER_POOL = 5
FDS_IN_WORKER = 16  # 12 or 13 were seen
# An env costs the trainer 0.7 KiB beside its row, and its worker 4.4 KiB, of which the env itself has the most.
TRAINER_BYTES_PER_ENV = 4 * 2**10
WORKER_BYTES_PER_ENV = 16 * 2**10
NOISE_BYTES = 4 * 2**20  # pages that were shared become a process's own when their other owner ends


def num_fds() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def own_bytes(pid: int) -> int:
    """Memory that would be free if this process ended."""
    return int(psutil.Process(pid).memory_full_info().uss)


@pytest.fixture(params=METHODS_HERE)
def method(request: pytest.FixtureRequest) -> str:
    """Every start method in turn."""
    return str(request.param)


@pytest.fixture
def make(method: str, make_pool: Callable[..., shoal.Pool]) -> Callable[[int, int], shoal.Pool]:
    """Pools of so many envs in so many workers; a first one has brought up what stays."""

    def make(num_envs: int, num_workers: int) -> shoal.Pool:
        pool = make_pool(CountingEnv, num_envs, engine="process", num_workers=num_workers, start_method=method)
        pool.reset(seed=0)
        pool.step([0] * num_envs)
        return pool

    make(1, 1).close()
    return make


def test_t29_descriptors_grow_with_workers_and_not_with_envs(
    method: str, make: Callable[[int, int], shoal.Pool]
) -> None:
    before = num_fds()
    used = {}
    for num_envs, num_workers in [(2, 2), (512, 2), (4, 4)]:
        pool = make(num_envs, num_workers)
        used[num_envs, num_workers] = num_fds() - before
        pool.close()
    assert used[512, 2] == used[2, 2]
    assert all(fds <= FDS_PER_POOL + FDS_PER_WORKER[method] * workers for (_, workers), fds in used.items())
    assert num_fds() == before


def test_t29_a_worker_holds_no_descriptors_for_its_siblings(
    method: str, make: Callable[[int, int], shoal.Pool]
) -> None:
    pool = make(4, 4)
    held = [psutil.Process(pid).num_fds() for pid in pool.engine.pids]
    assert set(held) == {held[0]}
    if method != "fork!":  # a forked worker has what its trainer had open for itself
        assert held[0] <= FDS_IN_WORKER


def test_t29_memory_grows_by_little_with_each_env(make: Callable[[int, int], shoal.Pool]) -> None:
    trainer, workers, rows = {}, {}, {}
    for num_envs in (128, 256, 512):
        pool = make(num_envs, 2)
        # All of it: what a forked worker shares becomes the trainer's own, page by page, as soon as it is touched.
        trainer[num_envs] = psutil.Process().memory_info().rss
        workers[num_envs] = max(own_bytes(pid) for pid in pool.engine.pids)
        rows[num_envs] = os.fstat(pool.engine.crew.memory_fd).st_size
        pool.close()
    assert trainer[512] - trainer[128] < 384 * TRAINER_BYTES_PER_ENV + NOISE_BYTES
    assert workers[512] - workers[128] < 384 / 2 * WORKER_BYTES_PER_ENV + NOISE_BYTES
    # Rows are exactly linear, but for columns that begin at a cache line.
    assert abs((rows[512] - rows[256]) - 2 * (rows[256] - rows[128])) < 2**10


def test_t29_more_workers_than_cores_are_told_once_with_numbers() -> None:
    # On one core, as any machine has it: two workers are no crowd there, three are.
    code = dedent("""
        import json, logging, os, sys, warnings
        import shoal
        from shoal.testing import CountingEnv

        told = []

        class Keep(logging.Handler):
            def emit(self, record):
                told.append(record.getMessage())

        os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        logging.getLogger("shoal").addHandler(Keep())
        warnings.simplefilter("always")
        with warnings.catch_warnings(record=True) as caught:
            for num_workers in (1, 2, 3, 3):
                shoal.make_pool(CountingEnv, num_workers, engine="process", num_workers=num_workers).close()
        print(json.dumps(told + [str(warning.message) for warning in caught]))
    """)
    ended = run_program(code)
    assert ended.code == 0, ended.stderr
    (told,) = json.loads(ended.stdout)
    assert told.startswith("3 worker processes share 1 usable core, ")
    assert "num_workers=1" in told
