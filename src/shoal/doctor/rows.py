"""What envs return for the same seed and the same actions, and where two of them diverge."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.collect.random_actions import RandomActions
from shoal.contract.compare import difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batch import Batch
    from shoal.pool import Pool
    from shoal.spec import EnvSpec

_SEED = 7
_KEPT_BYTES = 64 << 20
_FLAGS = ("reward", "terminated", "truncated")

Record = list[list[Any]]
"""One row per step, the reset first; a row is the observation's leaves, then reward and flags."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two records diverge.

    Attributes:
        step: The step; 0 is the reset.
        what: Which part of the row differs.
        values: The two values, in short form.
    """

    step: int
    what: str
    values: str


def record(pools: Sequence[Pool], steps: int, limit_s: float | None = None) -> list[Record]:
    """Reset pools of one env each with the same seed, and step them in turn with the same actions.

    They step in turn because that is how envs in one process live: an env that reseeds a generator shared with others
    would look repeatable if it had the process to itself.
    """
    records: list[Record] = [[_row(pool, pool.reset(seed=_SEED))] for pool in pools]
    actions = RandomActions(pools[0].spec.action, _SEED)
    row_bytes = sum(getattr(leaf, "nbytes", 0) for leaf in records[0][0])
    start = perf_counter()
    for _ in range(min(steps, max(2, _KEPT_BYTES // row_bytes))):
        if limit_s is not None and perf_counter() - start > limit_s:
            break
        action = actions(None, 1)
        for pool, rows in zip(pools, records, strict=True):
            rows.append(_row(pool, pool.step(action)))
    return records


def _row(pool: Pool, batch: Batch) -> list[Any]:
    leaves = pool.spec.observation.flatten(batch.obs)
    return [*(leaf[0] for leaf in leaves), batch.reward[0], batch.terminated[0], batch.truncated[0]]


def first_difference(spec: EnvSpec, one: Record, other: Record) -> Difference | None:
    """Where two records first diverge; None if they agree as far as both go."""
    names = [*(leaf.path for leaf in spec.observation.leaves), *_FLAGS]
    for step, (a_row, b_row) in enumerate(zip(one, other, strict=False)):
        for name, a, b in zip(names, a_row, b_row, strict=True):
            if difference(a, b, name) is not None:
                return Difference(step, name, _told(a, b))
    return None


def _told(a: Any, b: Any) -> str:
    if isinstance(a, np.ndarray) and a.dtype.kind in "iuf" and a.shape == getattr(b, "shape", None):
        place = tuple(int(i) for i in np.argwhere(~((a == b) | ((a != a) & (b != b))))[0])
        return f"{a[place]!s} and {b[place]!s}" + (f" at {list(place)}" if place else "")
    return " and ".join(_short(value) for value in (a, b))


def _short(value: Any) -> str:
    text = str(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:37] + "..."
