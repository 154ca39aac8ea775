"""Gymnasium's MuJoCo robots on ``mujoco.batch``, and ``MujocoEnv`` for models of your own.

The same seed and the same actions give the same episode as Gymnasium's env. The table says which class runs under
which id; it only names the classes, because MuJoCo is needed only to make one.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

from shoal.envs import ShippedTask
from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OLD_TASKS", "TASKS", "has_mujoco"]

_HOME = "shoal.envs.mujoco"
# Where the class is, the time limit, and the mean return at which EnvPool calls the task solved.
_ROBOTS: dict[str, tuple[str, int, float | None]] = {
    "Ant": (f"{_HOME}.ant:Ant", 1000, 6000.0),
    "HalfCheetah": (f"{_HOME}.planar:HalfCheetah", 1000, 4800.0),
    "Hopper": (f"{_HOME}.planar:Hopper", 1000, 6000.0),
    "Humanoid": (f"{_HOME}.humanoid:Humanoid", 1000, None),
    "HumanoidStandup": (f"{_HOME}.humanoid:HumanoidStandup", 1000, None),
    "InvertedDoublePendulum": (f"{_HOME}.pendulums:InvertedDoublePendulum", 1000, 9100.0),
    "InvertedPendulum": (f"{_HOME}.pendulums:InvertedPendulum", 1000, 950.0),
    "Pusher": (f"{_HOME}.arms:Pusher", 100, 0.0),
    "Reacher": (f"{_HOME}.arms:Reacher", 50, -3.75),
    "Swimmer": (f"{_HOME}.swimmer:Swimmer", 1000, 360.0),
    "Walker2d": (f"{_HOME}.planar:Walker2d", 1000, None),
}


# The option that decides whether contact forces cost anything.
_CONTACT = {"Ant": "use_contact_forces", "Humanoid": "use_contact_force"}


def _tasks() -> Iterator[tuple[str, ShippedTask]]:
    for robot, (home, limit, threshold) in _ROBOTS.items():
        for version in (4, 5):
            own = {_CONTACT[robot]: version == 5} if robot in _CONTACT else {}
            yield f"{robot}-v{version}", ShippedTask(home, {"version": version, **own}, limit, threshold)


def _old_tasks() -> Iterator[tuple[str, ShippedTask]]:
    for robot, (home, limit, threshold) in _ROBOTS.items():
        version = 3 if robot in _IN_VERSION_3 else 2
        options = {"version": 4, "post_constraint": False, **_IN_VERSION_3.get(robot, {})}
        yield f"{robot}-v{version}", ShippedTask(home, options, limit, threshold)


TASKS: dict[str, ShippedTask] = dict(_tasks())
# Ids that EnvPool has and Gymnasium has dropped: version 4 without contact forces, as it was with older MuJoCos.
_IN_VERSION_3: dict[str, dict[str, Any]] = {
    "Ant": {"use_contact_forces": True},
    "HalfCheetah": {},
    "Hopper": {},
    "Humanoid": {"use_contact_force": True},
    "Swimmer": {},
    "Walker2d": {},
}
OLD_TASKS: dict[str, ShippedTask] = dict(_old_tasks())


@cache
def has_mujoco() -> bool:
    """Whether the installed MuJoCo, if any, can step many simulations at once."""
    try:
        batch = importlib.import_module("mujoco.batch")
    except ImportError:  # not installed, or too old
        return False
    return hasattr(batch.Batch, "expanded")  # MuJoCo 3.17 has an early version of it


def check_installed(registered: Any, *, needs_batch: bool) -> None:
    """Check that the MuJoCo that an env needs is installed, if it is registered as one of Gymnasium's robots.

    Args:
        registered: Its registration, if it has one.
        needs_batch: Whether it is to run here. Gymnasium's own envs are content with an older MuJoCo, but the old ids
            are only ours.

    Raises:
        BackendUnavailable: If it is not.
    """
    task_id = getattr(registered, "id", "")
    if not (task_id in TASKS or task_id in OLD_TASKS) or not _is_gymnasiums(registered):
        return
    needs_batch = needs_batch or task_id in OLD_TASKS
    if not (has_mujoco() if needs_batch else importlib.util.find_spec("mujoco")):
        version = " 4 or later" * needs_batch
        raise BackendUnavailable(f"env: {task_id} needs MuJoCo{version}: pip install 'shoal[mujoco]'")


def _is_gymnasiums(registered: Any) -> bool:
    home = registered.entry_point
    return str(home if isinstance(home, str) else getattr(home, "__module__", "")).startswith("gymnasium.envs")


def __getattr__(name: str) -> Any:
    if name == "MujocoEnv":
        if not has_mujoco():
            raise BackendUnavailable("MujocoEnv needs MuJoCo 4 or later: pip install 'shoal[mujoco]'")
        from shoal.envs.mujoco.env import MujocoEnv

        return MujocoEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
