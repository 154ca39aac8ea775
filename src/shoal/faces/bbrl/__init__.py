"""BBRL's dialect: agents that read and write a workspace, with a pool behind the env agents.

    workspace     Workspace: named tensors, each [time, batch, ...]
    agents        Agent and its relatives; agents.gymnasium has the env agents, agents.asynchronous runs elsewhere
    utils         the replay buffer and the arithmetic of bootstrapping
    classes       get_class, get_arguments, instantiate_class: objects from a config

The modules are where BBRL has them, and every public name can be imported from here:

    >>> from functools import partial
    >>> from shoal.faces.bbrl import ParallelGymAgent, Workspace, make_env
    >>> env = ParallelGymAgent(partial(make_env, "CartPole-v1", autoreset=True), 4).seed(1)
    >>> workspace = Workspace()
    >>> env(workspace, t=0)
    >>> workspace["env/env_obs"].shape
    torch.Size([1, 4, 4])

It needs torch (``pip install 'shoal[torch]'``), but not BBRL.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shoal.errors import BackendUnavailable

if find_spec("torch") is None:
    raise BackendUnavailable("BBRL's dialect needs torch: pip install 'shoal[torch]'")

if TYPE_CHECKING:
    from shoal.faces.bbrl.agents import Agent as Agent
    from shoal.faces.bbrl.agents import Agents as Agents
    from shoal.faces.bbrl.agents import CopyTAgent as CopyTAgent
    from shoal.faces.bbrl.agents import DataLoaderAgent as DataLoaderAgent
    from shoal.faces.bbrl.agents import EpisodesDone as EpisodesDone
    from shoal.faces.bbrl.agents import KWAgentWrapper as KWAgentWrapper
    from shoal.faces.bbrl.agents import NRemoteAgent as NRemoteAgent
    from shoal.faces.bbrl.agents import PrintAgent as PrintAgent
    from shoal.faces.bbrl.agents import RemoteAgent as RemoteAgent
    from shoal.faces.bbrl.agents import SeedableAgent as SeedableAgent
    from shoal.faces.bbrl.agents import SerializableAgent as SerializableAgent
    from shoal.faces.bbrl.agents import ShuffledDatasetAgent as ShuffledDatasetAgent
    from shoal.faces.bbrl.agents import TemporalAgent as TemporalAgent
    from shoal.faces.bbrl.agents import TimeAgent as TimeAgent
    from shoal.faces.bbrl.agents import load as load
    from shoal.faces.bbrl.agents.asynchronous import AsynchronousAgent as AsynchronousAgent
    from shoal.faces.bbrl.agents.gymnasium import GymAgent as GymAgent
    from shoal.faces.bbrl.agents.gymnasium import ParallelGymAgent as ParallelGymAgent
    from shoal.faces.bbrl.agents.gymnasium import VecGymAgent as VecGymAgent
    from shoal.faces.bbrl.agents.gymnasium import make_env as make_env
    from shoal.faces.bbrl.agents.gymnasium import record_video as record_video
    from shoal.faces.bbrl.classes import get_arguments as get_arguments
    from shoal.faces.bbrl.classes import get_class as get_class
    from shoal.faces.bbrl.classes import instantiate_class as instantiate_class
    from shoal.faces.bbrl.utils.functional import cumulated_reward as cumulated_reward
    from shoal.faces.bbrl.utils.functional import (
        doubleqlearning_temporal_difference as doubleqlearning_temporal_difference,
    )
    from shoal.faces.bbrl.utils.functional import gae as gae
    from shoal.faces.bbrl.utils.functional import temporal_difference as temporal_difference
    from shoal.faces.bbrl.utils.replay_buffer import ReplayBuffer as ReplayBuffer
    from shoal.faces.bbrl.utils.utils import soft_param_update as soft_param_update
    from shoal.faces.bbrl.workspace import Workspace as Workspace

_NAMES_OF = {
    "agents": (
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
    ),
    "agents.asynchronous": ("AsynchronousAgent",),
    "agents.gymnasium": ("GymAgent", "ParallelGymAgent", "VecGymAgent", "make_env", "record_video"),
    "classes": ("get_arguments", "get_class", "instantiate_class"),
    "utils.functional": ("cumulated_reward", "doubleqlearning_temporal_difference", "gae", "temporal_difference"),
    "utils.replay_buffer": ("ReplayBuffer",),
    "utils.utils": ("soft_param_update",),
    "workspace": ("Workspace",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES_OF.items() for name in names}
_PARTS = ("agents", "classes", "utils", "workspace")

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
