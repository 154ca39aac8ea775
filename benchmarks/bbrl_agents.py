"""Env agents of shoal and of BBRL, in turns: how many steps of CartPole in a second, epochs and transitions included.

    python benchmarks/bbrl_agents.py                     # shoal's engines, and BBRL if it is installed
    python benchmarks/bbrl_agents.py --rounds 5 --envs 8

Each round measures every contender once, in a new order, so that all of them see the same machine. A figure is the
median over rounds; a ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES = 64
"""Slots of an epoch."""


@dataclass
class Contender:
    """An epoch that can be run again and again."""

    name: str
    epoch: Callable[[], None]
    steps: int
    close: Callable[[], None]

    def rate(self, seconds: float) -> float:
        start, epochs = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            self.epoch()
            epochs += 1
        return epochs * self.steps / (time.perf_counter() - start)


def modules_of(library: str) -> tuple[Any, Any, Any]:
    return tuple(importlib.import_module(f"{library}.{part}") for part in ("agents", "agents.gymnasium", "workspace"))


def contender(name: str, library: str, num_envs: int, **options: Any) -> Contender:
    agents, envs, workspaces = modules_of(library)

    class Anything(agents.Agent):
        def forward(self, t: int, **kwargs: Any) -> None:
            self.set(("action", t), torch.randint(2, (num_envs,)))

    env = envs.ParallelGymAgent(partial(envs.make_env, "CartPole-v1", autoreset=True), num_envs, **options)
    run, workspace = agents.TemporalAgent(agents.Agents(env, Anything())), workspaces.Workspace()
    run(workspace, t=0, n_steps=TIMES)

    def epoch() -> None:
        workspace.zero_grad()
        workspace.copy_n_last_steps(1)
        run(workspace, t=1, n_steps=TIMES - 1)
        workspace.get_transitions()

    return Contender(name, epoch, (TIMES - 1) * num_envs, getattr(env, "close", lambda: None))


def contenders(num_envs: int) -> list[Contender]:
    made = [
        contender(f"shoal {engine}", "shoal.faces.bbrl", num_envs, engine=engine)
        for engine in ("serial", "process", "kernel")
    ]
    try:
        made.append(contender("bbrl", "bbrl", num_envs))
    except ImportError as error:
        print(f"bbrl is left out: {error}")
    return made


def measure(num_envs: int, rounds: int, seconds: float) -> None:
    every = contenders(num_envs)
    rates: dict[str, list[float]] = {each.name: [] for each in every}
    for _ in range(rounds):
        for each in random.sample(every, len(every)):
            rates[each.name].append(each.rate(seconds))
    for each in every:
        each.close()
    base = rates.get("bbrl", rates["shoal serial"])
    print(f"{num_envs} envs, env steps per second (times {'bbrl' if 'bbrl' in rates else 'shoal serial'}):")
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        print(f"  {name:16} {statistics.median(found):12,.0f}  x {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="per contender and round")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for num_envs in given.envs:
        measure(num_envs, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
