"""Argument checks: every error names the argument, what was expected, and what was given."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from math import inf, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shoal.errors import ArgumentError


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that a value is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(f"{name}: expected one of {choices}, got {value!r}")


def check_flags(**flags: Any) -> None:
    """Check that values are bools."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name}: expected True or False, got {value!r}")


def check_count(name: str, value: Any, most: int | None = None, *, low: int = 1, may_be_none: bool = True) -> None:
    """Check that a value is None, or a whole number of at least ``low`` and, if there is a limit, at most ``most``."""
    if value is None and may_be_none:
        return
    count = _int(value)
    if count is None or count < low or (most is not None and count > most):
        expected = f"an int of at least {low}" if most is None else f"an int from {low} to {most} (num_envs)"
        raise ArgumentError(f"{name}: expected {expected}, got {value!r}")


def _int(value: Any) -> int | None:
    """A value as an int; None if it is none. Arrays and classes have ``__index__`` too, and bools are ints."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_counts(**counts: Any) -> None:
    """Check several counts at once; see ``check_count``."""
    for name, value in counts.items():
        check_count(name, value)


def check_seconds(name: str, value: Any, *, may_be_none: bool = True) -> None:
    """Check that a value is a number of seconds above 0, or None for as long as it takes."""
    if value is None and may_be_none:
        return
    if isinstance(value, bool) or not _number(value) > 0:
        rest = ", or None to wait for ever" if may_be_none else ""
        raise ArgumentError(f"{name}: expected seconds, more than 0{rest}, got {value!r}")


def check_patience(**waits: Any) -> None:
    """Check that values are numbers of seconds that a caller is willing to wait, 0 included, or None."""
    for name, value in waits.items():
        if value is not None and not _number(value) >= 0:
            raise ArgumentError(f"{name}: expected seconds, at least 0, or None, got {value!r}")


def _number(value: Any) -> float:
    """A value as a number; NaN, for which every comparison is false, if it is none."""
    if isinstance(value, (str, type)) or not hasattr(value, "__float__") or np.ndim(value):
        return nan
    try:
        return float(value)
    except (TypeError, ValueError):  # a date, for instance
        return nan
    except OverflowError:
        return inf if value > 0 else -inf


def check_cpus(name: str, value: Any) -> tuple[int, ...] | None:
    """The CPUs to run workers on, all of them usable by this process; None leaves the choice to the system."""
    if value is None:
        return None
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cpus = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else []
    if not cpus or not all(hasattr(cpu, "__index__") and int(cpu) in usable for cpu in cpus):
        raise ArgumentError(f"{name}: expected some of the CPUs {sorted(usable)}, got {value!r}")
    return tuple(int(cpu) for cpu in cpus)


def check_folder(name: str, value: str | os.PathLike[str] | None) -> None:
    """Check that a folder can be written to, or created."""
    if value is None:
        return
    try:
        folder = Path(value).absolute()
    except TypeError:
        raise ArgumentError(f"{name}: expected a path, got {value!r}") from None
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        raise ArgumentError(f"{name}: {nearest} is no folder that can be written to ({error})") from error
