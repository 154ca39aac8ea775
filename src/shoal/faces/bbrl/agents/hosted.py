"""What agents that run in other processes have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from shoal.errors import StateError
from shoal.faces.bbrl.agents.agent import Agent

if TYPE_CHECKING:
    from shoal.faces.bbrl.agents.hosting import Hosts


class AgentRunning(StateError, AssertionError):
    """An agent was called that is still at work on the call before."""

    def __init__(self) -> None:
        super().__init__("the agent is running: wait until is_running() is False")


class HostedAgent(Agent):
    """An agent whose copies run in processes, which start when they are first needed and end with ``close``."""

    def __init__(self, agent: Agent, num_processes: int, name: str | None, verbose: bool = False) -> None:
        super().__init__(name=name, verbose=verbose)
        self.agent = agent
        self.num_processes = num_processes
        self._hosts: Hosts | None = None

    def _at_work(self) -> Hosts:
        if self._hosts is None:
            from shoal.faces.bbrl.agents.hosting import Hosts

            self._hosts = Hosts(self.agent, self.num_processes)
        return self._hosts

    def is_running(self) -> bool:
        """Whether the agent is at work. Whatever has gone wrong there is raised here."""
        return self._hosts is not None and self._hosts.is_running()

    def get_by_name(self, n: str) -> list[Agent]:
        """All agents of this name among the agent and its parts."""
        return super().get_by_name(n) + self.agent.get_by_name(n)

    def close(self) -> None:
        """End the processes."""
        if self._hosts is not None:
            self._hosts.close()
            self._hosts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hosts": None, "workspace": None}
