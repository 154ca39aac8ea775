"""What an env is in DI-engine's dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym

from shoal.adapters.ding_timestep import BaseEnvTimestep

__all__ = ["RETURN", "BaseEnv", "BaseEnvTimestep"]

RETURN = "eval_episode_return"
"""What the return of an episode is called in the info of its last step."""


class BaseEnv(gym.Env[Any, Any], ABC):
    """The interface of an env. By convention, the simulator is not built before the first ``reset``."""

    @abstractmethod
    def __init__(self, cfg: dict[str, Any]) -> None:
        """Take the config; build nothing expensive."""

    @abstractmethod
    def reset(self) -> Any:  # type: ignore[override]
        """Start an episode and return its first observation."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    @abstractmethod
    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]
        """Take one step."""

    @abstractmethod
    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Seed the episodes to come: each with its own seed, or all with the same one."""

    @abstractmethod
    def __repr__(self) -> str:
        """What to call the env in messages."""

    @staticmethod
    def create_collector_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """One config for each env that collects; removes ``collector_env_num`` from it."""
        return [cfg] * cfg.pop("collector_env_num")

    @staticmethod
    def create_evaluator_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """One config for each env that evaluates; removes ``evaluator_env_num`` from it."""
        return [cfg] * cfg.pop("evaluator_env_num")

    def enable_save_replay(self, replay_path: str) -> None:
        """Keep videos of the episodes to come in this folder."""
        raise NotImplementedError(f"{type(self).__name__} keeps no replays")

    def random_action(self) -> Any:
        """A random action."""
        return None
