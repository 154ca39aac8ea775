"""VecGymAgent: a Gymnasium vector env as an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.faces.bbrl.agents.frames import Accounts, columns_of, final_columns
from shoal.faces.bbrl.agents.gym_agent import FramedAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from shoal.faces.bbrl.agents.frames import Frame


class VecGymAgent(FramedAgent):
    """A ``gymnasium.vector.VectorEnv`` as an agent, with the variables that ``ParallelGymAgent`` writes.

    The autoreset mode of the vector env says what happens at the end of an episode: ``NEXT_STEP`` gives the last state
    a time step of its own, ``SAME_STEP`` puts it into ``env/final_obs``, and with ``DISABLED`` an env keeps its last
    frame.

    Args:
        make_envs_fn: A function that makes the vector env.
        vec_env_args: Keyword arguments for it.
        seed: The seed; ``default_seed`` if there is none.
        **kwargs: Arguments of ``GymAgent``; ``include_last_state`` follows from the vector env.

    Example:
        >>> import shoal
        >>> from shoal.faces.bbrl import Workspace
        >>> env = VecGymAgent(lambda: shoal.make_vec("CartPole-v1", num_envs=3, engine="serial"))
        >>> workspace = Workspace()
        >>> env(workspace, t=0)
        >>> workspace["env/env_obs"].shape
        torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        make_envs_fn: Callable[..., Any],
        vec_env_args: Mapping[str, Any] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, **kwargs)
        self.make_envs_fn = make_envs_fn
        self.envs = envs = make_envs_fn(**(vec_env_args or {}))
        self.num_envs = int(envs.num_envs)
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.include_last_state = self.mode is not AutoresetMode.SAME_STEP
        self._accounts = Accounts(self.num_envs)
        # Envs that were reset behind their frozen frames, because a vector env steps all envs or none.
        self._idling = np.zeros(self.num_envs, np.bool_)

    def _begin(self, seeds: list[int]) -> Frame:
        # The seeds count up, as vector envs count up on their own; not every vector env takes a list.
        obs, _ = self.envs.reset(seed=seeds[0])
        self._idling[:] = False
        return self._accounts.begin(self._obs(obs, {}))

    def _go_on(self, last: Frame, action: Any) -> Frame:
        if self.mode is not AutoresetMode.DISABLED or not last.done.any():
            obs, reward, terminated, truncated, infos = self.envs.step(action)
            steps = last.timestep + 1
            # The step after an end is the reset or, with SAME_STEP, the first step of the next episode.
            steps[last.done] = 0 if self.mode is AutoresetMode.NEXT_STEP else 1
            return self._accounts.go_on(last, self._obs(obs, infos), reward, terminated, truncated, steps)
        ended = last.done & ~self._idling
        if ended.any():
            self.envs.reset(options={"reset_mask": ended})
        obs, reward, terminated, truncated, infos = self.envs.step(action)
        self._idling = last.done & ~(terminated | truncated)
        rows = np.flatnonzero(~last.done)
        kept = {name: column[rows] for name, column in self._obs(obs, infos).items()}
        flags, timestep = (terminated[rows], truncated[rows]), last.timestep[rows] + 1
        return self._accounts.go_on_with(rows, last, kept, reward[rows], *flags, timestep)

    def _obs(self, obs: Any, infos: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
        # Vector envs may reuse their arrays, while each frame is kept until the next one.
        columns = {name: column.copy() for name, column in columns_of(obs, "env_obs").items()}
        if self.mode is AutoresetMode.SAME_STEP:
            ended = np.flatnonzero(infos.get("_final_obs", ())).tolist()
            columns.update(final_columns(columns, ((row, infos["final_obs"][row]) for row in ended)))
        return columns

    def close(self) -> None:
        """End the envs."""
        self.envs.close()
