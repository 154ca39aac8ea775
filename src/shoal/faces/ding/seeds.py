"""Seeds that wait until the caller resets their envs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
