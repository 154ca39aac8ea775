"""What a step of a DI-engine env returns."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

TRUNCATED = "TimeLimit.truncated"


class BaseEnvTimestep(namedtuple("BaseEnvTimestep", ["obs", "reward", "done", "info"])):
    """What a step returns: ``(obs, reward, done, info)``, and in which way an episode has ended.

    Example:
        >>> BaseEnvTimestep([0.0], 1.0, True, {"TimeLimit.truncated": True}).truncated
        True
    """

    __slots__ = ()

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut short, so that its last observation has the value of what would have followed."""
        info = told_by(self.info)
        return bool(info.get("truncated", self.done and info.get(TRUNCATED, False)))

    @property
    def terminated(self) -> bool:
        """Whether the episode has come to its natural end."""
        return bool(told_by(self.info).get("terminated", self.done and not self.truncated))


FIELDS = BaseEnvTimestep._fields


def told_by(info: Any) -> Mapping[str, Any]:
    """What an info says about the whole env: the info itself, or the first of several, where each agent has its own.

    Example:
        >>> told_by([{"abnormal": True}, {}]), told_by(())
        ({'abnormal': True}, {})
    """
    if info.__class__ is dict:  # as is usual, and much quicker to find out
        return info
    first = info[0] if isinstance(info, (list, tuple)) and info else info
    return first if isinstance(first, Mapping) else {}


def is_abnormal(info: Any) -> bool:
    """Whether an env calls its timestep abnormal; where each agent has its own info, any of them may.

    Example:
        >>> is_abnormal({}), is_abnormal([{}, {"abnormal": True}])
        (False, True)
    """
    if info.__class__ is dict:
        return bool(info.get("abnormal"))
    infos = info if isinstance(info, (list, tuple)) else (info,)
    return any(own.get("abnormal") for own in infos if isinstance(own, Mapping))
