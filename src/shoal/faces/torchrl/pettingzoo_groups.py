"""Agents in groups: those of a group share one TensorDict, with a dim for the agents."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MarlGroupMapType(Enum):
    """The two groupings that can be had without naming agents.

    Example:
        >>> from shoal.faces.torchrl import MarlGroupMapType
        >>> MarlGroupMapType.ALL_IN_ONE_GROUP.get_group_map(["a", "b"])
        {'agents': ['a', 'b']}
    """

    ALL_IN_ONE_GROUP = 1
    ONE_GROUP_PER_AGENT = 2

    def get_group_map(self, agent_names: Sequence[str]) -> dict[str, list[str]]:
        """The groups of some agents."""
        if self is MarlGroupMapType.ALL_IN_ONE_GROUP:
            return {"agents": list(agent_names)}
        return {name: [name] for name in agent_names}


def group_map_of(wish: Any, agents: Sequence[str], is_parallel: bool) -> dict[str, list[str]]:
    """The groups of an env's agents.

    By default agents that take turns are alone, and those that act together are grouped by the part of their names
    before a number: ``archer_0`` and ``archer_1`` are the ``archer`` group.

    Raises:
        ArgumentError: If an agent is in no group, or in two.
    """
    if wish is None:
        return _by_name(agents) if is_parallel else MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(agents)
    if isinstance(wish, MarlGroupMapType):
        return wish.get_group_map(agents)
    groups = {str(name): list(members) for name, members in wish.items()}
    check_groups(groups, agents)
    return groups


def _by_name(agents: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for agent in agents:
        stem, _, number = agent.rpartition("_")
        groups.setdefault(stem if stem and number.isdigit() else agent, []).append(agent)
    return groups


def check_groups(groups: Mapping[str, Sequence[str]], agents: Sequence[str]) -> None:
    """Refuse groups that omit, repeat or invent agents, are empty, or have the name of another entry."""
    named = [agent for members in groups.values() for agent in members]
    if twice := sorted({agent for agent in named if named.count(agent) > 1}):
        raise ArgumentError(f"group_map: agents {twice} are there more than once")
    if missing := [agent for agent in agents if agent not in named]:
        raise ArgumentError(f"group_map: agents {missing} are in no group")
    if unknown := [agent for agent in named if agent not in agents]:
        raise ArgumentError(f"group_map: the env has no agents {unknown}; it has {list(agents)}")
    if empty := [name for name, members in groups.items() if not members]:
        raise ArgumentError(f"group_map: groups {empty} have no agents")
    if taken := sorted({"done", "terminated", "truncated", "next", "state", "_reset"} & groups.keys()):
        raise ArgumentError(f"group_map: {taken} are names of other entries")
