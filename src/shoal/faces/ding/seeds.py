"""How envs are to be reset: with which keywords, and with seeds that wait until the caller resets their envs."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.errors import UnknownEnv, WrongSeed, WrongSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


def seeds_by_env(seed: Any, num_envs: int) -> dict[int, int]:
    """Seeds by env, from an int (each env gets one more than the env before), or from a list or dict of ints or None.

    Raises:
        WrongSeed: If it is none of these.
        WrongSetting: If it is a list of the wrong length.
        UnknownEnv: If it is for an env that does not exist.

    Example:
        >>> seeds_by_env(5, 2), seeds_by_env([None, 7], 2)
        ({0: 5, 1: 6}, {1: 7})
    """
    if isinstance(seed, list):
        if len(seed) != num_envs:
            raise WrongSetting(f"seed: expected {num_envs} seeds, one per env, got {len(seed)}")
        seed = dict(enumerate(seed))
    if not isinstance(seed, dict):
        first = _int(seed)
        return {i: first + i for i in range(num_envs)}
    for i in seed:
        if i not in range(num_envs):
            raise UnknownEnv(f"there is no env {i!r}: the manager has envs 0 to {num_envs - 1}")
    return {i: _int(own) for i, own in seed.items() if own is not None}


def _int(seed: Any) -> int:
    if not isinstance(seed, numbers.Integral):
        raise WrongSeed(f"seed: expected an int, or a list or a dict of ints, got {seed!r}")
    if int(seed) < 0:  # said now, rather than when an env is reset
        raise WrongSeed(f"seed: expected ints of at least 0, got {seed!r}")
    return int(seed)


@dataclass(frozen=True)
class Wish:
    """How an env is to be reset.

    Attributes:
        kwargs: Keywords for the env's own ``reset``; None to use those of the last reset again.
        seed: The seed to give to the env first.
        dynamic_seed: The ``dynamic_seed`` that goes with the seed, if any.
        static_seed: The seed for an env that has to be built anew.
        is_seeded: Whether such an env is to have a seed of its own if there is no static one.
    """

    kwargs: Mapping[str, Any] | None = None
    seed: int | None = None
    dynamic_seed: bool | None = None
    static_seed: int | None = None
    is_seeded: bool = False

    @property
    def options(self) -> dict[str, Any] | None:
        """The wish as options for the env's adapter; None if there is nothing to say."""
        told: dict[str, Any] = {}
        if self.kwargs is not None:
            told["kwargs"] = dict(self.kwargs)
        if self.seed is not None:
            told["seeded"] = True
            if self.dynamic_seed is not None:
                told["dynamic_seed"] = self.dynamic_seed
        if self.static_seed is not None:
            told["static_seed"] = self.static_seed
        if self.is_seeded:
            told["is_seeded"] = True
        return told or None


class Seeds:
    """What each env is to be seeded with when the caller next resets it.

    Attributes:
        waiting: Seeds that have not been given to their envs yet.
        dynamic: The ``dynamic_seed`` that goes with them.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.dynamic: bool | None = None
        self._static: dict[int, int] = {}
        self._given: set[int] = set()

    def keep(self, seeds: Mapping[int, int], dynamic: bool | None) -> None:
        """Add seeds; those of other envs are kept."""
        self.waiting.update(seeds)
        self.dynamic = dynamic

    def take(self, env_id: int) -> int | None:
        """Take the seed of an env that is about to get it; None if it has none."""
        seed = self.waiting.pop(env_id, None)
        if seed is not None:
            self._given.add(env_id)
            self._static.pop(env_id, None)
            if self.dynamic is False:
                self._static[env_id] = seed
        return seed

    def wish(self, env_id: int, seed: int | None, kwargs: Mapping[str, Any] | None, *, may_be_new: bool) -> Wish:
        """How to reset an env with these keywords and this seed; one that may be new is told of its earlier seeds."""
        static = self._static.get(env_id) if may_be_new else None
        return Wish(kwargs, seed, self.dynamic, static, may_be_new and env_id in self._given)

    def forget_given(self) -> None:
        """Forget the seeds of the old envs; the new ones know nothing about them."""
        self._static.clear()
        self._given.clear()
