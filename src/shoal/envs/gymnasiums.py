"""Ids that Gymnasium knows only once the library that has them is imported, and ids without a version."""

from __future__ import annotations

import warnings

import gymnasium as gym
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from shoal.envs import atari, minigrid

_CALLERS = 5  # this function and its caller, make_pool, make_vec, and who called that


def register_with_gymnasium(task_id: str) -> None:
    """Make this id known to Gymnasium, if that takes an import.

    Raises:
        BackendUnavailable: If the library that has the env is not installed.
    """
    atari.register_with_gymnasium(task_id)
    minigrid.register_with_gymnasium(task_id)


def latest_version(task_id: str) -> str:
    """An id as Gymnasium takes it: without a version, it means the latest, and a warning says which one that is.

    Example:
        >>> latest_version("CartPole-v0"), latest_version("my_module:MyEnv")
        ('CartPole-v0', 'my_module:MyEnv')
    """
    if task_id in gym.registry:
        return task_id
    try:
        namespace, name, version = parse_env_id(task_id)
    except gym.error.Error:  # an id of another form, which is no concern of Gymnasium's
        return task_id
    latest = find_highest_version(namespace, name) if version is None else None
    if latest is None:
        return task_id
    found = get_env_id(namespace, name, latest)
    warnings.warn(f"{task_id!r} has no version: this is {found!r}, the latest", stacklevel=_CALLERS)
    return found
