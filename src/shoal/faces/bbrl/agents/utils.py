"""Agents made of other agents, and small agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.errors import WorkspaceError
from shoal.faces.bbrl.agents.agent import Agent, TimeAgent

if TYPE_CHECKING:
    from shoal.faces.bbrl.workspace import Workspace


class Agents(Agent):
    """Several agents, called in order with the same arguments.

    Args:
        *agents: The agents.
        name: A name to find the whole by.
    """

    def __init__(self, *agents: Agent, name: str | None = None) -> None:
        super().__init__(name=name)
        for agent in agents:
            if not isinstance(agent, Agent):
                raise WorkspaceError(f"Agents: expected agents, got {agent!r:.80}")
        self.agents = torch.nn.ModuleList(agents)

    def __getitem__(self, k: int) -> Any:
        return self.agents[k]

    def forward(self, **kwargs: Any) -> None:
        """Call all of them."""
        workspace = self._lent()
        for agent in self.agents:
            agent(workspace, **kwargs)

    def seed(self, seed: int) -> Self:
        """Give all agents the seed; returns ``self``."""
        for agent in self.agents:
            agent.seed(seed)
        return self

    def get_by_name(self, n: str) -> list[Agent]:
        """All agents of this name among the parts of the agent, then the agent itself."""
        return [found for agent in self.agents for found in agent.get_by_name(n)] + super().get_by_name(n)


class TemporalAgent(TimeAgent):
    """An agent that calls another at one time step after the other.

    Example:
        >>> from shoal.faces.bbrl import Workspace
        >>> class Clock(Agent):
        ...     def forward(self, t, **kwargs):
        ...         self.set(("clock", t), torch.tensor([t]))
        >>> workspace = Workspace()
        >>> TemporalAgent(Clock())(workspace, t=0, n_steps=3)
        >>> workspace["clock"][:, 0]
        tensor([0, 1, 2])
    """

    def __init__(self, agent: Agent, name: str | None = None) -> None:
        super().__init__(name=name)
        self.agent = agent

    def __call__(
        self,
        workspace: Workspace | None,
        t: int = 0,
        n_steps: int | None = None,
        stop_variable: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Run ``forward`` on a workspace."""
        super().__call__(workspace, t=t, n_steps=n_steps, stop_variable=stop_variable, **kwargs)

    def forward(self, t: int = 0, n_steps: int | None = None, stop_variable: str | None = None, **kwargs: Any) -> None:
        """Call the agent at ``t``, ``t + 1`` and so on.

        Args:
            t: The first time step.
            n_steps: How many time steps at most.
            stop_variable: Stop after the time step at which this variable is True for the whole batch.
            **kwargs: For the agent.
        """
        if n_steps is None and stop_variable is None:
            raise WorkspaceError("TemporalAgent: expected n_steps, stop_variable or both, or it would never stop")
        workspace, agent = self._lent(), self.agent
        end = None if n_steps is None else t + n_steps
        while end is None or t < end:
            agent(workspace, t=t, **kwargs)
            if stop_variable is not None and bool(workspace.get(stop_variable, t).all()):
                return
            t += 1

    def seed(self, seed: int) -> Self:
        """Seed the agent inside; returns ``self``."""
        self.agent.seed(seed)
        return self

    def get_by_name(self, n: str) -> list[Agent]:
        """All agents of this name among the parts of the agent, then the agent itself."""
        return self.agent.get_by_name(n) + super().get_by_name(n)


class CopyTAgent(Agent):
    """Copies one variable to another, at one time or at all times.

    Args:
        input_name: The variable to copy.
        output_name: The variable to copy it to.
        detach: Whether to leave the graph behind.
        name: A name to find the agent by.
    """

    def __init__(self, input_name: str, output_name: str, detach: bool = False, name: str | None = None) -> None:
        super().__init__(name=name)
        self.input_name, self.output_name, self.detach = input_name, output_name, detach

    def forward(self, t: int | None = None, **kwargs: Any) -> None:
        """Copy the variable at time ``t``, or at all times if ``t`` is None."""
        value = self.get(self.input_name if t is None else (self.input_name, t))
        self.set(self.output_name if t is None else (self.output_name, t), value.detach() if self.detach else value)


class PrintAgent(Agent):
    """Prints variables; all of them if none is named."""

    def __init__(self, *names: str, name: str | None = None) -> None:
        super().__init__(name=name)
        self.names = names

    def reset(self) -> None:
        """Print all variables from now on."""
        self.names = ()

    def forward(self, t: int | None = None, **kwargs: Any) -> None:
        """Print the variables at time ``t``, or at all times if ``t`` is None."""
        for name in self.names or tuple(self._lent().keys()):
            print(name, " = ", self.get(name if t is None else (name, t)))  # noqa: T201


class EpisodesDone(TimeAgent):
    """Marks each column as done from its first end on, so that an env with autoreset shows one episode.

    Args:
        in_var: The variable that is True where an episode ends.
        out_var: The variable that is to be True from there on.
    """

    def __init__(self, in_var: str = "env/done", out_var: str = "env/done") -> None:
        super().__init__()
        self.in_var, self.out_var = in_var, out_var
        self.state: torch.Tensor | None = None

    def forward(self, t: int, *args: Any, **kwargs: Any) -> None:
        """Mark time ``t``; time 0 starts anew."""
        done = self.get((self.in_var, t)).bool()
        self.state = done if t == 0 or self.state is None else self.state | done
        self.set((self.out_var, t), self.state)
