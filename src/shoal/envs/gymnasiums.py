"""Families of envs that Gymnasium names but does not have by itself."""

from __future__ import annotations

from shoal.envs import atari, box2d, minigrid

__all__ = ["prepare"]


def prepare(task_id: str) -> None:
    """Have Gymnasium know this id, if importing a library does that, and see that what its env needs is installed.

    Raises:
        BackendUnavailable: If a library is missing.
    """
    atari.register_with_gymnasium(task_id)
    minigrid.register_with_gymnasium(task_id)
    box2d.check_installed(task_id)
