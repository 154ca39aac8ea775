"""GymAgent: what all env agents share.

Called with ``t``, an env agent reads the action of ``t - 1`` and writes ``env/*`` at ``t``; at ``t = 0`` it resets. A
subclass makes the frames (``_begin``, ``_go_on``); this class provides the seeds and writes the frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from shoal.errors import AgentActionError, StateError, WorkspaceError
from shoal.faces.bbrl.agents.agent import SerializableAgent, TimeAgent
from shoal.faces.bbrl.agents.seeding import SeedableAgent

if TYPE_CHECKING:
    import numpy.typing as npt
    from gymnasium import Space

    from shoal.faces.bbrl.agents.frames import Frame


class GymAgent(TimeAgent, SeedableAgent, SerializableAgent):
    """An agent that is an env, or many.

    Args:
        seed: The seed; ``default_seed`` if there is none.
        input_string: The variable with the actions. If there is no such variable, a nested dict is made from all those
            that begin with this name and a slash.
        output_string: The prefix of the variables that the agent writes.
        reward_at_t: Whether the reward of the action at ``t`` is written at ``t`` instead of ``t + 1``.
        include_last_state: Whether, with autoreset, the last state of an episode has a time step of its own.
        **kwargs: Arguments of ``Agent``.

    Attributes:
        num_envs: How many envs there are.
        observation_space: The observation space of one env.
        action_space: The action space of one env.
    """

    default_seed = 42
    num_envs: int

    def __init__(
        self,
        seed: int | None = None,
        *,
        input_string: str = "action",
        output_string: str = "env/",
        reward_at_t: bool = False,
        include_last_state: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(seed, **kwargs)
        self.input, self.output = input_string, output_string
        self.reward_at_t, self.include_last_state = reward_at_t, include_last_state
        self.observation_space: Space[Any] | None = None
        self.action_space: Space[Any] | None = None
        self._resets = 1
        self._frame: Frame | None = None
        # Its only purpose is to be on the device that the agent is moved to.
        self.register_buffer("_home", torch.zeros(()), persistent=False)

    # ------------------------------------------------------------------ one time step

    def _begin(self, seeds: list[int]) -> Frame:
        raise NotImplementedError

    def _go_on(self, last: Frame, action: Any) -> Frame:
        raise NotImplementedError

    def forward(self, t: int = 0, *args: Any, **kwargs: Any) -> None:
        """Reset all envs at ``t = 0``; after that, step them with the action of ``t - 1``."""
        if t == 0:
            if self._seed is None:
                self.seed(self.default_seed)
            self._resets += 1
            root = self.num_envs * self._resets * (self._seed or 0)
            frame = self._begin([root + k + 1 for k in range(self.num_envs)])
            self._lent().restart()
            self._write(frame, 0, None)
        else:
            last = self._frame
            if last is None:
                raise StateError(f"{type(self).__name__} was called with t={t} and never with t=0, which resets")
            if t < 0:
                raise WorkspaceError(f"{type(self).__name__} was called with t={t}; times begin at 0")
            frame = self._go_on(last, self._action(t - 1))
            self._write(frame, t, last)
        self._frame = frame

    def _action(self, t: int) -> Any:
        workspace = self._lent()
        if self.input in workspace:
            return self._array(workspace.get(self.input, t))
        prefix = f"{self.input}/"
        action: dict[str, Any] = {}
        for name in workspace:
            if name.startswith(prefix):
                *path, leaf = name[len(prefix) :].split("/")
                place = action
                for key in path:
                    place = place.setdefault(key, {})
                place[leaf] = self._array(workspace.get(name, t))
        if not action:
            raise WorkspaceError(f"the workspace has no variable {self.input!r} with the action of time {t}")
        return action

    def _array(self, action: torch.Tensor) -> npt.NDArray[Any]:
        if len(action) != self.num_envs:
            raise AgentActionError(f"{self.input}: there are {len(action)} actions for {self.num_envs} envs")
        array: npt.NDArray[Any] = action.detach().cpu().numpy()
        return array

    def _write(self, frame: Frame, t: int, last: Frame | None) -> None:
        reward = frame.reward
        if self.reward_at_t:
            if last is not None:
                # The last time step of an episode keeps its return, whatever the next episode begins with.
                total = np.where(last.done, last.cumulated_reward, frame.cumulated_reward)
                self._put({"reward": reward, "cumulated_reward": total}, t - 1)
            reward = np.zeros_like(reward)
        self._put(frame.obs, t)
        self._put(
            {
                "terminated": frame.terminated,
                "truncated": frame.truncated,
                "done": frame.done,
                "reward": reward,
                "cumulated_reward": frame.cumulated_reward,
                "timestep": frame.timestep,
            },
            t,
        )

    def _put(self, columns: dict[str, npt.NDArray[Any]], t: int) -> None:
        put, output, device = self._lent().set, self.output, self._buffers["_home"].device
        is_here = device.type == "cpu"
        for name, column in columns.items():
            value = torch.from_numpy(column)
            put(output + name, t, value if is_here else value.to(device))

    # ------------------------------------------------------------------ spaces

    def get_observation_space(self) -> Space[Any]:
        """The observation space of one env."""
        return _defined(self.observation_space)

    def get_action_space(self) -> Space[Any]:
        """The action space of one env."""
        return _defined(self.action_space)

    def get_obs_and_actions_sizes(self) -> tuple[Any, Any]:
        """Sizes of observations and actions: a vector's length, another array's shape, or the number of choices."""
        return _size(self.get_observation_space()), _size(self.get_action_space())

    def is_continuous_action(self) -> bool:
        """Whether actions are arrays of numbers."""
        return isinstance(self.action_space, spaces.Box)

    def is_discrete_action(self) -> bool:
        """Whether an action is one of n choices."""
        return isinstance(self.action_space, spaces.Discrete)

    def is_continuous_state(self) -> bool:
        """Whether observations are arrays of numbers."""
        return isinstance(self.observation_space, spaces.Box)

    def is_discrete_state(self) -> bool:
        """Whether an observation is one of n choices."""
        return isinstance(self.observation_space, spaces.Discrete)


def _defined(space: Space[Any] | None) -> Space[Any]:
    if space is None:
        raise StateError("this agent has no envs, so it has no spaces")
    return space


def _size(space: Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    shape = space.shape
    if shape is None:
        raise StateError(f"{space} has parts of different sizes, and so none of its own")
    return shape[0] if len(shape) == 1 else shape
