"""The chain of seeds: the seed of each env follows from that of the env before."""

from __future__ import annotations

import numpy as np

_LARGEST = 2**32 - 1


def next_seed(seed: int) -> int:
    """The seed that follows another in the chain: far from it, and always the same one.

    Example:
        >>> next_seed(0), next_seed(795726461)
        (795726461, 2841183792)
    """
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % _LARGEST


def seed_chain(seed: int | None, length: int, static_seed: bool = False) -> tuple[list[int | None], int | None]:
    """The seeds of several envs, and the one after the last.

    Args:
        seed: The first seed; None leaves all generators alone.
        length: How many envs there are.
        static_seed: Every env gets the same seed.

    Example:
        >>> seed_chain(0, 3)
        ([0, 795726461, 2841183792], 2309840538)
        >>> seed_chain(5, 2, static_seed=True)
        ([5, 5], 5)
    """
    if seed is None or static_seed:
        return [seed] * length, seed
    chain: list[int | None] = []
    for _ in range(length):
        chain.append(seed)
        seed = next_seed(seed)
    return chain, seed
