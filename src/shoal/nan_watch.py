"""Looks for numbers that are none: NaN in observations, NaN and infinity in rewards.

A whole batch is judged first, and only one that fails is looked at row by row. A few numbers are judged by their sum,
which is NaN if one of them is; infinite observations of both signs fail too, and are found to be right. More than a few
are judged one by one, which takes numpy half a microsecond for a small pool, and the speed of memory for a large one.
The kernel engine finds them while it steps.

The dot product of a column with itself would be quicker and slow down everything else: its wide vector instructions
lower the clock of some processors for a while, by more than the whole check is worth.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.arrays import ALIGNMENT, has_true
from shoal.errors import SpecError, Where
from shoal.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shoal.arrays import Rows
    from shoal.engines.base import Engine

    _Column = np.ndarray[Any, Any]

POLICIES = ("raise", "truncate", "pass")
_FEW = 32


class NanWatch:
    """Finds rows with such numbers.

    Attributes:
        policy: What is to become of them.
        engine_tells: Whether the engine has looked already.
        found: How many rows there have been.
        is_suspect: Says whether some row of a block may have such a number.
    """

    def __init__(self, engine: Engine, policy: str) -> None:
        rows = engine.rows
        self.policy = policy
        self.found = 0
        self.engine_tells = engine.has_odd_rows is not None
        self.is_suspect: Callable[[int], bool] = engine.has_odd_rows or self._is_suspect
        blocks = range(rows.layout.blocks)
        leaves = _float_columns(rows, rows.obs)
        # Under ``same_step``, the last observation of an episode has no block: there is one per env.
        self._final = [(f"final {path}", column) for path, column in _float_columns(rows, rows.final)]
        self._obs = [[(path, column[block]) for path, column in leaves] for block in blocks]
        self._reward = [rows.reward[block] for block in blocks]
        self._ends = [(rows.terminated[block], rows.truncated[block]) for block in blocks]
        self._elapsed = [rows.elapsed[block] for block in blocks]
        flat = [[column.reshape(-1) for _, column in self._obs[block] + self._final] for block in blocks]
        # Where there are several blocks, what lies between two columns of one are rows of the others.
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
        """The faults of those among these envs that have such a number; none, if it may pass."""
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


def _runs(columns: Sequence[_Column]) -> list[_Column]:
    """Flat columns that are neighbours in memory, but for zeros in between, as one.

    The sum is NaN all the same, and that of a dozen numbers takes as long as that of a hundred.
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
    """Add the envs among ``ids`` that have NaN in this column, and are not there yet."""
    bad = np.isnan(column[ids])
    if bad.any():
        for i in ids[bad.reshape(len(ids), -1).any(axis=1)].tolist():
            places.setdefault(i, f"{path}: NaN in {np.array2string(column[i], threshold=8)}")
