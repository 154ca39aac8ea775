"""What env agents share.

Called with ``t``, an env agent reads the action of ``t - 1`` and writes ``env/*`` at ``t``; at ``t = 0`` it resets.

    GymAgent      takes a seed, counts runs, writes what it is given; for agents of your own too
    FramedAgent   provides seeds and actions, and writes the frames that a subclass makes (_begin, _go_on)
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces

from shoal.errors import AgentActionError, StateError, WorkspaceError
from shoal.faces.bbrl.agents.agent import SerializableAgent, TimeAgent
from shoal.faces.bbrl.agents.seeding import SeedableAgent

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from gymnasium import Space

    from shoal.faces.bbrl.agents.frames import Frame


_REWARDS = ("reward", "cumulated_reward")


class NoSpace(StateError, ValueError):
    """An env agent without envs was asked for their spaces."""


class GymAgent(TimeAgent, SeedableAgent, SerializableAgent):
    """An agent that is an env, or many.

    A subclass of your own calls ``forward`` of this class first, and then ``set_obs`` with what its envs have done.

    Args:
        seed: The seed; ``default_seed`` if there is none.
        input_string: The variable with the actions. If there is no such variable, a nested dict is made from all those
            that begin with this name and a slash.
        output_string: The prefix of the variables that the agent writes.
        reward_at_t: Whether the reward of the action at ``t`` is written at ``t`` instead of ``t + 1``.
        include_last_state: Whether, with autoreset, the last state of an episode has a time step of its own.
        **kwargs: Arguments of ``Agent``.

    Attributes:
        observation_space: The observation space of one env.
        action_space: The action space of one env.
        ghost_params: An empty parameter, on the device that the agent was moved to.

    Example:
        >>> from shoal.faces.bbrl import Workspace
        >>> class Coin(GymAgent):
        ...     def forward(self, t, **kwargs):
        ...         super().forward(t, **kwargs)
        ...         self.set_obs({"env_obs": torch.tensor([t % 2]), "reward": torch.ones(1)}, t)
        >>> workspace = Workspace()
        >>> Coin()(workspace, t=0)
        >>> list(workspace)
        ['env/env_obs', 'env/reward']
    """

    default_seed = 42

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
        self.ghost_params = torch.nn.Parameter(torch.empty(0))

    # ------------------------------------------------------------------ one time step

    def forward(self, t: int = 0, *args: Any, **kwargs: Any) -> None:
        """Take ``default_seed`` if there is no seed yet; at ``t = 0``, begin a new run in the workspace."""
        if self._seed is None:
            self.seed(self.default_seed)
        if t == 0:
            self._resets += 1
            self._lent().restart()

    def set_obs(self, observations: Mapping[str, torch.Tensor], t: int) -> None:
        """Write variables at time ``t``, under their names with the prefix of the agent.

        With ``reward_at_t``, ``reward`` and ``cumulated_reward`` go to ``t - 1`` too, and the reward at ``t`` is zero.
        """
        put, output, device = self._lent().set, self.output, self._home()
        is_here = device.type == "cpu"
        for name, column in observations.items():
            value = column if is_here and column.is_cpu else column.to(device)
            if self.reward_at_t and name in _REWARDS:
                if t > 0:
                    put(output + name, t - 1, value)
                if name == "reward":
                    value = torch.zeros_like(value)
            put(output + name, t, value)

    def _home(self) -> torch.device:
        # Attributes of a module that are parameters take their time.
        return self._parameters["ghost_params"].device

    # ------------------------------------------------------------------ spaces

    def get_observation_space(self) -> Space[Any]:
        """The observation space of one env."""
        return _defined(self.observation_space)

    def get_action_space(self) -> Space[Any]:
        """The action space of one env."""
        return _defined(self.action_space)

    def get_obs_and_actions_sizes(self) -> tuple[Any, Any]:
        """Sizes of observations and actions: a vector's length, another array's shape, or the number of choices.

        Warns:
            UserWarning: Of a shape, where most callers expect a number.
        """
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


class FramedAgent(GymAgent):
    """An env agent whose envs move together, and give a frame at each time step.

    Attributes:
        num_envs: How many envs there are.
    """

    num_envs: int

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self._frame: Frame | None = None

    def _begin(self, seeds: list[int]) -> Frame:
        raise NotImplementedError

    def _go_on(self, last: Frame, action: Any) -> Frame:
        raise NotImplementedError

    def forward(self, t: int = 0, *args: Any, **kwargs: Any) -> None:
        """Reset all envs at ``t = 0``; after that, step them with the action of ``t - 1``."""
        if t == 0:
            super().forward(t)
            root = self.num_envs * self._resets * (self._seed or 0)
            frame = self._begin([root + k + 1 for k in range(self.num_envs)])
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
        if action.dtype == torch.bfloat16:  # which numpy does not have
            action = action.float()
        array: npt.NDArray[Any] = action.numpy(force=True)
        return array

    def _write(self, frame: Frame, t: int, last: Frame | None) -> None:
        columns = {
            **frame.obs,
            "terminated": frame.terminated,
            "truncated": frame.truncated,
            "done": frame.done,
            "reward": frame.reward,
            "cumulated_reward": frame.cumulated_reward,
            "timestep": frame.timestep,
        }
        if type(self).set_obs is not GymAgent.set_obs:
            # Whoever writes something else may change these on the way, and the next frame begins with this one.
            columns = {name: column.copy() for name, column in columns.items()}
        self.set_obs({name: torch.from_numpy(column) for name, column in columns.items()}, t)
        if self.reward_at_t and last is not None and last.done.any():
            self._restore(last, t - 1)

    def _restore(self, last: Frame, t: int) -> None:
        """Write the returns of episodes that have ended again, over what the next episodes begin with."""
        name = f"{self.output}cumulated_reward"
        returns = self._lent().get(name, t)
        ended = torch.from_numpy(last.done).to(returns.device)
        returns[ended] = torch.from_numpy(last.cumulated_reward).to(returns.device)[ended]
        self._lent().set(name, t, returns)


def _defined(space: Space[Any] | None) -> Space[Any]:
    if space is None:
        raise NoSpace("this agent has no envs, so it has no spaces")
    return space


def _size(space: Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    shape = space.shape
    if shape is None:
        raise StateError(f"{space} has parts of different sizes, and so none of its own")
    if len(shape) > 1:
        warnings.warn(f"{space} has no single size, so this is its shape; flatten it to have a number", stacklevel=3)
    return shape[0] if len(shape) == 1 else shape
