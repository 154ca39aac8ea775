"""Seeds that wait until the caller resets their envs."""

from __future__ import annotations

import numbers
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

    def static_of(self, env_id: int) -> int | None:
        """The seed that holds for all episodes of an env, if there is one."""
        return self._static.get(env_id)

    def has_given(self, env_id: int) -> bool:
        """Whether an env has had a seed, so that one that is built in its place needs one too."""
        return env_id in self._given

    def forget_given(self) -> None:
        """Forget the seeds of the old envs; the new ones know nothing about them."""
        self._static.clear()
        self._given.clear()
