"""T20: too little shared memory, address space or open files is a clear error before anything runs, with advice.

The limits are real ones, set in a program of its own, which reports what a pool did under them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from trainer_processes import METHODS, run_program

from shoal import errors

if TYPE_CHECKING:
    from pathlib import Path

SHM_BYTES = 2**20

# `attempt` makes a pool, steps it once and closes it; it tells how that went and what is left of it. The error's own
# frames hold the pool, so the error is gone before anyone looks.
PRELUDE = dedent("""
    import json, os, resource, sys
    import gymnasium, numpy as np
    import shoal
    from shoal.testing import CountingEnv, no_leftovers

    method = sys.argv[1]
    UNLIMITED = resource.RLIM_INFINITY

    def limit(name, most):
        resource.setrlimit(getattr(resource, name), (most, resource.getrlimit(getattr(resource, name))[1]))

    def size_of_this_process():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()

    def step_once(env, num_envs, **options):
        try:
            with shoal.make_pool(env, num_envs, engine="process", start_method=method, **options) as pool:
                started = True
                pool.reset(seed=0)
                return {"reward": pool.step([0] * num_envs).reward.tolist()}
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            return {"started": "started" in dir(), "kinds": kinds, "text": str(error)}

    def attempt(env, num_envs, lift="RLIMIT_NOFILE", grace_s=2.0, **options):
        try:
            with no_leftovers(grace_s):
                told = step_once(env, num_envs, **options)
                limit(lift, resource.getrlimit(getattr(resource, lift))[1])
        except AssertionError as error:
            told["left"] = str(error)
        return told

    BOX = gymnasium.spaces.Box(0, 255, (2**18,), np.uint8)

    class Wide(gymnasium.Env):
        # A quarter of a MiB per observation; the envs of a process share one space and take no room themselves.
        observation_space, action_space = BOX, gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(BOX.shape, BOX.dtype), {}

        def step(self, action):
            return np.ones(BOX.shape, BOX.dtype), 1.0, False, False, {}

    def warm_up():
        # The fork server starts before there is a limit: it is the trainer that has one.
        shoal.make_pool(CountingEnv, 1, engine="process", start_method=method).close()
""")


def tell(code: str, *args: str) -> Any:
    """Run a program that prints one line of JSON, and nothing else anywhere."""
    ended = run_program(PRELUDE + dedent(code), *args)
    assert ended.code == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert ended.stderr == ""
    return told


def assert_refused(told: dict[str, Any], kind: type[errors.ShoalError] = errors.ResourceError) -> str:
    """It was an error of the right class before the pool was there, and nothing is left; its text."""
    assert "left" not in told, told
    assert kind.__name__ in told.get("kinds", ()), told
    assert not told["started"], told
    return str(told["text"])


# ---------------------------------------------------------------------- shared memory


def in_small_shm(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a program that sees a /dev/shm of one MiB, in a mount namespace of its own."""
    mount = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.slow
def test_t20_a_pool_larger_than_dev_shm_works_and_puts_nothing_there() -> None:
    if in_small_shm("").returncode != 0:
        pytest.skip("no permission for a mount namespace")
    code = dedent("""
        room = os.statvfs("/dev/shm")
        with shoal.make_pool(Wide, 64, engine="process", num_workers=2, start_method=method) as pool:
            pool.reset(seed=0)
            rewards = pool.step([0] * 64).reward.sum()
            bytes_shared = os.fstat(pool.engine.crew.memory_fd).st_size
            print(json.dumps([room.f_blocks * room.f_frsize, bytes_shared, rewards, os.listdir("/dev/shm")]))
    """)
    result = in_small_shm(PRELUDE + code, "forkserver")
    assert (result.returncode, result.stderr) == (0, "")
    room, bytes_shared, rewards, names = json.loads(result.stdout)
    assert room == SHM_BYTES < bytes_shared
    assert (rewards, names) == (64.0, [])


@pytest.mark.slow
def test_t20_rows_that_cannot_be_had_are_an_error_before_the_start() -> None:
    # A limit on the size of files is the one that hits memory files too.
    told = tell(
        """
        warm_up()
        limit("RLIMIT_FSIZE", 2**20)
        print(json.dumps(attempt(Wide, 64, num_workers=2, lift="RLIMIT_FSIZE")))
        """,
        "forkserver",
    )
    text = assert_refused(told)
    assert "no room for 16.0 MiB of shared memory" in text
    assert "use fewer envs, smaller observations, or raise the memory limit" in text


# ---------------------------------------------------------------------- address space


@pytest.mark.slow
def test_t20_a_trainer_without_address_space_for_the_rows_is_told_so() -> None:
    told = tell(
        """
        warm_up()
        limit("RLIMIT_AS", size_of_this_process() + 30 * 2**20)
        # Three generations of rows, since views are asked for: 48 MiB.
        print(json.dumps(attempt(Wide, 64, num_workers=2, copy=False, lift="RLIMIT_AS")))
        """,
        "forkserver",
    )
    text = assert_refused(told)
    assert "no room for 48.0 MiB of shared memory" in text
    assert "use fewer envs, smaller observations, or raise the memory limit" in text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_t20_a_worker_without_address_space_for_the_rows_is_an_error_of_the_start(method: str) -> None:
    told = tell(
        """
        # The worker has a limit and the trainer has none, as when envs take up what a container allows.
        class Limited(Wide):
            def __init__(self):
                if resource.getrlimit(resource.RLIMIT_AS)[0] == UNLIMITED:
                    limit("RLIMIT_AS", size_of_this_process() + 30 * 2**20)

        print(json.dumps(attempt(Limited, 64, num_workers=2, copy=False)))
        """,
        method,
    )
    text = assert_refused(told, errors.ShoalError)
    assert "worker" in text
    assert "Cannot allocate memory" in text


@pytest.mark.slow
def test_t20_a_worker_that_runs_out_of_memory_before_it_is_ready_says_why() -> None:
    # Comparing two spaces takes eight times the room of one.
    told = tell(
        """
        class Limited(Wide):
            def __init__(self):
                self.observation_space = gymnasium.spaces.Box(0, 255, (2**22,), np.uint8)
                resource.setrlimit(resource.RLIMIT_AS, (size_of_this_process() + 2**24, UNLIMITED))

        print(json.dumps(attempt(Limited, 2, num_workers=1)))
        """,
        "forkserver",
    )
    text = assert_refused(told, errors.ShoalError)
    assert "worker 0" in text
    assert "allocate" in text


# ---------------------------------------------------------------------- open files


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_t20_too_few_open_files_are_an_error_with_numbers_and_advice(method: str) -> None:
    told = tell(
        """
        limit("RLIMIT_NOFILE", 64)
        print(json.dumps(attempt(CountingEnv, 30, num_workers=30)))
        """,
        method,
    )
    text = assert_refused(told)
    assert "ulimit -n" in text
    assert "fewer workers" in text
    assert re.search(r"\b64\b", text)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_t20_wherever_the_limit_on_open_files_strikes_nothing_is_left(method: str) -> None:
    outcomes = tell(
        """
        warm_up()
        outcomes = []
        for spare in range(1, 60):
            limit("RLIMIT_NOFILE", max(int(name) for name in os.listdir("/proc/self/fd")) + spare)
            outcomes.append(attempt(CountingEnv, 4, num_workers=4, grace_s=0.2))
            if "reward" in outcomes[-1]:
                break
        print(json.dumps(outcomes))
        """,
        method,
    )
    assert outcomes.pop()["reward"] == [1.0] * 4
    assert [told for told in outcomes if "left" in told or "ResourceError" not in told["kinds"]] == []
    assert len(outcomes) > 10


@pytest.mark.slow
def test_t20_hung_envs_are_ended_without_a_single_open_file_left() -> None:
    told = tell(
        """
        import time

        class Hung(CountingEnv):
            def step(self, action):
                return time.sleep(3600) if action else super().step(action)

            def close(self):
                time.sleep(3600)

        def take_all():
            try:
                while True:
                    os.open(os.devnull, os.O_RDONLY)
            except OSError:
                pass

        options = dict(engine="process", num_workers=2, start_method=method, step_timeout=0.3, close_timeout=0.3)
        pool = shoal.make_pool(Hung, 2, **options)
        pool.reset(seed=0)
        limit("RLIMIT_NOFILE", 128)
        take_all()
        try:
            pool.step([0, 1])
        except shoal.errors.EnvTimeout as error:
            faulty = error.env_ids
        has_ended = pool.engine.crew.workers[1].join(5.0)
        left = pool.recv().env_id.tolist()
        pool.close()
        print(json.dumps([faulty, has_ended, left]))
        """,
        "forkserver",
    )
    assert told == [[1], True, [0]]


@pytest.mark.slow
def test_t20_a_path_for_temporary_files_that_is_too_long_is_told_with_a_way_out(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    told = tell(
        """
        os.environ["TMPDIR"] = sys.argv[2]
        print(json.dumps(step_once(CountingEnv, 2, num_workers=2)))
        """,
        "forkserver",
        str(folder),
    )
    text = assert_refused(told)
    assert "AF_UNIX path too long" in text
    assert "TMPDIR" in text
