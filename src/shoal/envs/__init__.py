"""The envs that ship with shoal: classic control and toy text, written to be compiled.

Each module holds one family. Where Gymnasium has the env too, the same seed and the same actions give the same
episode there and here: every random number is drawn in the same order and used in the same way.

The table below says which class runs under which id. It names the classes instead of importing them, so that looking
up an id costs nothing. The robots in ``shoal.envs.mujoco`` have a table of their own.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.kernel import KernelEnv
    from shoal.native import NativeEnv

__all__ = ["TASKS", "ShippedTask"]


@dataclass(frozen=True, slots=True)
class ShippedTask:
    """One id: a kind of env, the arguments it is made with, and its time limit.

    Attributes:
        home: Where the class is, ``"module:name"``.
        kwargs: Keyword arguments of the class.
        max_episode_steps: The time limit; None for no limit.
        reward_threshold: The mean return at which the task counts as solved.
    """

    home: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    reward_threshold: float | None = None

    def load(self) -> type[KernelEnv | NativeEnv]:
        """The class, imported now."""
        module, _, name = self.home.partition(":")
        kind: type[KernelEnv | NativeEnv] = getattr(importlib.import_module(module), name)
        return kind


TASKS: dict[str, ShippedTask] = {
    "CartPole-v0": ShippedTask("shoal.envs.cartpole:CartPole", {}, 200, 195.0),
    "CartPole-v1": ShippedTask("shoal.envs.cartpole:CartPole", {}, 500, 475.0),
    "Pendulum-v0": ShippedTask("shoal.envs.pendulum:Pendulum", {"version": 0}, 200),
    "Pendulum-v1": ShippedTask("shoal.envs.pendulum:Pendulum", {}, 200),
    "MountainCar-v0": ShippedTask("shoal.envs.mountain_car:MountainCar", {}, 200, -110.0),
    "MountainCarContinuous-v0": ShippedTask("shoal.envs.mountain_car:MountainCarContinuous", {}, 999, 90.0),
    "Acrobot-v1": ShippedTask("shoal.envs.acrobot:Acrobot", {}, 500, -100.0),
    "Catch-v0": ShippedTask("shoal.envs.catch:Catch"),
    "FrozenLake-v1": ShippedTask("shoal.envs.frozen_lake:FrozenLake", {"map_name": "4x4"}, 100, 0.7),
    "FrozenLake8x8-v1": ShippedTask("shoal.envs.frozen_lake:FrozenLake", {"map_name": "8x8"}, 200, 0.85),
    "Taxi-v3": ShippedTask("shoal.envs.taxi:Taxi", {}, 200, 8.0),
    "Taxi-v4": ShippedTask("shoal.envs.taxi:Taxi", {}, 200, 8.0),
    "NChain-v0": ShippedTask("shoal.envs.nchain:NChain", {}, 1000),
    "CliffWalking-v0": ShippedTask("shoal.envs.cliff_walking:CliffWalking"),
    "CliffWalking-v1": ShippedTask("shoal.envs.cliff_walking:CliffWalking"),
    "CliffWalkingSlippery-v1": ShippedTask("shoal.envs.cliff_walking:CliffWalking", {"is_slippery": True}),
    "Blackjack-v1": ShippedTask("shoal.envs.blackjack:Blackjack", {"natural": False, "sab": True}),
}
