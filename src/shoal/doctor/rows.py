"""What envs return for the same seed and the same actions, and where two of them part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector.utils import batch_space

if TYPE_CHECKING:
    from shoal.batch import Batch
    from shoal.pool import Pool
    from shoal.spec import EnvSpec, Leaf, SpaceTree

_SEED = 7
_KEPT_BYTES = 64 << 20
_FLAGS = ("reward", "terminated", "truncated")

Record = list[list[Any]]
"""One row per step, the reset first; a row is the observation's leaves, then reward and flags."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two records part.

    Attributes:
        step: The step, 0 for the reset.
        what: Which part of the row.
        values: The two values, in a few words.
    """

    step: int
    what: str
    values: str


def random_actions(action: SpaceTree, rows: int, seed: int = _SEED) -> Iterator[Any]:
    """Batches of random actions without end; the same ones for the same seed."""
    random = np.random.default_rng(seed)
    while True:
        yield action.unflatten([_sample(leaf, rows, int(random.integers(2**31))) for leaf in action.leaves])


def _sample(leaf: Leaf, rows: int, seed: int) -> Any:
    if leaf.is_array:
        space = batch_space(leaf.space, rows)
        space.seed(seed)
        return space.sample()
    leaf.space.seed(seed)
    return [leaf.space.sample() for _ in range(rows)]


def record(pools: Sequence[Pool], steps: int, limit_s: float | None = None) -> list[Record]:
    """Reset pools of one env each with one seed, and step them in turn with the same actions.

    In turn, because that is how envs of one process live: one that reseeds a generator which it shares with the
    others would look repeatable if it had the process to itself.
    """
    records: list[Record] = [[_row(pool, pool.reset(seed=_SEED))] for pool in pools]
    actions = random_actions(pools[0].spec.action, 1)
    row_bytes = sum(getattr(leaf, "nbytes", 0) for leaf in records[0][0])
    start = perf_counter()
    for _ in range(min(steps, max(2, _KEPT_BYTES // row_bytes))):
        if limit_s is not None and perf_counter() - start > limit_s:
            break
        action = next(actions)
        for pool, rows in zip(pools, records, strict=True):
            rows.append(_row(pool, pool.step(action)))
    return records


def _row(pool: Pool, batch: Batch) -> list[Any]:
    leaves = pool.spec.observation.flatten(batch.obs)
    return [*(leaf[0] for leaf in leaves), batch.reward[0], batch.terminated[0], batch.truncated[0]]


def first_difference(spec: EnvSpec, one: Record, other: Record) -> Difference | None:
    """Where two records part first; None if they agree as far as both go."""
    names = [*(leaf.path for leaf in spec.observation.leaves), *_FLAGS]
    for step, (a_row, b_row) in enumerate(zip(one, other, strict=False)):
        for name, a, b in zip(names, a_row, b_row, strict=True):
            if not same(a, b):
                return Difference(step, name, _told(a, b))
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two values of a leaf are the same, NaN being the same as NaN."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype != object:
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list, np.ndarray)) and isinstance(b, (tuple, list, np.ndarray)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) or bool(a != a and b != b)


def _told(a: Any, b: Any) -> str:
    if isinstance(a, np.ndarray) and a.dtype.kind in "iuf" and a.shape == getattr(b, "shape", None):
        place = tuple(int(i) for i in np.argwhere(~((a == b) | ((a != a) & (b != b))))[0])
        return f"{a[place]!s} and {b[place]!s}" + (f" at {list(place)}" if place else "")
    return " and ".join(_short(value) for value in (a, b))


def _short(value: Any) -> str:
    text = str(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:37] + "..."
