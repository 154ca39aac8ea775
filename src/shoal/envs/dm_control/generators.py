"""A generator per env, as in dm_control: numpy's ``RandomState``, whose state a snapshot holds as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.adapters.dm_env import random_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.native import Array, Ids

_KEY = 624  # words of a Mersenne Twister
_WORDS = _KEY + 3  # plus its position, whether it has a normal number left over, and that number


class RandomStates:
    """One generator per env, made when it is seeded or first used."""

    def __init__(self, count: int) -> None:
        self._each: list[np.random.RandomState | None] = [None] * count

    def seed(self, seeds: Mapping[int, int]) -> None:
        """Give envs new generators."""
        for i, seed in seeds.items():
            self._each[i] = random_state(seed)

    def __getitem__(self, env_id: int) -> np.random.RandomState:
        found = self._each[env_id]
        if found is None:
            found = self._each[env_id] = np.random.RandomState()
        return found

    def __setitem__(self, env_id: int, generator: np.random.RandomState) -> None:
        self._each[env_id] = generator

    def words(self, ids: Ids) -> Array:
        """The states of some generators, as an array."""
        return np.stack([_words_of(self[i]) for i in ids.tolist()])

    def set_words(self, ids: Ids, words: Array) -> None:
        """Put some generators into the states of others; a single row is for all of them."""
        for i, row in zip(ids.tolist(), np.broadcast_to(words, (len(ids), _WORDS)), strict=True):
            self._each[i] = generator = np.random.RandomState(0)
            position, has_left, left = row[_KEY:]
            key = row[:_KEY].astype(np.uint32)
            generator.set_state(("MT19937", key, int(position), int(has_left), float(left.view(np.float64))))


def _words_of(generator: np.random.RandomState) -> Array:
    state: Any = generator.get_state(legacy=True)
    _, key, position, has_left, left = state
    words = np.empty(_WORDS, np.uint64)
    words[:_KEY] = key
    words[_KEY:] = position, has_left, np.float64(left).view(np.uint64)
    return words
