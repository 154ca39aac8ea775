"""An agent that runs in another process while this one goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from shoal.faces.bbrl.agents.hosted import AgentRunning, HostedAgent

if TYPE_CHECKING:
    from shoal.faces.bbrl.agents.agent import Agent
    from shoal.faces.bbrl.workspace import Workspace


class AsynchronousAgent(HostedAgent):
    """Runs an agent in another process, on a workspace of its own.

    Call it without a workspace, poll ``is_running``, then take ``get_workspace``. Each call begins with an empty
    workspace and with the parameters that the agent has here. Envs of the agent go along if they can be pickled; else
    they are made anew.

    Args:
        agent: The agent.
        verbose: Means whatever the agent makes of it.
        name: A name to find the agent by.
    """

    def __init__(self, agent: Agent, verbose: bool = False, name: str | None = None) -> None:
        super().__init__(agent, 1, name, verbose)
        self._result: Workspace | None = None

    def __call__(self, workspace: Workspace | None = None, **kwargs: Any) -> None:
        """Start the agent, and return at once."""
        if self.is_running():
            raise AgentRunning
        self._result = None
        self._at_work().start([workspace], kwargs, self._take)

    def _take(self, results: list[Workspace]) -> None:
        self._result = results[0]

    def wait(self) -> None:
        """Wait until the agent is done."""
        if self._hosts is not None:
            self._hosts.wait()

    def get_workspace(self) -> Workspace | None:
        """What the last call has written; None while the agent is running."""
        return None if self.is_running() else self._result

    def seed(self, seed: int) -> Self:
        """Seed the agent, before its first call; returns ``self``."""
        self.agent.seed(seed)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_result": None}
