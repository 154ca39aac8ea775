"""Env managers of shoal and of DI-engine, in turns: how many steps of CartPole in a second.

    python benchmarks/ding_managers.py                                  # DI-engine in the same Python
    python benchmarks/ding_managers.py --peer-python PEER/bin/python    # DI-engine 0.5.3 wants numpy < 2: its own venv

Each library has a process of its own, which measures one kind of manager at a time when it is told to. Each round goes
through all of them once, in a new order, so that they see the same machine. A figure is the median over rounds; a ratio
is the median of the ratios within a round. Both run the same env and the same loop: read ``ready_obs``, act, step.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

LIBRARIES = {"shoal": "shoal.faces.ding", "ding": "ding.envs"}
KINDS = ("BaseEnvManager", "SyncSubprocessEnvManager", "BaseEnvManagerV2", "SubprocessEnvManagerV2")


class CartPole:
    """Gymnasium's CartPole in DI-engine's form: float32 rewards of shape (1,), one flag, the return at the end."""

    def __init__(self, timestep: Any) -> None:
        self.env = gymnasium.make("CartPole-v1", disable_env_checker=True)
        self.timestep = timestep
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.reward_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.total = 0.0

    def reset(self) -> Any:
        self.total = 0.0
        return self.env.reset()[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.total += reward
        done = terminated or truncated
        if done:
            info = {**info, "eval_episode_return": self.total}
        return self.timestep(obs, np.array([reward], np.float32), done, info)

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        self.env.reset(seed=seed)

    def close(self) -> None:
        self.env.close()

    def __repr__(self) -> str:
        return "CartPole"


class Session:
    """One open manager."""

    def __init__(self, library: str, kind: str, num_envs: int) -> None:
        home = importlib.import_module(LIBRARIES[library])
        cls = getattr(home, kind)
        self.takes_rows = kind.endswith("V2")
        self.manager = cls([partial(CartPole, home.BaseEnvTimestep)] * num_envs, cls.default_config())
        self.manager.seed(0)
        self.manager.launch()
        # In one go, so that drawing them does not appear in the result.
        self.actions = itertools.cycle(np.random.default_rng(0).integers(0, 2, (10_000, num_envs)).tolist())

    def rate(self, seconds: float) -> float:
        manager, steps = self.manager, 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(10):
                obs = manager.ready_obs
                actions = next(self.actions)[: len(obs)]
                given = actions if self.takes_rows else dict(zip(obs, actions))  # noqa: B905 - python of the peer
                steps += len(manager.step(given))
        return steps / (time.perf_counter() - start)


def serve(library: str, num_envs: int) -> None:
    """Answer, line by line, with the rate of the manager whose name and seconds are asked for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sessions: dict[str, Session] = {}
    for line in sys.stdin:
        kind, seconds = json.loads(line)
        if kind not in sessions:
            sessions[kind] = Session(library, kind, num_envs)
            sessions[kind].rate(0.2)
        answers.write(json.dumps(sessions[kind].rate(seconds)) + "\n")
        answers.flush()
    for session in sessions.values():
        session.manager.close()


class Host:
    """A library in a process of its own."""

    def __init__(self, python: str, library: str, num_envs: int, errors: Any) -> None:
        command = [python, __file__, "--serve", library, "--envs", str(num_envs)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        )

    def rate(self, kind: str, seconds: float) -> float:
        self.process.stdin.write(json.dumps([kind, seconds]) + "\n")  # type: ignore[union-attr]
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"{self.process.args} ended; what it wrote to stderr tells why")
        return float(json.loads(line))

    def close(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait(30)


def measure(given: argparse.Namespace) -> None:
    with given.errors.open("w") if given.errors else contextlib.nullcontext() as errors:
        hosts = {
            "shoal": Host(sys.executable, "shoal", given.envs, errors),
            "ding": Host(given.peer_python, "ding", given.envs, errors),
        }
        rates: dict[tuple[str, str], list[float]] = {(name, kind): [] for kind in given.kinds for name in hosts}
        for _ in range(given.rounds):
            for name, kind in random.sample(list(rates), len(rates)):
                rates[name, kind].append(hosts[name].rate(kind, given.seconds))
        for host in hosts.values():
            host.close()
    print(f"{given.envs} CartPoles, env steps per second, median of {given.rounds} rounds:")
    for kind in given.kinds:
        ours, theirs = rates["shoal", kind], rates["ding", kind]
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        own, other = statistics.median(ours), statistics.median(theirs)
        print(f"  {kind:26} shoal {own:9,.0f}  DI-engine {other:9,.0f}  x {ratio:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="per manager and round")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--errors", type=Path, help="a file for what the processes write to stderr")
    parser.add_argument("--serve", choices=list(LIBRARIES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.envs)
    else:
        measure(given)


if __name__ == "__main__":
    main()
