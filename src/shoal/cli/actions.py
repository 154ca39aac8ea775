"""Where the driving loop takes its actions from: a block of random ones, or a policy of the user's."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from shoal.errors import ArgumentError

Policy = Callable[[Any], Any]
Actor = Callable[[Any, int], Any]
"""Observations and the number of their rows, to that many actions."""


def policy_actor(policy: Policy) -> Actor:
    """A policy that only looks at observations, in the form that the driving loop calls."""
    return lambda obs, rows: policy(obs)


def import_here(module_name: str, what: str) -> ModuleType:
    """Import a module; one in the current directory is found too, as by ``python -m``.

    Raises:
        ArgumentError: If it is not there, or fails while it is imported. ``what`` names the argument.
    """
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ArgumentError(f"{what}: {module_name!r} is not the name of a module")
    # By its full name, not as "": a worker process gets this path too and may start elsewhere.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"{what}: {module_name!r} cannot be imported ({error})") from error
    except Exception as error:
        # The module is there, and its author has made a slip most of the time.
        reason = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{what}: {module_name!r} fails when it is imported ({reason})") from error


def load_callable(name: str, what: str) -> Callable[..., Any]:
    """What ``module:attribute`` names.

    Raises:
        ArgumentError: If there is no such thing, or it cannot be called. ``what`` names the argument.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ArgumentError(f"{what}: expected module:callable, got {name!r}")
    found: Any = import_here(module_name, what)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ArgumentError(f"{what}: {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentError(f"{what}: {name!r} is a {type(found).__name__}, which cannot be called")
    return found  # type: ignore[no-any-return]
