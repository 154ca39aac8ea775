"""Env agents of shoal and of BBRL, in turns: how many steps of CartPole in a second, epochs and transitions included.

    make bench-bbrl                                      # both, in a virtual environment of their own
    python benchmarks/bbrl_agents.py                     # shoal's engines, and BBRL if it is installed
    python benchmarks/bbrl_agents.py --rounds 5 --envs 8

First all of them play the same actions from the same seed, and their workspaces must be equal, bit for bit. Then each
round measures every contender once, in a new order, so that all of them see the same machine. A figure is the median
over rounds; a ratio is the median of the ratios within a round. "shoal" is what a user gets who names no engine.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

TIMES = 64
"""Slots of an epoch."""
ENGINES: dict[str, dict[str, Any]] = {
    "shoal": {},
    **{f"shoal {engine}": {"engine": engine} for engine in ("auto", "kernel", "serial", "process")},
}
TARGET = 5.0
"""How many times BBRL's speed somebody should get who names no engine."""


@dataclass
class Contender:
    """A library, one of its env agents, and epochs that can be run again and again."""

    name: str
    library: str
    num_envs: int
    options: dict[str, Any]

    def __post_init__(self) -> None:
        agents, envs, workspaces = (
            importlib.import_module(f"{self.library}.{part}") for part in ("agents", "agents.gymnasium", "workspace")
        )
        chance, shape = torch.Generator().manual_seed(1), (self.num_envs,)

        class Anything(agents.Agent):
            def forward(self, t: int, **kwargs: Any) -> None:
                self.set(("action", t), torch.randint(2, shape, generator=chance))

        make = partial(envs.make_env, "CartPole-v1", autoreset=True)
        self.env = envs.ParallelGymAgent(make, self.num_envs, **self.options).seed(7)
        self.run, self.workspace = agents.TemporalAgent(agents.Agents(self.env, Anything())), workspaces.Workspace()
        self.run(self.workspace, t=0, n_steps=TIMES)

    def epoch(self) -> Any:
        self.workspace.zero_grad()
        self.workspace.copy_n_last_steps(1)
        self.run(self.workspace, t=1, n_steps=TIMES - 1)
        return self.workspace.get_transitions()

    def rate(self, seconds: float) -> float:
        start, epochs = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            self.epoch()
            epochs += 1
        return epochs * (TIMES - 1) * self.num_envs / (time.perf_counter() - start)

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()  # BBRL's agents have none


def contenders(num_envs: int) -> list[Contender]:
    made = [Contender(name, "shoal.faces.bbrl", num_envs, options) for name, options in ENGINES.items()]
    try:
        made.append(Contender("bbrl", "bbrl", num_envs, {}))
    except ImportError as error:
        print(f"bbrl is left out: {error}")
    return made


def compare(every: list[Contender], epochs: int) -> int:
    """Run all contenders through the same epochs; return how many transitions were equal in all of them."""
    count = 0
    for _ in range(epochs):
        first, *others = ((each.name, each.epoch(), each.workspace) for each in every)
        for name, pairs, workspace in others:
            for own, told in ((workspace, first[2]), (pairs, first[1])):
                assert set(own.keys()) == set(told.keys()), f"{name} has other variables than {first[0]}"
                for key in told.keys():  # noqa: SIM118 - BBRL's workspaces cannot be iterated over
                    assert torch.equal(own[key], told[key]), f"{name} and {first[0]} differ in {key}"
        count += first[1].batch_size()
    return count


def measure(num_envs: int, rounds: int, seconds: float) -> None:
    every = contenders(num_envs)
    equal = compare(every, epochs=10)
    print(f"{num_envs} envs: {equal:,} transitions are the same in {', '.join(each.name for each in every)}")
    rates: dict[str, list[float]] = {each.name: [] for each in every}
    for _ in range(rounds):
        for each in random.sample(every, len(every)):
            rates[each.name].append(each.rate(seconds))
    for each in every:
        each.close()
    base = "bbrl" if "bbrl" in rates else "shoal serial"
    print(f"| {num_envs} envs | steps/s | times {base} |\n|---|--:|--:|")
    ratios = {name: statistics.median(map(float.__truediv__, found, rates[base])) for name, found in rates.items()}
    for name, found in rates.items():
        print(f"| {name} | {statistics.median(found):,.0f} | {ratios[name]:.1f} |")
    if base == "bbrl":
        print(f"at least {TARGET:g} times bbrl without naming an engine: {ratios['shoal'] >= TARGET}\n")


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
