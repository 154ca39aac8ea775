"""Where the driving loop gets its actions: a block of random ones, or the user's policy."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import ArgumentError, PolicyFailed

Policy = Callable[[Any], Any]
Actor = Callable[[Any, int], Any]
"""Observations and the number of their rows, to that many actions."""


def load_policy(name: str) -> Policy:
    """The policy that ``module:callable`` names; what it raises is reported as a failure of the policy.

    Raises:
        ArgumentError: If there is no such thing, or it cannot be called.
    """
    policy = load_callable(name, "--policy")

    def told(obs: Any) -> Any:
        try:
            return policy(obs)
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise PolicyFailed(f"--policy: {name!r} raised {reason}{_line(error, name)}") from error

    return told


def _line(error: BaseException, name: str) -> str:
    """The line of the policy's own file at which it failed: the last one in that file, whatever was called from it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without the frame that calls the policy
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    own = [frame for frame in frames if frame.filename == file] or frames
    return f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


def policy_actor(policy: Policy) -> Actor:
    """A policy, which takes only observations, in the form that the driving loop calls."""
    return lambda obs, rows: policy(obs)


def import_here(module_name: str, what: str) -> ModuleType:
    """Import a module; one in the current directory is found too, as by ``python -m``.

    Raises:
        ArgumentError: If it does not exist, or fails during its import. ``what`` names the argument.
    """
    if "/" in module_name or (module_name.endswith(".py") and Path(module_name).is_file()):
        path = Path(module_name.removesuffix(".py"))
        is_elsewhere = path.is_absolute() or ".." in path.parts
        importable = path.name if is_elsewhere else ".".join(path.parts)
        raise ArgumentError(f"{what}: {module_name!r} is a path; name the module as in an import: {importable!r}")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ArgumentError(f"{what}: {module_name!r} is not the name of a module")
    with suppress(FileNotFoundError):  # the current directory has been deleted
        # The full path, not "": a worker process gets this path too and may start elsewhere.
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"{what}: {module_name!r} cannot be imported ({error})") from error
    except (Exception, SystemExit) as error:
        # The module exists; most of the time its author has made a slip.
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
