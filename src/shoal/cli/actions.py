"""Where the driving loop takes its actions from: a block of random ones, or a policy of the user's."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.vector.utils import batch_space

from shoal.errors import ArgumentError
from shoal.spec import SpaceTree

Policy = Callable[[Any], Any]
Actor = Callable[[Any, int], Any]
"""Observations and the number of their rows, to that many actions."""

_BLOCK_VALUES = 1 << 16


class RandomActions:
    """Actions drawn from a space, thousands at a time.

    ``Space.sample`` has a price per call, whatever its size: for 64 envs 3 µs with a Discrete space, 33 µs with
    a Box, and as much again for each further leaf. In a loop whose purpose is to show what the envs and the pool
    cost, that would be a good part of the result. One sample of a large batched space has the same distribution
    and leaves only a slice per step. Spaces that cannot be batched as arrays (Text, Graph, ...) are sampled row
    by row.
    """

    def __init__(self, action: SpaceTree, seed: int | None = None) -> None:
        seeds = np.random.SeedSequence(seed).generate_state(len(action.leaves))
        self._unflatten = action.unflatten
        self._columns: list[_Block | _Singly] = [
            (_Block if leaf.is_array else _Singly)(leaf.space, int(own))
            for leaf, own in zip(action.leaves, seeds, strict=True)
        ]

    def __call__(self, obs: Any, rows: int) -> Any:
        """The next ``rows`` actions; whatever is observed makes no difference."""
        return self._unflatten([column.take(rows) for column in self._columns])


class _Block:
    """Values of one array leaf, sampled ahead."""

    def __init__(self, space: Space[Any], seed: int) -> None:
        self._space = space
        self._random = np.random.default_rng(seed)
        self._block: npt.NDArray[Any] = np.empty(0)
        self._next = 0

    def take(self, rows: int) -> npt.NDArray[Any]:
        if self._next + rows > len(self._block):
            self._refill(rows)
        self._next += rows
        return self._block[self._next - rows : self._next]

    def _refill(self, rows: int) -> None:
        size = max(rows, _BLOCK_VALUES // max(1, int(np.prod(self._space.shape or ()))))
        many = batch_space(self._space, size)
        many.seed(int(self._random.integers(2**31)))
        self._block = many.sample()
        self._next = 0


class _Singly:
    """Values of one object leaf, sampled when asked for."""

    def __init__(self, space: Space[Any], seed: int) -> None:
        self._space = space
        space.seed(seed)

    def take(self, rows: int) -> list[Any]:
        return [self._space.sample() for _ in range(rows)]


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
