"""Agents at work in other processes.

An agent is hosted like an env: a pool on the process engine holds one host per process, and a call to the agent is a
call to its host. So what a pool promises holds here too: a worker that dies or an agent that fails raises an exception
that says so, and nothing is left behind.

    caller                               worker
    columns and parameters  ──────────▶  a workspace, the agent's parameters
    waits, or polls                      agent(workspace, **kwargs)
    columns                 ◀──────────  what it has written
"""

from __future__ import annotations

from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np
import torch

from shoal.build import make_pool
from shoal.engines.process.shipping import pickle_value, unpickle_value
from shoal.errors import ShippingError
from shoal.faces.bbrl.agents.hosted import AgentRunning
from shoal.faces.bbrl.agents.parallel import ParallelGymAgent
from shoal.faces.bbrl.agents.seeding import SeedableAgent
from shoal.faces.bbrl.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.faces.bbrl.agents.agent import Agent

Columns = dict[str, torch.Tensor]
Part = TypeVar("Part")


class AgentHost(gym.Env[Any, Any]):
    """Runs an agent in the worker where the pool has put it. Its rows mean nothing; it exists to be called.

    Args:
        packed: The agent.
        envs: The envs of each env agent in it, packed; no bytes where the agent is to make its own.
        k: Which of several copies this is.
        seed: The seed of torch's generator, for agents that draw from it.
    """

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(1)

    def __init__(self, packed: bytes, envs: Sequence[bytes], k: int, seed: int) -> None:
        # There is a process per agent, so more threads in each would only take turns.
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.agent = unpickle_value(packed)
        for part in parts_of(self.agent, SeedableAgent):
            part.be_copy(k)
        for part, own in zip(parts_of(self.agent, ParallelGymAgent), envs, strict=True):
            if own:
                part.take_envs(unpickle_value(own))
        self.inbox: bytes | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return a meaningless row."""
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        """Return a meaningless row."""
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def run(self, parameters: bytes, kwargs: dict[str, Any]) -> bytes:
        """Run the agent on the columns in the inbox, without gradients, and return the resulting columns."""
        if parameters:
            self.agent.load_state_dict(unpickle_value(parameters))
        given: Columns = {} if self.inbox is None else unpickle_value(self.inbox)
        workspace = Workspace._of(given.items())
        with torch.no_grad():  # no graph can follow the columns to the caller
            self.agent(workspace, **kwargs)
        return pack_columns(workspace)

    def seed_agent(self, seed: int) -> None:
        """Seed the agent."""
        self.agent.seed(seed)

    def train_agent(self, mode: bool) -> None:
        """Put the agent into training or evaluation mode."""
        self.agent.train(mode)

    def close(self) -> None:
        """Close whatever the agent has open."""
        for part in self.agent.modules():
            if hasattr(part, "close"):
                part.close()


class Hosts:
    """Copies of an agent in processes of their own, which differ in their seeds.

    A single one takes the place of the agent, so it gets the agent's very envs, if they can be pickled. Several make
    their own.
    """

    def __init__(self, agent: Agent, count: int) -> None:
        self._agent = agent
        packed = pickle_value(agent, type(agent).__name__)
        envs = [_packed_envs(part) if count == 1 else b"" for part in parts_of(agent, ParallelGymAgent)]
        # An agent may take as long as it likes.
        patience = {"reset_timeout": None, "step_timeout": None}
        self._pool = make_pool(
            [partial(AgentHost, packed, envs, k, seed) for k, seed in enumerate(_torch_seeds(count))],
            engine="process",
            num_workers=count,
            name=type(agent).__name__,
            **patience,  # type: ignore[arg-type]
        )
        self.count = count
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def run(self, parts: Sequence[Workspace | None], kwargs: dict[str, Any]) -> list[Workspace]:
        """Run all copies, each on its own part, and wait for all of them."""
        if self.is_running():
            raise AgentRunning
        return self._run(parts, kwargs)

    def _run(self, parts: Sequence[Workspace | None], kwargs: dict[str, Any]) -> list[Workspace]:
        self._pool.set_attr("inbox", [None if part is None else pack_columns(part) for part in parts])
        state = self._agent.state_dict()
        answers = self._pool.ask("run", (pickle_value(state, "parameters") if state else b"", kwargs), {})
        return [Workspace._of(unpickle_value(answer).items()) for answer in answers]

    def start(
        self, parts: Sequence[Workspace | None], kwargs: dict[str, Any], then: Callable[[list[Workspace]], None]
    ) -> None:
        """Run all copies without waiting; ``then`` gets the results."""
        if self.is_running():
            raise AgentRunning

        def work() -> None:
            try:
                then(self._run(parts, kwargs))
            except BaseException as error:  # raised where somebody asks whether they are running
                self._error = error

        self._thread = Thread(target=work, name="shoal-agent", daemon=True)
        self._thread.start()

    def is_running(self) -> bool:
        """Whether the copies are at work. Whatever has gone wrong is raised here, once."""
        if self._thread is not None and self._thread.is_alive():
            return True
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return False

    def wait(self) -> None:
        """Wait until the copies are done."""
        if self._thread is not None:
            self._thread.join()
        self.is_running()

    def seed(self, seeds: Sequence[int]) -> None:
        """Give each copy its seed."""
        for k, seed in enumerate(seeds):
            self._pool.ask("seed_agent", (seed,), {}, [k])

    def train(self, mode: bool) -> None:
        """Put all copies into training or evaluation mode."""
        self._pool.ask("train_agent", (mode,), {})

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
        if self._thread is not None:
            self._thread.join(5.0)


def pack_columns(workspace: Workspace) -> bytes:
    """All variables of a workspace as bytes."""
    columns = {name: workspace.get_full(name).detach().cpu() for name in workspace}
    return pickle_value(columns, "workspace")


def parts_of(agent: Agent, kind: type[Part]) -> list[Part]:
    """All agents of a kind in an agent, in an order that copies have too."""
    return [part for part in agent.modules() if isinstance(part, kind)]


def _packed_envs(agent: ParallelGymAgent) -> bytes:
    try:
        return pickle_value(agent.own_envs(), "envs")
    except ShippingError:
        return b""


def _torch_seeds(count: int) -> list[int]:
    """Seeds for torch in processes: they follow from its generator here, which goes on as if it had not been asked."""
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    seeds: list[int] = torch.randint(2**62, (count,), generator=generator).tolist()
    return seeds
