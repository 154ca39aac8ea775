"""What a manager says of each env."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from shoal.faces.ding.runner import tells_of_fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.faces.ding.config import Settings

_log = logging.getLogger("shoal")


class EnvState(IntEnum):
    """Where an env is in its life.

    VOID ──launch──▶ INIT ──▶ RESET ──▶ RUN ──▶ DONE         its episodes are used up
                               ▲         │
                               ├─────────┤                   an episode has ended, and it is reset by itself
                               │         ├──▶ NEED_RESET    ... or waits for ``reset({id: ...})``
                               │         └──▶ ERROR         it failed, or said that its timestep is abnormal
                               └── any, by ``reset``
    """

    VOID = 0
    INIT = 1
    RUN = 2
    RESET = 3
    DONE = 4
    ERROR = 5
    NEED_RESET = 6


class Progress:
    """How far each env of a manager has come.

    Attributes:
        states: Of each env.
        came_from: The state of each env before its last reset.
    """

    def __init__(self, num_envs: int, settings: Settings) -> None:
        self.states = dict.fromkeys(range(num_envs), EnvState.VOID)
        self.came_from: dict[int, EnvState] = {}
        self._settings = settings
        self._counts = [0] * num_envs

    def begin(self) -> None:
        """There are envs, and none of them has finished an episode."""
        self._counts = [0] * len(self._counts)
        self.states.update(dict.fromkeys(self.states, EnvState.INIT))

    def end(self) -> None:
        """There are no envs."""
        self.states.update(dict.fromkeys(self.states, EnvState.VOID))

    def note_resets(self, ids: Iterable[int]) -> None:
        """These envs are being reset."""
        for i in ids:
            if self.states[i] is not EnvState.RESET:
                self.came_from[i] = self.states[i]
            self.states[i] = EnvState.RESET

    def note_end(self, env_id: int, timestep: Any) -> bool:
        """Note what a timestep means for its env; returns whether it is to be reset."""
        settings = self._settings
        if timestep.info.get("abnormal"):
            self.states[env_id] = EnvState.ERROR
            if not tells_of_fault(timestep.info):
                return False
            _log.info("env %d begins anew: %s", env_id, timestep.info["err"])
            return settings.auto_reset or settings.spares_steps
        if not timestep.done:
            return False
        self._counts[env_id] += 1
        if self._counts[env_id] >= settings.episode_num:
            self.states[env_id] = EnvState.DONE
        elif not settings.auto_reset:
            self.states[env_id] = EnvState.NEED_RESET
        else:
            return True
        return False
