"""Agent: a torch module that reads and writes a workspace."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.engines.process.shipping import pickle_value, unpickle_value
from shoal.errors import WorkspaceError

if TYPE_CHECKING:
    import os

    from shoal.faces.bbrl.workspace import Workspace

Index = str | tuple[str, int]


class Agent(torch.nn.Module):
    """Reads and writes a workspace; implement ``forward`` to say how.

    All keyword arguments of a call reach ``forward``, including those meant for other agents, so let its signature end
    in ``**kwargs``.

    Args:
        name: A name to find the agent by.
        verbose: Means whatever the agent makes of it.

    Attributes:
        workspace: The workspace that the agent was called with, during the call.

    Example:
        >>> from shoal.faces.bbrl import Workspace
        >>> class Clock(Agent):
        ...     def forward(self, t, **kwargs):
        ...         self.set(("clock", t), torch.full((2,), t))
        >>> workspace = Workspace()
        >>> Clock()(workspace, t=0)
        >>> workspace["clock"]
        tensor([[0, 0]])
    """

    def __init__(self, name: str | None = None, verbose: bool = False) -> None:
        super().__init__()
        self._name = name
        self.verbose = verbose
        self.prefix = ""
        self.workspace: Any = None

    def __call__(self, workspace: Workspace | None, **kwargs: Any) -> None:
        """Run ``forward`` on a workspace."""
        if workspace is None:
            raise WorkspaceError(f"{type(self).__name__} was called without a workspace")
        # This happens for every agent at every time step, so it bypasses torch's bookkeeping for parameters.
        own = self.__dict__
        own["workspace"] = workspace
        try:
            self.forward(**kwargs)
        finally:
            own["workspace"] = None

    def _asynchronous_call(self, workspace: Workspace, **kwargs: Any) -> None:
        """Run without waiting for the end, if the agent can."""
        self(workspace, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the agent does."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def is_running(self) -> bool:
        """Whether the agent is at work; only agents that work elsewhere can be."""
        return False

    # ------------------------------------------------------------------ the workspace, inside forward

    def get(self, index: Index) -> torch.Tensor:
        """A variable: ``get(("name", t))`` at one time, ``get("name")`` at all times."""
        if isinstance(index, str):
            return self._lent().get_full(index)
        return self._lent().get(index[0], index[1])

    def set(self, index: Index, value: torch.Tensor) -> None:
        """Write a variable: ``set(("name", t), value)`` at one time, ``set("name", value)`` at all times."""
        if isinstance(index, str):
            self._lent().set_full(index, value)
        else:
            self._lent().set(index[0], index[1], value)

    def get_time_truncated(self, var_name: str, from_time: int, to_time: int) -> torch.Tensor:
        """A variable from ``from_time`` up to, but not including, ``to_time``."""
        return self._lent().get_time_truncated(var_name, from_time, to_time)

    def _lent(self) -> Workspace:
        workspace: Workspace | None = self.__dict__["workspace"]
        if workspace is None:
            raise WorkspaceError(f"{type(self).__name__} has a workspace only while it is called with one")
        return workspace

    # ------------------------------------------------------------------ names, seeds, copies

    def seed(self, seed: int) -> Any:
        """Take a seed. This agent needs none."""

    def set_name(self, n: str | None) -> Self:
        """Give the agent a name; returns the agent."""
        self._name = n
        return self

    def get_name(self) -> str | None:
        """The name of the agent."""
        return self._name

    @property
    def name(self) -> str | None:
        """The name of the agent."""
        return self._name

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    def with_prefix(self, prefix: str) -> Self:
        """Set ``prefix``, for agents that name their variables with it; returns the agent."""
        self.prefix = prefix
        return self

    def get_by_name(self, n: str) -> list[Agent]:
        """All agents of this name among the agent and its parts."""
        return [self] if n == self._name else []

    def clone(self) -> Self:
        """A copy of the agent, without gradients."""
        self.zero_grad()
        return deepcopy(self)

    def save_model(self, filename: str | os.PathLike[str]) -> None:
        """Write the whole agent to a file."""
        torch.save(self, filename)

    def load_model(self, filename: str | os.PathLike[str]) -> Any:
        """The agent that ``save_model`` has written. As with any pickle, load only what you trust."""
        return torch.load(filename, weights_only=False)


class TimeAgent(Agent):
    """An agent whose ``forward`` takes a time ``t``."""

    def forward(self, t: int, *args: Any, **kwargs: Any) -> Any:
        """What the agent does at time ``t``."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(t)")


class SerializableAgent(Agent):
    """An agent that can be written to a file as a whole."""

    def serialize(self) -> Agent:
        """What to write; override it to leave out what cannot be written."""
        return self

    def save(self, filename: str | os.PathLike[str]) -> None:
        """Write the agent to a file that ``load`` reads.

        Raises:
            ShippingError: Naming the part that cannot be written.
        """
        Path(filename).write_bytes(pickle_value(self.serialize(), type(self).__name__))


def load(filename: str | os.PathLike[str]) -> Any:
    """The agent that ``save`` has written. As with any pickle, load only what you trust."""
    return unpickle_value(Path(filename).read_bytes())


class KWAgentWrapper(Agent):
    """An agent that is always called with some extra keyword arguments."""

    def __init__(self, agent: Agent, **kwargs: Any) -> None:
        super().__init__()
        self.wrapped = agent
        self.kwargs = kwargs

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Call the agent."""
        self.wrapped(self._lent(), **{**kwargs, **self.kwargs})

    def seed(self, seed: int) -> Any:
        """Seed the agent."""
        self.wrapped.seed(seed)
        return self

    def get_by_name(self, n: str) -> list[Agent]:
        """All agents of this name among the agent and its parts."""
        return super().get_by_name(n) + self.wrapped.get_by_name(n)
