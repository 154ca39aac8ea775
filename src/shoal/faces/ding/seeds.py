"""Seeds that wait for the resets of their envs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Seeds:
    """What each env is to be seeded with at its next reset.

    Attributes:
        waiting: Seeds that no env has got yet.
        dynamic: What goes with them.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.dynamic: bool | None = None
        self._static: dict[int, int] = {}

    def keep(self, seeds: Mapping[int, int], dynamic: bool | None) -> None:
        """Add seeds; those of other envs stay."""
        self.waiting.update(seeds)
        self.dynamic = dynamic

    def take(self, env_id: int) -> int | None:
        """The seed of an env that will get it now; None if it has none."""
        seed = self.waiting.pop(env_id, None)
        if seed is not None:
            self._static.pop(env_id, None)
            if self.dynamic is False:
                self._static[env_id] = seed
        return seed

    def take_for(self, ids: Iterable[int]) -> dict[int, int]:
        """The seeds of those of these envs that have one, which will get it now."""
        return {i: seed for i in ids if (seed := self.take(i)) is not None}

    def static_of(self, env_id: int) -> int | None:
        """The seed that holds for all episodes of an env, if there is one."""
        return self._static.get(env_id)

    def forget_static(self) -> None:
        """New envs know nothing of the seeds that the old ones got."""
        self._static.clear()
