"""Nested dicts as namedtuples, the form that dm_env's dialect uses."""

from __future__ import annotations

import keyword
import re
from collections import namedtuple
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def as_tuple(name: str, items: Mapping[str, Any]) -> Any:
    """A mapping as a namedtuple, and dicts within it likewise.

    Names that a namedtuple does not allow are changed: ``"arm/pos"`` becomes ``arm_pos``, and ``"_final_obs"``, which
    says where there is one, becomes ``has_final_obs``.

    Example:
        >>> as_tuple("State", {"obs": 1, "players": {"env_id": 0}})
        State(obs=1, players=players(env_id=0))
    """
    values = [as_tuple(field_name(key), value) if isinstance(value, dict) else value for key, value in items.items()]
    return tuple_type(name, tuple(items))(*values)


@lru_cache(maxsize=256)
def tuple_type(name: str, keys: tuple[str, ...]) -> Any:
    """The type for these keys; equal keys get the same type."""
    return namedtuple(name, [field_name(key) for key in keys], rename=True)


def field_name(key: str) -> str:
    """A key as a name that a namedtuple may have."""
    name = re.sub(r"\W", "_", str(key))
    name = f"has{name}" if name.startswith("_final") else name.lstrip("_") or "field"
    return f"n{name}" if name[0].isdigit() else f"{name}_" if keyword.iskeyword(name) else name
