"""What the safety that is always on costs: checks of results, the search for NaN, and the black box.

Two pools of CartPoles in one process, one with its defaults and one with all of that switched off, take turns in slices
of a few milliseconds. The cost is the median over rounds of how much longer the first took.

    python benchmarks/safety_cost.py [--rounds 300]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import shoal

SLICE_S = 0.02
CASES: dict[str, dict[str, Any]] = {
    "serial, 64 envs": {"engine": "serial", "num_envs": 64},
    "process, 2 workers, 8 envs": {"engine": "process", "num_workers": 2, "num_envs": 8},
    "process, 2 workers, 64 envs": {"engine": "process", "num_workers": 2, "num_envs": 64},
    "process, 2 workers, 64 envs, on_fault=restart": {
        "engine": "process",
        "num_workers": 2,
        "num_envs": 64,
        "on_fault": "restart",
    },
    "kernel, 64 envs": {"engine": "kernel", "num_envs": 64},
    "kernel, 1,024 envs": {"engine": "kernel", "num_envs": 1024},
    "kernel, 64 envs, on_fault=restart": {"engine": "kernel", "num_envs": 64, "on_fault": "restart"},
}


def make(options: dict[str, Any], *, is_safe: bool) -> shoal.Pool:
    if is_safe:
        pool = shoal.make_pool("CartPole-v1", seed=1, **options)
    else:
        pool = shoal.make_pool("CartPole-v1", seed=1, check="off", **{**options, "on_fault": "raise"})
        # There is no setting for this: nobody should have to think about it.
        pool._dispatch.box = pool._dispatch.sender._box = None
    pool.reset()
    return pool


def seconds_per_step(pool: shoal.Pool, actions: np.ndarray[Any, Any], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        pool.step(actions)
    return (time.perf_counter() - start) / steps


def measure(options: dict[str, Any], rounds: int) -> tuple[float, float, float]:
    """Microseconds per step without and with safety, and the median cost in percent."""
    actions = np.zeros(options["num_envs"], np.int64)
    with make(options, is_safe=True) as safe, make(options, is_safe=False) as bare:
        steps = max(1, int(SLICE_S / min(seconds_per_step(bare, actions, 200) for _ in range(5))))
        times: dict[str, list[float]] = {"safe": [], "bare": []}
        pairs = [("safe", safe), ("bare", bare)]
        for _ in range(rounds):
            pairs.reverse()  # the one that comes first has the colder cache
            for name, pool in pairs:
                times[name].append(seconds_per_step(pool, actions, steps))
    ratios = [a / b for a, b in zip(times["safe"], times["bare"], strict=True)]
    return (
        statistics.median(times["bare"]) * 1e6,
        statistics.median(times["safe"]) * 1e6,
        (statistics.median(ratios) - 1) * 100,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What the safety that is always on costs.")
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    print("| CartPole | bare, µs per step | as it comes | cost |\n|---|---:|---:|---:|")
    for name, options in CASES.items():
        bare, safe, cost = measure(options, rounds)
        print(f"| {name} | {bare:.1f} | {safe:.1f} | {cost:+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
