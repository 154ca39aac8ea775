"""What an env is in nerveX's dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from typing import Any, ClassVar

Timestep = namedtuple("Timestep", ["obs", "act", "reward", "done", "info"])
EnvInfo = namedtuple("EnvInfo", ["agent_num", "obs_space", "act_space", "rew_space"])


class BaseEnv(ABC):
    """The interface of an env.

    Attributes:
        timestep: What ``step`` returns; subclasses may use another class.
        info_template: What ``info`` returns.
    """

    timestep: ClassVar[Any] = Timestep
    info_template: ClassVar[Any] = EnvInfo

    @abstractmethod
    def __init__(self, cfg: dict[str, Any]) -> None:
        """Take the config."""

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Start an episode and return its first observation."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    @abstractmethod
    def step(self, action: Any) -> Any:
        """Take one step."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed the env."""

    @abstractmethod
    def info(self) -> Any:
        """The env's spaces, and its number of agents."""

    @abstractmethod
    def __repr__(self) -> str:
        """What to call the env in messages."""

    @abstractmethod
    def pack(self, timesteps: Any = None, obs: Any = None) -> Any:
        """Turn the results of many envs into what callers want."""

    @abstractmethod
    def unpack(self, action: Any) -> list[dict[str, Any]]:
        """Turn a batch of actions into the keywords of each env's ``step``."""
