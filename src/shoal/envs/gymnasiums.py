"""Envs that Gymnasium knows once the library that has them is imported."""

from __future__ import annotations

from shoal.envs import atari, minigrid

__all__ = ["register_with_gymnasium"]


def register_with_gymnasium(task_id: str) -> None:
    """Have Gymnasium know this id, if it takes an import to do so.

    Raises:
        BackendUnavailable: If the library that has the env is not installed.
    """
    atari.register_with_gymnasium(task_id)
    minigrid.register_with_gymnasium(task_id)
