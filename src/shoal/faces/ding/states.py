"""The states of a manager's envs."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from shoal.adapters.ding_timestep import is_abnormal
from shoal.errors import ManagerState, UnknownEnv
from shoal.faces.ding.runner import tells_of_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shoal.faces.ding.config import Settings

_log = logging.getLogger("shoal")


class EnvState(IntEnum):
    """Where an env is in its life.

    VOID ──launch──▶ INIT ──▶ RESET ──▶ RUN ──▶ DONE         its episodes are used up
                               ▲         │
                               ├─────────┤                   an episode has ended, and the env is reset automatically
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
        states: The state of each env.
        came_from: The state of each env before its last reset.
        shown: What callers see in place of an env's state.
    """

    def __init__(self, num_envs: int, settings: Settings) -> None:
        self.states = dict.fromkeys(range(num_envs), EnvState.VOID)
        self.came_from: dict[int, EnvState] = {}
        self.shown: Callable[[int, EnvState], EnvState] = lambda _, state: state
        self._settings = settings
        self._counts = [0] * num_envs

    def begin(self) -> None:
        """Note that there are envs now, none of which has finished an episode."""
        self._counts = [0] * len(self._counts)
        self.states.update(dict.fromkeys(self.states, EnvState.INIT))

    def end(self) -> None:
        """Note that there are no envs any more."""
        self.states.update(dict.fromkeys(self.states, EnvState.VOID))

    def check_running(self, ids: Collection[int], busy: Collection[int]) -> None:
        """Check that these envs can be stepped; those in ``busy`` have not answered yet.

        Raises:
            ManagerState: If one of them is not running, or has not answered yet.
            UnknownEnv: If there is no such env.
        """
        if not busy and [*map(self.states.get, ids)].count(EnvState.RUN) == len(ids):
            return  # as is usual, found out without a loop
        bad = [i for i in ids if self.states.get(i) is not EnvState.RUN or i in busy]
        if not bad:
            return
        for i in bad:
            if i not in self.states:
                raise UnknownEnv(f"there is no env {i!r}: the manager has envs 0 to {len(self.states) - 1}")
        told = ", ".join(f"env {i} {self._why_not(i)}" for i in bad)
        raise ManagerState(f"only envs that run can be stepped: {told}")

    def running(self) -> list[int]:
        """Envs that are running."""
        return [i for i, state in self.states.items() if state is EnvState.RUN]

    def _why_not(self, env_id: int) -> str:
        state = self.states[env_id]
        return "has not answered yet" if state is EnvState.RUN else f"is {self.shown(env_id, state).name}"

    def note_resets(self, ids: Iterable[int]) -> None:
        """Note that these envs are being reset."""
        for i in ids:
            if self.states[i] is not EnvState.RESET:
                self.came_from[i] = self.states[i]
            self.states[i] = EnvState.RESET

    def note_end(self, env_id: int, timestep: Any) -> bool:
        """Note what a timestep means for its env; return whether the env is to be reset."""
        settings = self._settings
        if is_abnormal(timestep.info):
            self.states[env_id] = EnvState.ERROR
            if not tells_of_fault(timestep.info):
                return settings.spares_steps
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
