"""Gymnasium's Box2D envs under EnvPool's ids.

They are Gymnasium's own; all that is added is the ids that it no longer has (``LunarLander-v2``), which EnvPool has
beside the newer ones, with the same env behind both.
"""

from __future__ import annotations

import importlib.util

import gymnasium as gym

from shoal.errors import BackendUnavailable

__all__ = ["OLD_IDS", "TASKS", "check_installed"]

OLD_IDS = {
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "CarRacing-v2": "CarRacing-v3",
}
TASKS = (*OLD_IDS.values(), "BipedalWalker-v3", "BipedalWalkerHardcore-v3", *OLD_IDS)

_HOME = "gymnasium.envs.box2d"


def check_installed(task_id: str) -> None:
    """See that what the env of this id needs is installed, if it is one of Gymnasium's Box2D envs.

    Raises:
        BackendUnavailable: If it is not.
    """
    registered = gym.registry.get(OLD_IDS.get(task_id, task_id))
    if registered is None or not str(registered.entry_point).startswith(_HOME):
        return
    # What CarRacing observes is a picture, which pygame draws.
    needs = ("Box2D", "pygame") if task_id.startswith("CarRacing") else ("Box2D",)
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendUnavailable(f"{task_id} needs {' and '.join(missing)}: pip install 'shoal[box2d]'")
