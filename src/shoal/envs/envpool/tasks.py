"""Every EnvPool task as an attribute of this module, under its id, so that its class can be found again and pickled."""

from __future__ import annotations

from typing import Any

from shoal.envs.envpool import kind_of
from shoal.errors import ArgumentError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return kind_of(name)
    except ArgumentError as error:
        raise AttributeError(str(error)) from error
