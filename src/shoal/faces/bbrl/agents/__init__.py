"""Agents, which read and write a workspace.

agent           Agent and the conventions around it
seeding         agents that take a seed once
utils           Agents, TemporalAgent and small agents
dataloader      agents that read datasets
gymnasium       env agents, backed by a pool
remote          agents in other processes; asynchronous: the same, without waiting
"""

from __future__ import annotations

from shoal.faces.bbrl.agents.agent import Agent, KWAgentWrapper, SerializableAgent, TimeAgent, load
from shoal.faces.bbrl.agents.dataloader import DataLoaderAgent, ShuffledDatasetAgent
from shoal.faces.bbrl.agents.remote import NRemoteAgent, RemoteAgent
from shoal.faces.bbrl.agents.seeding import SeedableAgent, SeedableAgentLast, SeedableAgentMean, SeedableAgentSum
from shoal.faces.bbrl.agents.utils import Agents, CopyTAgent, EpisodesDone, PrintAgent, TemporalAgent

__all__ = [
    "Agent",
    "Agents",
    "CopyTAgent",
    "DataLoaderAgent",
    "EpisodesDone",
    "KWAgentWrapper",
    "NRemoteAgent",
    "PrintAgent",
    "RemoteAgent",
    "SeedableAgent",
    "SeedableAgentLast",
    "SeedableAgentMean",
    "SeedableAgentSum",
    "SerializableAgent",
    "ShuffledDatasetAgent",
    "TemporalAgent",
    "TimeAgent",
    "load",
]
