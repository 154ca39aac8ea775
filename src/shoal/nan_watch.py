"""Looks for invalid numbers: NaN in observations, NaN and infinity in rewards.

A whole batch is checked first, and only one that fails is searched row by row. A few numbers are checked by their sum,
which is NaN if one of them is; it also is for infinities of both signs, which the search then clears. More than a few
are checked one by one, which takes numpy half a microsecond for a small pool, and runs at the speed of memory for a
large one. The kernel engine checks while it steps.

The dot product of a column with itself would be quicker, but would slow down everything else: its wide vector
instructions lower the clock of some processors for a while, which costs more than the whole check.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.arrays import ALIGNMENT, has_true
from shoal.errors import SpecError, Where
from shoal.faults import Fault
from shoal.quick import can_search, quick

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shoal.arrays import Rows
    from shoal.engines.base import Engine

    _Column = np.ndarray[Any, Any]

POLICIES = ("raise", "truncate", "pass")
_FEW = 32


class NanWatch:
    """Finds rows with invalid numbers.

    Attributes:
        policy: What becomes of them.
        engine_tells: Whether the engine itself says which blocks are suspect.
        found: How many such rows there have been.
        is_suspect: Says whether some row of a block may have an invalid number.
    """

    def __init__(self, engine: Engine, policy: str) -> None:
        rows = engine.rows
        self.policy = policy
        self.found = 0
        self.engine_tells = engine.has_odd_rows is not None
        self.is_suspect: Callable[[int], bool] = engine.has_odd_rows or self._is_suspect
        blocks = range(rows.layout.blocks)
        leaves = _float_columns(rows, rows.obs)
        # Under ``same_step``, the last observation of an episode is in no block: there is one per env.
        self._final = [(f"final {path}", column) for path, column in _float_columns(rows, rows.final)]
        self._obs = [[(path, column[block]) for path, column in leaves] for block in blocks]
        self._reward = [rows.reward[block] for block in blocks]
        self._ends = [(rows.terminated[block], rows.truncated[block]) for block in blocks]
        self._elapsed = [rows.elapsed[block] for block in blocks]
        flat = [[column.reshape(-1) for _, column in self._obs[block] + self._final] for block in blocks]
        if engine.has_odd_rows is None and can_search(*(column.dtype for columns in flat for column in columns)):
            self.is_suspect = quick.Search(tuple((self._reward[block], *flat[block]) for block in blocks))
        # With several blocks, columns of one block cannot be merged: rows of the other blocks are in between.
        self._flat_obs = [_runs(flat[0])] if len(blocks) == 1 else flat

    def _is_suspect(self, block: int) -> bool:
        reward = self._reward[block]
        if not isfinite(sum(reward.tolist())) if reward.size <= _FEW else b"\0" in np.isfinite(reward).tobytes():
            return True
        for flat in self._flat_obs[block]:
            if flat.size > _FEW:
                if has_true(np.isnan(flat)):
                    return True
            elif (total := sum(flat.tolist())) != total:
                return True
        return False

    def faults(self, block: int, env_ids: Sequence[int], resetting: Collection[int] = ()) -> dict[int, Fault]:
        """The faults of those of these envs that have an invalid number; none under the policy ``"pass"``."""
        found = self._search(block, env_ids)
        self.found += len(found)
        if self.policy == "pass":
            return {}
        return {
            i: Fault(
                Where(
                    (i,), "reset" if i in resetting else "step", episode_step=max(0, int(self._elapsed[block][i]) - 1)
                ),
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
            _note_nans(places, path, column, ids)
        if self._final:
            terminated, truncated = self._ends[block]
            ended = ids[terminated[ids] | truncated[ids]]
            for path, column in self._final:
                _note_nans(places, path, column, ended)
        return places

    def release(self) -> None:
        """Let go of the memory."""
        self._obs, self._final, self._reward, self._ends, self._elapsed, self._flat_obs = [], [], [], [], [], []
        self.is_suspect = self._is_suspect


def _runs(columns: Sequence[_Column]) -> list[_Column]:
    """Flat columns, merged where they are neighbours in memory with nothing but zeros in between.

    Zeros do not change whether a sum is NaN, and summing a hundred numbers takes no longer than summing a dozen.
    """
    runs: list[_Column] = []
    for column in columns:
        if runs and runs[-1].dtype == column.dtype:
            last = runs[-1]
            gap = column.ctypes.data - last.ctypes.data - last.nbytes
            if 0 <= gap < ALIGNMENT and gap % column.itemsize == 0:
                size = last.size + gap // column.itemsize + column.size
                runs[-1] = np.lib.stride_tricks.as_strided(last, (size,), writeable=False)
                continue
        runs.append(column)
    return runs


def _float_columns(rows: Rows, columns: Sequence[_Column | None]) -> list[tuple[str, _Column]]:
    """The columns that can hold NaN, with the paths of their leaves."""
    return [
        (leaf.path, column)
        for leaf, column in zip(rows.spec.observation.leaves, columns, strict=bool(columns))
        if column is not None and leaf.dtype.kind in "fc"
    ]


def _note_nans(places: dict[int, str], path: str, column: _Column, ids: npt.NDArray[np.intp]) -> None:
    """Add those of ``ids`` that have NaN in this column to ``places``, unless they are in there already."""
    bad = np.isnan(column[ids])
    if bad.any():
        for i in ids[bad.reshape(len(ids), -1).any(axis=1)].tolist():
            places.setdefault(i, f"{path}: NaN in {np.array2string(column[i], threshold=8)}")
