"""ParallelGymAgent: many envs, backed by a pool."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium import spaces

from shoal.errors import ActionError, AgentActionError, SpecError, StateError, WorkspaceError
from shoal.faces.bbrl.agents.frames import Accounts, columns_of, final_columns
from shoal.faces.bbrl.agents.gym_agent import FramedAgent
from shoal.faces.bbrl.agents.opening import Source, source_of
from shoal.faces.bbrl.agents.views import EnvView
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from shoal.batch import Batch
    from shoal.faces.bbrl.agents.frames import Frame
    from shoal.pool import Pool


class ParallelGymAgent(FramedAgent):
    """Many envs as one agent, wherever they run.

    Without autoreset, an env whose episode has ended keeps its last frame, with reward 0, until the next ``t = 0``.

    With autoreset, the next time step has the first state of the next episode, and the action between the two is not
    executed. With ``include_last_state=False`` that first state takes the place of the last one, which is then in
    ``env/final_obs``; where no episode has ended, ``env/final_obs`` equals ``env/env_obs``.

    Args:
        make_env_fn: A function that makes an env, such as ``partial(make_env, "CartPole-v1", autoreset=True)``; or a
            task id or a ``KernelEnv``. On the serial engine the function is called once per env, in order; on the
            others it is called in the workers, and once here. For compiled envs it is not called. With None, the
            agent has no envs.
        num_envs: How many envs.
        make_env_args: Keyword arguments for the function.
        seed: The seed; ``default_seed`` if there is none.
        engine: Where they run: ``"serial"``, ``"thread"``, ``"process"``, ``"kernel"`` (for compiled envs) or
            ``"auto"``. The data is the same. None takes ``"kernel"`` where ``make_env`` would make an unwrapped
            Gymnasium env for which shoal has a compiled one, and ``"serial"`` elsewhere.
        num_workers: How many threads or processes.
        autoreset: Whether envs are reset when an episode has ended. None looks for a wrapper called ``Autoreset``; ids
            have none.
        pool_options: Other arguments of ``shoal.make_pool``, such as ``on_fault`` and ``step_timeout``.
        **kwargs: Arguments of ``GymAgent``.

    Attributes:
        pool: The pool behind it; available from the first ``t = 0`` on.

    Example:
        >>> from functools import partial
        >>> from shoal.faces.bbrl import Workspace, make_env
        >>> env = ParallelGymAgent(partial(make_env, "CartPole-v1"), 3).seed(7)
        >>> workspace = Workspace()
        >>> env(workspace, t=0)
        >>> list(workspace.keys())[:3]
        ['env/env_obs', 'env/terminated', 'env/truncated']
    """

    def __init__(
        self,
        make_env_fn: Any,
        num_envs: int,
        make_env_args: Mapping[str, Any] | None = None,
        seed: int | None = None,
        *,
        engine: str | None = None,
        num_workers: int | None = None,
        autoreset: bool | None = None,
        pool_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, **kwargs)
        if num_envs < 1:
            raise WorkspaceError(f"num_envs: expected at least 1, got {num_envs}")
        self.make_env_fn = make_env_fn
        self.num_envs = num_envs
        # As in BBRL, the env judges whether an action is in bounds; only what is no action at all is refused.
        options = {"bounded_actions": False, "engine": engine, "num_workers": num_workers, **(pool_options or {})}
        self._source: Source = source_of(make_env_fn, num_envs, make_env_args or {}, autoreset, options)
        self.observation_space, self.action_space = self._source.spaces()
        if not self._source.autoreset:
            self.include_last_state = True
        self._accounts = Accounts(num_envs)
        self._pool: Pool | None = None
        self._has_acted = False

    @property
    def mode(self) -> Autoreset:
        """The boundary rule of the pool."""
        if not self._source.autoreset:
            return Autoreset.DISABLED
        return Autoreset.NEXT_STEP if self.include_last_state else Autoreset.SAME_STEP

    @property
    def pool(self) -> Pool:
        """The pool behind it."""
        if self._pool is None:
            raise StateError("the pool is opened by the first call with t=0")
        return self._pool

    @property
    def envs(self) -> list[Any]:
        """The envs themselves if they are in this thread; else, from the first ``t = 0`` on, a view of each.

        If no engine was given, asking for the envs before that decides that they run in this thread.
        """
        if self._pool is None:
            self._source = self._source.at_hand()
        elif not self._source.is_here:
            return [EnvView(self._pool, k) for k in range(self.num_envs)]
        return self._source.envs()

    def own_envs(self) -> list[Any]:
        """The envs themselves, if they are in this thread and exist already; else none."""
        return self._source.made()

    def take_envs(self, envs: list[Any]) -> None:
        """Use these envs, which are those of the agent that this one is a copy of, and make no others."""
        if envs:
            self._source.take(envs)

    # ------------------------------------------------------------------ frames

    def _begin(self, seeds: list[int]) -> Frame:
        if self._pool is None:
            self._pool = self._source.open(self.mode, seeds)
        return self._accounts.begin(self._obs(self._pool.reset(seeds)))

    def _go_on(self, last: Frame, action: Any) -> Frame:
        if isinstance(action, dict):
            if not isinstance(self.pool.spec.action.space, spaces.Dict):
                self._take_dicts(action)
        elif not self._has_acted:
            self._has_acted = True
            self._take_bools(action)
        try:
            if self._source.autoreset or not last.done.any():
                if self.mode is Autoreset.NEXT_STEP and last.done.any():
                    self._excuse(action, last.done)
                return self._frame_of(self.pool.step(action), last)
            rows = np.flatnonzero(~last.done)
            if not len(rows):
                return self._accounts.stay(last)
            news = self.pool.step(_action_rows(action, rows), rows)
        except AgentActionError:
            raise
        except ActionError as error:
            raise AgentActionError(str(error)) from error
        flags = (news.terminated, news.truncated)
        return self._accounts.go_on_with(rows, last, self._obs(news), news.reward, *flags, news.elapsed_step)

    def _excuse(self, action: Any, done: npt.NDArray[np.bool_]) -> None:
        """Write valid actions over those that no env will see, because it is reset: nobody is to judge them."""
        tree = self.pool.spec.action
        with suppress(SpecError):  # with the wrong keys, they are no actions for the other envs either
            for leaf, values in zip(tree.leaves, tree.flatten(action), strict=True):
                if leaf.is_array and values.shape[1:] == leaf.shape:
                    values[done] = leaf.blank()

    def _take_dicts(self, action: Any) -> None:
        """Let envs take dicts as actions although their space says otherwise, if this is their very first action."""
        pool = self.pool
        reason = f"{self.input}: there is a dict of actions, and the action space is {pool.spec.action.space}"
        if pool.stats().steps:
            raise AgentActionError(reason)
        try:
            self._pool = self._source.reopen(pool, self.mode, action)
        except StateError as error:
            raise AgentActionError(reason) from error

    def _take_bools(self, action: npt.NDArray[Any]) -> None:
        """Pass bools to envs in this thread as they are, and not as the numbers that the action space declares."""
        space = self.pool.spec.action.space
        is_news = action.dtype == np.bool_ and space.dtype != np.bool_ and action.shape[1:] == space.shape
        if is_news and self._source.is_here:
            self._pool = self._source.reopen(self.pool, self.mode, action)

    def _frame_of(self, batch: Batch, last: Frame) -> Frame:
        return self._accounts.go_on(
            last, self._obs(batch), batch.reward, batch.terminated, batch.truncated, batch.elapsed_step
        )

    def _obs(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        obs = columns_of(batch.obs, "env_obs")
        if not self.include_last_state:
            obs.update(final_columns(obs, ((row, last_obs) for row, (last_obs, _) in batch.finals.items())))
        return obs

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """End the envs and the workers they run in."""
        self._source.close(self._pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # A copy, here or in another process, opens a pool of its own and begins with t=0. Which envs are in that pool
        # is the source's to say.
        return {**self.__dict__, "_pool": None, "_has_acted": False, "_frame": None, "workspace": None}


def _action_rows(action: Any, rows: npt.NDArray[np.intp]) -> Any:
    if isinstance(action, dict):
        return {key: _action_rows(part, rows) for key, part in action.items()}
    return action[rows]
