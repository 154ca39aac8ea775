"""A rare fault, recorded where it happens and then reproduced, alone and on demand.

python examples/replay_a_fault.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium as gym
import numpy as np

import shoal
from shoal.recording import Recording
from shoal.replaying import replay


class Elevator(gym.Env[np.ndarray, int]):
    """Goes up and down between floors, and fails in one state of thousands: full, on the way up, past the top."""

    observation_space = gym.spaces.Box(0, 20, (2,), np.int64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, floors: int = 12) -> None:
        self.floors = floors

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.floor, self.load = 0, 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.load = min(8, max(0, self.load + int(self.np_random.integers(-1, 2))))
        self.floor = max(0, self.floor + int(action) - 1)
        if self.floor >= self.floors:
            if self.load == 8:
                raise RuntimeError(f"the brakes do not hold {self.load} people at floor {self.floor}")
            self.floor = self.floors - 1
        return self.observe(), float(self.load), bool(self.np_random.random() < 0.01), False, {}

    def observe(self) -> np.ndarray:
        return np.array([self.floor, self.load])


with tempfile.TemporaryDirectory() as folder:
    # The pool goes on when an env fails: the env is built anew, and its row says where the fault is recorded.
    with shoal.make_pool(Elevator, 16, engine="process", num_workers=2, on_fault="restart", fault_dir=folder) as pool:
        pool.reset(seed=1)
        actions = np.random.default_rng(1)
        found = None
        while found is None:
            batch = pool.step(actions.integers(3, size=16))
            found = next((info["fault"] for _, info in batch.infos if "fault" in info), None)
        print(f"after {pool.stats().steps:,} steps of 16 envs: {found['message']}")

    # On the command line: shoal replay FOLDER --env my_module:Elevator --pdb
    recording = Recording.load(found["folder"])
    outcome = replay(recording, Elevator)
    print(f"{outcome.verdict} after {outcome.steps} steps of one env: {outcome.error.__cause__}")
    assert outcome.verdict == "reproduced"
