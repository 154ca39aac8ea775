"""A pool of tiny envs in real worker processes: whether it starts, how long that takes, and what it costs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from shoal.build import make_pool
from shoal.engines.process.descriptors import open_fds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.pool import Pool


@dataclass(frozen=True, slots=True)
class Trial:
    """What it took to run workers.

    Attributes:
        method: How they were started.
        first_s: Time until the first pool of one worker could be used, including the start of the fork server.
        next_s: The same for the next pool of one worker.
        fds_per_worker: File descriptors that each worker takes in the pool's process.
        worker_bytes: Memory that belongs to one worker.
        libraries: Numeric libraries in a worker and the threads each would use; None if that cannot be found out.
    """

    method: str
    first_s: float
    next_s: float
    fds_per_worker: int
    worker_bytes: int
    libraries: dict[str, int] | None


class ProbeEnv(gym.Env[np.int64, np.int64]):
    """An env that does nothing but report on the process it is in."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Begin an episode that never ends."""
        super().reset(seed=seed)
        return np.int64(0), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Return the action as the observation."""
        return np.int64(action), 0.0, False, False, {}

    def vitals(self) -> tuple[int, dict[str, int] | None]:
        """The memory of this process in bytes, and the threads of its libraries."""
        return own_bytes(), library_threads()


def try_workers(method: str) -> Trial:
    """Start real workers, use them, and end them.

    Raises:
        OSError: If the machine does not let them start (``ResourceError`` is one).
        FaultError: If they start and then fail.
    """
    with _workers(1, method) as (_, first_s):
        pass
    with _workers(1, method) as (one, next_s):
        fds = open_fds()
        worker_bytes, libraries = one.call("vitals")[0]
    with _workers(2, method):
        fds_per_worker = open_fds() - fds
    return Trial(method, first_s, next_s, fds_per_worker, worker_bytes, libraries)


@contextmanager
def _workers(count: int, method: str) -> Iterator[tuple[Pool, float]]:
    start = perf_counter()
    with make_pool(ProbeEnv, count, engine="process", num_workers=count, start_method=method) as pool:
        pool.reset(seed=1)
        pool.step(np.zeros(count, np.int64))
        yield pool, perf_counter() - start


def own_bytes() -> int:
    """The memory of this process, including its part of shared memory; 0 if the system does not say."""
    try:
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def library_threads() -> dict[str, int] | None:
    """Numeric libraries that are loaded, and how many threads each may use; None without ``threadpoolctl``."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    threads: dict[str, int] = {}
    for library in threadpool_info():
        name = str(library["internal_api"])
        threads[name] = max(threads.get(name, 0), int(library["num_threads"]))
    return threads
