"""A manager that survives failed steps of its envs, and that callers need not wait for."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.errors import WrongSetting
from shoal.faces.ding.base import BaseEnvManager
from shoal.faces.ding.config import Manners
from shoal.faces.ding.runner import tells_of_fault
from shoal.faces.ding.states import EnvState
from shoal.faces.ding.tree import TreeArray, rows_of, stack
from shoal.faces.ding.v2 import is_by_id, tree_timestep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.faces.ding.config import Settings
    from shoal.faces.ding.states import Progress

# What callers see in place of states that they do not know, and of an env being reset, by the state it was in before.
_SHOWN = {EnvState.INIT: EnvState.VOID, EnvState.NEED_RESET: EnvState.DONE}
_BEFORE_RESET = {EnvState.INIT: EnvState.VOID, EnvState.ERROR: EnvState.ERROR}


class ChildType(Enum):
    """Where envs run."""

    PROCESS = "process"
    THREAD = "thread"


class RecvPayload(NamedTuple):
    """An answer: whose it is, to which request, what was asked, and the result or the error."""

    proc_id: int
    req_id: int
    method: str
    data: Any
    err: str | None


class EnvSupervisor(BaseEnvManager):
    """Envs in processes or threads, for callers that wait and for callers that do not.

    A step that fails or takes too long is answered without observation, reward and ``done``; its info has ``abnormal``
    and, as ``err``, the reason. The env is then reset, or built anew, whatever ``auto_reset`` says; so is an env that
    calls a timestep abnormal itself. ``launch``, ``reset`` and ``step`` take ``block=False``; then ``recv`` returns one
    answer after another. Asking which envs are ready, and what state they are in, never waits.

    Args:
        type_: Where envs run.
        env_fn: One function per env.
        retry_type: ``"reset"`` to go on with an env that raised, ``"renew"`` to build it anew.
        max_try: How often a reset is tried.
        max_retry: The old name of ``max_try``.
        auto_reset: Whether an env whose episode has ended is reset without being asked; if not, it is DONE.
        reset_timeout: Seconds for a reset.
        step_timeout: Seconds for a step.
        retry_waiting_time: Seconds between two resets of an env that failed.
        episode_num: Episodes of each env before it is DONE.
        shared_memory: Accepted for compatibility: observations always go through shared memory where they can.
        copy_on_get: Accepted for compatibility: what is returned always belongs to the caller.
        **kwargs: Unknown arguments are reported in a warning.
    """

    def __init__(
        self,
        type_: ChildType = ChildType.PROCESS,
        env_fn: Sequence[Callable[[], Any]] = (),
        retry_type: str = "reset",
        max_try: int | None = None,
        max_retry: int | None = None,
        auto_reset: bool = True,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
        retry_waiting_time: float | None = None,
        episode_num: float = float("inf"),
        shared_memory: bool = True,
        copy_on_get: bool = True,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            warnings.warn(f"EnvSupervisor takes no {sorted(kwargs)}", UserWarning, stacklevel=2)
        if not env_fn:
            raise WrongSetting("env_fn: expected one function per env, got none")
        cfg = {
            "episode_num": episode_num,
            "max_retry": max_try or max_retry or 1,
            "retry_type": retry_type,
            "auto_reset": auto_reset,
            "step_timeout": step_timeout,
            "reset_timeout": reset_timeout,
            "retry_waiting_time": 0.1 if retry_waiting_time is None else retry_waiting_time,
        }
        self._type = type_
        super().__init__(env_fn, cfg)
        self._core.events = self._events = deque[tuple[int, str, Any]]()
        self._core.progress.shown = partial(_shown, self._core.progress)
        self._requests: dict[int, deque[int]] = {i: deque() for i in range(self.env_num)}
        self._numbers = count()

    def _settings(self, cfg: Mapping[str, Any]) -> Settings:
        return replace(super()._settings(cfg), spares_steps=True, is_uneven=True)

    def _manners(self, settings: Settings) -> Manners:
        return Manners(engine=self._type.value, waits_to_be_ready=False)

    # ------------------------------------------------------------------ commands

    def launch(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None, block: bool = True) -> None:
        """Build all envs and reset them; without ``block``, ``recv`` returns their observations."""
        self._prepare_launch(reset_param)
        self.reset(reset_param, block)

    def reset(
        self,
        reset_param: Mapping[int, Mapping[str, Any] | None] | list[Mapping[str, Any] | None] | None = None,
        block: bool = True,
    ) -> None:
        """Reset all envs, or those in ``reset_param``; without ``block``, ``recv`` returns their observations.

        A list has keywords for the first envs, in order; an empty one means all envs.
        """
        reset_param = dict(enumerate(reset_param)) if isinstance(reset_param, list) else reset_param
        reset_param = reset_param or None
        if block:
            super().reset(reset_param)
            self._forget_answers()
            return
        self._check_open()
        ids = self._asked_for(reset_param)
        self._core.await_resets(ids)  # each reset has an answer, and a new one would make another void
        self._core.begin_reset(ids)
        self._number(ids)

    def step(self, actions: Any, block: bool = True) -> list[TreeArray] | None:
        """Step envs: a list has one action per env, a dict has them by id.

        Returns:
            A tree for each action, in order; without ``block`` None, and ``recv`` returns the answers.
        """
        self._check_open()
        by_id = actions if is_by_id(actions) else dict(enumerate(rows_of(actions)))
        if not by_id:
            raise WrongSetting("actions: expected an action for at least one env, got none")
        if not block:
            self._core.begin_step(by_id)
            self._number(by_id)
            return None
        answers = self._core.step(by_id)
        self._forget_answers()
        return [_tree(i, answers[i]) for i in by_id]

    def recv(self, ignore_err: bool = False) -> RecvPayload:
        """Wait for the next answer from any env. Automatic resets are answers too.

        Args:
            ignore_err: Whether to skip the answers of envs that failed.

        Raises:
            ManagerState: If nothing is under way.
        """
        payload = self._next()
        while ignore_err and payload.err is not None:
            payload = self._next()
        return payload

    def _next(self) -> RecvPayload:
        self._check_open()
        env_id, method, result = self._core.next_event()
        waiting = self._requests[env_id]
        request = waiting.popleft() if waiting else next(self._numbers)
        if method == "reset":
            return RecvPayload(env_id, request, method, result, None)
        err = result.info["err"] if tells_of_fault(result.info) else None
        return RecvPayload(env_id, request, method, _tree(env_id, result), err)

    def _number(self, ids: Iterable[int]) -> None:
        for i in ids:
            self._requests[i].append(next(self._numbers))

    def _forget_answers(self) -> None:
        self._events.clear()
        for waiting in self._requests.values():
            waiting.clear()

    def close(self, timeout: float | None = None) -> None:
        """End all envs. May be called twice. It never takes long, whatever ``timeout`` says."""
        super().close()
        self._forget_answers()

    shutdown = close

    # ------------------------------------------------------------------ what it is

    @property
    def ready_obs(self) -> Any:
        """Observations of the envs that wait for an action, as an array or a tree of them; ``[]`` if there are none."""
        observations = self._core.ready_obs
        rows = [observations[i] for i in self.ready_obs_id]
        return stack(rows) if rows else []

    @property
    def env_states(self) -> dict[int, EnvState]:
        """The state of each env: VOID, RUN, DONE or ERROR.

        An env that is being reset is VOID before its first episode, and ERROR after a failed step. Otherwise it is
        DONE, as is an env that waits for its reset.
        """
        return {i: self._core.progress.shown(i, state) for i, state in self._env_states.items()}

    @property
    def done(self) -> bool:
        """Whether every env is DONE, and none of them is being reset."""
        return all(self.env_state_done(i) for i in range(self.env_num))

    def env_state_done(self, env_id: int) -> bool:
        """Whether this env is DONE, and not being reset."""
        return self._env_states[self._known(env_id)] in (EnvState.DONE, EnvState.NEED_RESET)


def _shown(progress: Progress, env_id: int, state: EnvState) -> EnvState:
    if state is EnvState.RESET:
        return _BEFORE_RESET.get(progress.came_from[env_id], EnvState.DONE)
    return _SHOWN.get(state, state)


def _tree(env_id: int, timestep: Any) -> TreeArray:
    if not tells_of_fault(timestep.info):
        return tree_timestep(env_id, timestep, keeps_text=True)
    info = {"abnormal": np.array(True), "err": timestep.info["err"]}
    return TreeArray({"obs": None, "reward": None, "done": None, "info": info, "env_id": np.array(env_id)})
