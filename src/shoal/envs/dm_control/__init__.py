"""The tasks of dm_control's suite: ``dm_control/cheetah-run``, under EnvPool's ids (``CheetahRun-v1``) as well.

Every task can run as dm_control's own env on the engines for Python envs. Those of the domains in ``_NATIVE`` also run
many at once on ``mujoco.batch``, where the same seed and the same actions give the same episode. The tables name
classes instead of importing them, because dm_control is needed only to make one.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from shoal.envs import ShippedTask

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ENVPOOL_IDS", "MISSING", "PLAIN", "TASKS", "SuiteTask", "find_task", "has_dm_control"]

MISSING = "tasks of dm_control's suite need dm_control: pip install 'shoal[dm-control]'"
PREFIX = "dm_control/"
PLAIN = "shoal.envs.dm_control.env:SuiteEnv"
STEPS = 1000

_SUITE = """
    acrobot       swingup swingup_sparse
    ball_in_cup   catch
    cartpole      balance balance_sparse swingup swingup_sparse two_poles three_poles
    cheetah       run
    dog           stand walk trot run fetch
    finger        spin turn_easy turn_hard
    fish          upright swim
    hopper        stand hop
    humanoid      stand walk run run_pure_state
    humanoid_CMU  stand walk run
    lqr           lqr_2_1 lqr_6_2
    manipulator   bring_ball bring_peg insert_ball insert_peg
    pendulum      swingup
    point_mass    easy hard
    quadruped     walk run escape fetch
    reacher       easy hard
    stacker       stack_2 stack_4
    swimmer       swimmer6 swimmer15
    walker        stand walk run
"""
_ENDLESS = frozenset({"lqr"})  # until the masses are at rest
_NATIVE = {
    "acrobot": "shoal.envs.dm_control.pendulums:Acrobot",
    "ball_in_cup": "shoal.envs.dm_control.targets:BallInCup",
    "cartpole": "shoal.envs.dm_control.pendulums:Cartpole",
    "cheetah": "shoal.envs.dm_control.planar:Cheetah",
    "finger": "shoal.envs.dm_control.finger:Finger",
    "fish": "shoal.envs.dm_control.swimmers:Fish",
    "hopper": "shoal.envs.dm_control.planar:Hopper",
    "humanoid": "shoal.envs.dm_control.humanoid:Humanoid",
    "humanoid_CMU": "shoal.envs.dm_control.humanoid:HumanoidCMU",
    "pendulum": "shoal.envs.dm_control.pendulums:Pendulum",
    "point_mass": "shoal.envs.dm_control.targets:PointMass",
    "reacher": "shoal.envs.dm_control.targets:Reacher",
    "swimmer": "shoal.envs.dm_control.swimmers:Swimmer",
    "walker": "shoal.envs.dm_control.planar:Walker",
}


class SuiteTask(NamedTuple):
    """One task.

    Attributes:
        plain: dm_control's own env.
        native: The same on ``mujoco.batch``, if it can run there.
    """

    plain: ShippedTask
    native: ShippedTask | None


def _tasks() -> Iterator[tuple[str, str, SuiteTask]]:
    """Ids, EnvPool's ids, and tasks."""
    for line in _SUITE.split("\n"):
        domain, *names = line.split() or [""]
        for name in names:
            options = {"domain_name": domain, "task_name": name}
            limit = None if domain in _ENDLESS else STEPS
            home = _NATIVE.get(domain)
            native = None if home is None else ShippedTask(home, options, limit)
            task = SuiteTask(ShippedTask(PLAIN, options, limit), native)
            yield f"{PREFIX}{domain}-{name}", f"{_capitals(domain)}{_capitals(name)}-v1", task


def _capitals(name: str) -> str:
    """``"ball_in_cup"`` as ``"BallInCup"``."""
    return "".join(word[0].upper() + word[1:] for word in name.split("_"))


TASKS: dict[str, SuiteTask] = {task_id: task for task_id, _, task in _tasks()}
ENVPOOL_IDS: dict[str, str] = {alias: task_id for task_id, alias, _ in _tasks()}


def find_task(task_id: str) -> tuple[SuiteTask, int | None] | None:
    """A task and its time limit, by its id, by Shimmy's (which adds ``-v0``), or by EnvPool's.

    Example:
        >>> find_task("CheetahRun-v1") == find_task("dm_control/cheetah-run-v0") == find_task("dm_control/cheetah-run")
        True
    """
    own = ENVPOOL_IDS.get(task_id)
    found = TASKS.get(own or task_id.removesuffix("-v0"))
    if found is None:
        return None
    return found, found.plain.max_episode_steps if own is None else STEPS  # in EnvPool every episode has an end


@cache
def has_dm_control() -> bool:
    """Whether dm_control is installed."""
    found = importlib.util.find_spec("dm_control")
    return found is not None and found.origin is not None  # not just a folder of that name
