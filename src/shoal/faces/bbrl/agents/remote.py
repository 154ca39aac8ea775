"""Agents in other processes that work on the columns of one workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.errors import WorkspaceError
from shoal.faces.bbrl.agents.hosted import HostedAgent
from shoal.faces.bbrl.workspace import Workspace

if TYPE_CHECKING:
    from shoal.faces.bbrl.agents.agent import Agent


class NRemoteAgent(HostedAgent):
    """Copies of an agent in processes, each of which works on its share of the columns.

    A call sends the parameters that ``agent`` has here, so updating ``agent`` updates the copies, for example with
    ``load_state_dict`` on what ``get_by_name`` finds. Processes start with the first call; ``close`` ends them.

    Args:
        agent: The agent.
        num_processes: How many copies.
        name: A name to find the agent by.
        verbose: Means whatever the agent makes of it.
    """

    def __init__(self, agent: Agent, num_processes: int = 1, name: str | None = None, verbose: bool = False) -> None:
        if num_processes < 1:
            raise WorkspaceError(f"num_processes: expected at least 1, got {num_processes}")
        super().__init__(agent, num_processes, name, verbose)

    @staticmethod
    def create(
        agent: Agent, num_processes: int = 0, time_size: int | None = None, **extra_kwargs: Any
    ) -> tuple[Agent, Workspace]:
        """An agent in ``num_processes`` processes, and a workspace for all of them.

        The agent is run once, here, to learn which variables it writes.

        Args:
            agent: The agent; what is returned is a copy of it.
            num_processes: How many processes; 0 for a copy in this process.
            time_size: How many time steps the workspace is to have, if not as many as that run had.
            **extra_kwargs: Keyword arguments of that run.
        """
        trial, workspace = agent.clone(), Workspace()
        trial(workspace, **extra_kwargs)
        for part in trial.modules():
            if hasattr(part, "close"):
                part.close()
        shared = workspace._convert_to_shared_workspace(max(1, num_processes), time_size)
        copy = agent.clone()
        return (NRemoteAgent(copy, num_processes) if num_processes else copy), shared

    def __call__(self, workspace: Workspace | None, **kwargs: Any) -> None:
        """Run all copies, and wait for all of them.

        With a ``stop_variable`` each copy stops on its own; its columns are then extended to the length of the longest.
        """
        known = self._checked(workspace)
        self._merge(known, self._at_work().run(self._split(known), kwargs), kwargs.get("stop_variable"))

    def _asynchronous_call(self, workspace: Workspace, **kwargs: Any) -> None:
        """Run all copies without waiting; the workspace is written when ``is_running`` turns False."""
        known, stop = self._checked(workspace), kwargs.get("stop_variable")
        self._at_work().start(self._split(known), kwargs, lambda parts: self._merge(known, parts, stop))

    def _checked(self, workspace: Workspace | None) -> Workspace:
        if workspace is None:
            raise WorkspaceError(f"{type(self).__name__} was called without a workspace")
        size = workspace.batch_size()
        if size is not None and size % self.num_processes:
            raise WorkspaceError(f"{size} columns cannot be shared evenly by {self.num_processes} processes")
        return workspace

    def _split(self, workspace: Workspace) -> list[Workspace | None]:
        size = workspace.batch_size()
        if size is None:
            return [None] * self.num_processes
        share = size // self.num_processes
        return [workspace.select_batch(range(k * share, (k + 1) * share)) for k in range(self.num_processes)]

    def _merge(self, workspace: Workspace, parts: list[Workspace], stop_variable: str | None) -> None:
        if any(part.keys() != parts[0].keys() for part in parts):
            raise WorkspaceError(f"the copies have written different variables: {[list(part) for part in parts]}")
        parts = _equally_long(parts, stop_variable)
        for name in parts[0]:
            full = torch.cat([part.get_full(name) for part in parts], 1)
            if not workspace.is_shared:
                workspace._replace(name, full)
                continue
            for t, step in enumerate(full):
                workspace.set(name, t, step)
            # What is beyond was written by a longer run before.
            workspace.variables[name].cut(len(full))

    def seed(self, seed: int, inc: int = 1) -> Self:
        """Give copy ``k`` the seed ``seed + k * inc``; returns the agent."""
        self._at_work().seed([seed + k * inc for k in range(self.num_processes)])
        return self

    def train(self, mode: bool = True) -> Self:
        """Put the agent and its copies into training mode."""
        super().train(mode)
        if self.__dict__.get("_hosts") is not None:
            self._at_work().train(mode)
        return self


class RemoteAgent(NRemoteAgent):
    """An agent in one other process."""

    def __init__(self, agent: Agent, name: str | None = None, verbose: bool = False) -> None:
        super().__init__(agent, 1, name, verbose)


def _equally_long(parts: list[Workspace], stop_variable: str | None) -> list[Workspace]:
    """Extend runs that have stopped at different times, as if they were one batch that stops together.

    A run that has stopped keeps its last frame and gets no more reward, like an env whose episode has ended.
    """
    longest = {name: max(part.variables[name].length for part in parts if name in part) for name in parts[0]}

    def lengthened(name: str, full: torch.Tensor) -> torch.Tensor:
        missing = longest.get(name, len(full)) - len(full)
        if not missing or not len(full):
            return full
        is_reward = name.endswith("reward") and (stop_variable or "").startswith(name.removesuffix("reward"))
        last = torch.zeros_like(full[-1:]) if is_reward else full[-1:]
        return torch.cat([full, last.expand(missing, *full.shape[1:])])

    return [Workspace._of((name, lengthened(name, part.get_full(name))) for name in part) for part in parts]
