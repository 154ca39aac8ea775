"""One seed stream per env id.

Env ``i`` of a pool seeded with ``s`` is reset with ``s + i``, as is customary, so its episodes do not depend on the
engine, the number of workers, or the other envs.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from shoal.errors import ArgumentError

Seed = int | Sequence[int | None] | None


def seeds_for(seed: Seed | np.ndarray[Any, Any], num_envs: int) -> list[int | None]:
    """The seed of each env: ``s`` gives ``s, s + 1, ...``, a list is taken as it is, None leaves generators alone.

    Example:
        >>> seeds_for(7, 3)
        [7, 8, 9]
        >>> seeds_for([1, None, 2], 3)
        [1, None, 2]
    """
    if seed is None:
        return [None] * num_envs
    if are_several(seed):
        if len(seed) != num_envs:
            raise ArgumentError(f"seed: expected {num_envs} seeds, one per env, got {len(seed)}")
        return [None if s is None else _checked(s) for s in seed]
    first = _checked(seed)
    return [first + i for i in range(num_envs)]


def are_several(seed: Any) -> TypeGuard[Sequence[int | None]]:
    """Whether this is one seed per env, rather than one for all."""
    return isinstance(seed, Sequence) or (isinstance(seed, np.ndarray) and seed.ndim > 0)


def seeds_of(ids: Sequence[int], seed: Seed | np.ndarray[Any, Any], num_envs: int) -> list[int | None]:
    """The seeds of some envs of a pool: an int seeds the whole pool, a list only these envs.

    Example:
        >>> seeds_of([2, 0], 7, 3)
        [9, 7]
    """
    if are_several(seed):
        return seeds_for(seed, len(ids))
    everyone = seeds_for(seed, num_envs)
    return [everyone[i] for i in ids]


def _checked(seed: Any) -> int:
    try:
        value = operator.index(seed)
    except TypeError:
        raise ArgumentError(f"seed: expected an int, got {seed!r}") from None
    if value < 0:
        raise ArgumentError(f"seed: expected an int >= 0, got {value}")
    return value


def restart_seed(root: int, env_id: int, incarnation: int) -> int:
    """The seed of an env that is built anew: a stream that no other env has, nor any earlier incarnation of its own.

    Example:
        >>> restart_seed(7, 0, 1) != restart_seed(7, 0, 2)
        True
    """
    stream = np.random.SeedSequence(root, spawn_key=(env_id, incarnation))
    return int(stream.generate_state(1, np.uint32)[0])


GeneratorState = dict[str, Any]


def generator_of(env: Any) -> GeneratorState | None:
    """The state of an env's own generator, as plain data; None if it has no numpy generator."""
    generator = getattr(getattr(env, "unwrapped", env), "_np_random", None)
    return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None


def give_generator(env: Any, state: GeneratorState) -> None:
    """Give an env the generator that another had.

    Raises:
        ValueError: If it is not one of numpy's kinds.
    """
    kind = getattr(np.random, str(state["bit_generator"]), None)
    if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
        raise ValueError(f"no generator of numpy's is called {state['bit_generator']!r}")
    bits = kind()
    bits.state = state
    env.unwrapped.np_random = np.random.Generator(bits)


WORDS = 6
Words = np.ndarray[Any, np.dtype[np.uint64]]


def words_of(generator: np.random.Generator) -> Words:
    """The state of a Generator with PCG64 as six words; the generator is not changed.

    They are the 128-bit state and the 128-bit increment, high half first, then the 32 bits that are left over when an
    integer needs only half of a draw, and whether there are any.
    """
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ArgumentError(f"generator: expected PCG64, got {state['bit_generator']}")
    halves = [half for number in (state["state"]["state"], state["state"]["inc"]) for half in divmod(number, 2**64)]
    return np.array([*halves, state["uinteger"], state["has_uint32"]], np.uint64)


def set_words(generator: np.random.Generator, words: Words) -> None:
    """Put a Generator with PCG64 into the state that ``words`` describe."""
    state_high, state_low, inc_high, inc_low, kept, has_kept = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high << 64 | state_low, "inc": inc_high << 64 | inc_low},
        "uinteger": kept,
        "has_uint32": has_kept,
    }


def entropy() -> int:
    """A fresh root for seed streams."""
    return int(np.random.SeedSequence().generate_state(1, np.uint32)[0])
