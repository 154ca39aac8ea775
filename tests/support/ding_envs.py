"""Envs of DI-engine's kind whose rows show where they came from, and which go wrong when an action says so."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np

from shoal.faces.ding import BaseEnvTimestep
from shoal.testing import kinds


def hang() -> None:
    """Wait for ``testing.release_hangs``, or to be killed."""
    kinds.ACTS[kinds.Fault.HANG](None)  # type: ignore[arg-type]


class Tally:
    """Observation: index, episode, step. Reward: step.

    Actions that are words do something else than step: "raise", "stumble" (raise the first time), "kill", "hang",
    "abnormal". Keywords of ``reset`` do as much for resets.
    """

    def __init__(self, index: int = 0, length: int = 3, reset_s: float = 0.0) -> None:
        self.index, self.length, self.reset_s = index, length, reset_s
        self.observation_space: Any = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.action_space: Any = gymnasium.spaces.Discrete(4)
        self.reward_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32)
        self.episode, self.k, self.resets, self.stumbles = -1, 0, 0, 0
        self.stat: Any = None
        self.seeds: list[Any] = []
        self.given: list[Any] = []
        self.replay_path: str | None = None
        self.birth = f"{os.getpid()}-{time.monotonic_ns()}"
        self.pid = os.getpid()

    def obs(self) -> Any:
        return np.array([self.index, self.episode, self.k], np.float32)

    def reset(
        self, stat: Any = None, fails_until: int = 0, only_fresh: bool = False, hangs: bool = False, dies: bool = False
    ) -> Any:
        self.resets += 1
        if self.resets > 1:
            time.sleep(self.reset_s)
        if hangs:
            hang()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.resets < fails_until or (only_fresh and self.resets > 1):
            raise ValueError("cannot reset")
        self.episode += 1
        self.k, self.stat = 0, stat
        return self.obs()

    def step(self, action: Any) -> Any:
        self.given.append(action)
        if isinstance(action, str):
            self._act(action)
        if isinstance(action, str) and action == "abnormal":
            return BaseEnvTimestep(self.obs(), np.zeros(1, np.float32), True, {"abnormal": True})
        self.k += 1
        done = self.k >= self.length
        info = {"TimeLimit.truncated": True, "note": "text", "eval_episode_return": 1.0} if done else {}
        return BaseEnvTimestep(self.obs(), np.array([self.k], np.float32), done, info)

    def _act(self, word: str) -> None:
        if word == "raise":
            raise ZeroDivisionError("step went wrong")
        if word == "stumble":
            self.stumbles += 1
            if self.stumbles == 1:
                raise ZeroDivisionError("only the first time")
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "hang":
            hang()

    def seed(self, seed: int, dynamic_seed: Any = "not given") -> None:
        self.seeds.append((seed, dynamic_seed))

    def close(self) -> None:
        pass

    def enable_save_replay(self, path: str) -> None:
        self.replay_path = path

    def render(self, mode: str = "rgb_array") -> Any:
        return np.full((2, 2, 3), self.k, np.uint8)

    def reward_shaping(self, transitions: list[float]) -> list[float]:
        return [value + self.index for value in transitions]

    def secret(self) -> int:
        return 42

    @property
    def label(self) -> str:
        return f"env{self.index}"

    @property
    def inverse(self) -> float:
        return 1 / self.resets  # an env that was never reset cannot tell

    def __repr__(self) -> str:
        return f"Tally({self.index})"
