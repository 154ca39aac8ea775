"""How long an env's step takes, how much of that needs a core, and whether what it returns can leave a process."""

from __future__ import annotations

import resource
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from shoal.errors import SpecError
from shoal.spec import SpaceTree


def measure(env: Any, budget_s: float = 0.02) -> tuple[float, float]:
    """Seconds that a step with random actions takes on a core of its own, and the share of them spent on the core.

    The rest is waiting: for a socket, a timer, another process. Time in which other programs had the core is left out.
    """
    env.reset()
    waits_before, queued_before = _off_core()
    steps, start, cpu_start = 0, perf_counter(), thread_time()
    # The median would be steadier, but reading two clocks per step would cost as much as a cheap env's step.
    while perf_counter() - start < budget_s or steps < 3:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        steps += 1
        if terminated or truncated:
            env.reset()
    wall_s, cpu_s = perf_counter() - start, thread_time() - cpu_start
    waits, queued = _off_core()
    # A virtual machine may lose its core without any queueing to show for it; but if the thread never began to wait,
    # all the missing time was taken from it.
    waited_s = max(0.0, wall_s - cpu_s - (queued - queued_before)) if waits > waits_before else 0.0
    return (cpu_s + waited_s) / steps, cpu_s / (cpu_s + waited_s)


def why_it_must_stay(env: Any) -> str:
    """Says what an env returns that could not leave a worker process; empty if there is nothing."""
    from shoal.engines.process.codec import encode  # a pool without processes has no use for it

    tree = SpaceTree(env.observation_space, "observation")
    obs, info = env.reset()
    objects = [value for leaf, value in zip(tree.leaves, tree.flatten(obs), strict=True) if not leaf.is_array]
    later = env.step(env.action_space.sample())[4]
    try:
        for value, path in ((objects, "observation"), (info, "info"), (later, "info")):
            encode(value, path)
    except SpecError as error:
        return str(error)
    return ""


def _off_core() -> tuple[int, float]:
    """How often this thread has begun to wait, and for how many seconds it was ready to run but had no core."""
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    try:
        _, queued_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):  # not every kernel keeps it
        return waits, 0.0
    return waits, int(queued_ns) / 1e9
