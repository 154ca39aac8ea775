"""Envs that Gymnasium knows only once the library that has them is imported."""

from __future__ import annotations

from shoal.envs import atari, minigrid

__all__ = ["register_with_gymnasium"]


def register_with_gymnasium(task_id: str) -> None:
    """Make this id known to Gymnasium, if that takes an import.

    Raises:
        BackendUnavailable: If the library that has the env is not installed.
    """
    atari.register_with_gymnasium(task_id)
    minigrid.register_with_gymnasium(task_id)
