"""Looks for numbers that are none: NaN in observations, NaN and infinity in rewards.

A whole batch is judged by the dot product of a column with itself, which is NaN if and only if one of its numbers
is: a fraction of a microsecond for a small pool, and the speed of memory for a large one. Only a batch that fails is
looked at row by row.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import SpecError, Where
from shoal.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shoal.arrays import Rows

POLICIES = ("raise", "truncate", "pass")


class NanWatch:
    """Finds rows with such numbers.

    Attributes:
        policy: What is to become of them.
        found: How many rows there have been.
    """

    def __init__(self, rows: Rows, policy: str) -> None:
        self.policy = policy
        self.found = 0
        blocks = range(rows.layout.blocks)
        leaves = [
            (leaf.path, column)
            for leaf, column in zip(rows.spec.observation.leaves, rows.obs, strict=True)
            if column is not None and leaf.dtype.kind in "fc"
        ]
        self._obs = [[(path, column[block]) for path, column in leaves] for block in blocks]
        self._reward = [rows.reward[block] for block in blocks]
        self._elapsed = [rows.elapsed[block] for block in blocks]
        self._flat_obs = [[column[block].reshape(-1) for _, column in leaves] for block in blocks]

    def is_suspect(self, block: int) -> bool:
        """Whether some row of the pool may have such a number."""
        reward = self._reward[block]
        if not isfinite(reward.dot(reward)):
            return True
        for flat in self._flat_obs[block]:
            square = flat.dot(flat)
            if square != square:
                return True
        return False

    def faults(self, block: int, env_ids: Sequence[int], resetting: Collection[int] = ()) -> dict[int, Fault]:
        """The faults of those among these envs that have such a number; none, if it may pass."""
        found = self._search(block, env_ids)
        self.found += len(found)
        if self.policy == "pass":
            return {}
        return {
            i: Fault(
                Where((i,), "reset" if i in resetting else "step", episode_step=int(self._elapsed[block][i])),
                f"SpecError: {told}",
                cause=SpecError(told),
                spares_env=self.policy == "truncate",
            )
            for i, told in found.items()
        }

    def _search(self, block: int, env_ids: Sequence[int]) -> dict[int, str]:
        ids = np.array(env_ids, np.intp)
        places: dict[int, str] = {}
        reward = self._reward[block][ids]
        if not np.isfinite(reward).all():
            for i in ids[~np.isfinite(reward)].tolist():
                places[i] = f"reward: expected a finite number, got {self._reward[block][i]}"
        for path, column in self._obs[block]:
            bad = np.isnan(column[ids])
            if bad.any():
                for i in ids[bad.reshape(len(ids), -1).any(axis=1)].tolist():
                    places.setdefault(i, f"{path}: NaN in {np.array2string(column[i], threshold=8)}")
        return places

    def release(self) -> None:
        """Let go of the memory."""
        self._obs, self._reward, self._elapsed, self._flat_obs = [], [], [], []
