"""Agents that take a seed, and what a second seed means to them."""

from __future__ import annotations

from typing import Any, Self

from shoal.errors import StateError
from shoal.faces.bbrl.agents.agent import Agent


class SeedableAgent(Agent):
    """An agent that takes one seed; a second is an error.

    Args:
        seed: The seed, if it is known already.
        **kwargs: Arguments of ``Agent``.

    Attributes:
        default_seed: The seed of an agent that was given none, if it needs one.
    """

    default_seed: int | None = None

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._seed: int | None = None
        self._seeds: list[int] = []
        self._is_copy = False
        if seed is not None:
            self.seed(seed)

    def seed(self, seed: int) -> Self:
        """Take the seed; returns the agent."""
        if self._seeds:
            self._seed = self._again(seed)
        else:
            self._seed = seed
        self._seeds.append(seed)
        return self

    def be_copy(self, k: int) -> None:
        """Be copy ``k`` of several that are to differ: count up from the seed of the original, or take a new one."""
        known = self.default_seed if self._seed is None else self._seed
        self._seed = None if known is None else known + k
        self._is_copy = bool(self._seeds)

    def _again(self, seed: int) -> int:
        if self._is_copy:  # so the seed before was meant for the original
            self._is_copy = False
            return seed
        raise StateError(f"{type(self).__name__} has been seeded with {self._seed} already")


class SeedableAgentLast(SeedableAgent):
    """An agent that uses the last of several seeds."""

    def _again(self, seed: int) -> int:
        return seed


class SeedableAgentSum(SeedableAgent):
    """An agent whose seed is the sum of all seeds that it was given."""

    def _again(self, seed: int) -> int:
        return sum(self._seeds) + seed


class SeedableAgentMean(SeedableAgent):
    """An agent whose seed is the mean, rounded down, of all seeds that it was given."""

    def _again(self, seed: int) -> int:
        return (sum(self._seeds) + seed) // (len(self._seeds) + 1)
