"""What a pool hands back: one row per env that answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(slots=True)
class Batch:
    """Results of one ``recv``, row for row. The arrays belong to the caller.

    Attributes:
        obs: Observations, nested like the space; each leaf is an array with one row per env (object leaves: an
            object array).
        reward: float64.
        terminated: bool.
        truncated: bool.
        env_id: int32; whose rows these are.
        elapsed_step: int32; steps taken in the episode that the reward belongs to.
        first: bool; the observation is the first of an episode.
        infos: ``(row, info)`` for the rows whose env had something to say.
        finals: ``row -> (last observation, last info)`` for episodes that ended under ``same_step``.
        fields: Info fields that every row has, as arrays.
    """

    obs: Any
    reward: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    env_id: npt.NDArray[np.int32]
    elapsed_step: npt.NDArray[np.int32]
    first: npt.NDArray[np.bool_]
    infos: Sequence[tuple[int, dict[str, Any]]] = ()
    finals: Mapping[int, tuple[Any, dict[str, Any]]] = field(default_factory=dict)
    fields: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.env_id)


def merge_infos(rows: int, infos: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Infos of single rows as one dict of arrays, in Gymnasium's form: ``key`` and a mask ``_key`` of who has it.

    Example:
        >>> merge_infos(2, [(1, {"x": 0.5})])
        {'x': array([0. , 0.5]), '_x': array([False,  True])}
    """
    merged: dict[str, Any] = {}
    for row, info in infos:
        _merge(merged, row, info, rows)
    return merged


def _merge(merged: dict[str, Any], row: int, info: dict[str, Any], rows: int) -> None:
    for key, value in info.items():
        if key == "final_obs":
            column = merged.get(key)
            column = np.full(rows, None, object) if column is None else column
            column[row] = value
        elif isinstance(value, dict):
            column = merged.get(key, {})
            _merge(column, row, value, rows)
        else:
            column = merged[key] if key in merged else _column_for(value, rows)
            column[row] = value
        mask = merged.get(f"_{key}")
        mask = np.zeros(rows, np.bool_) if mask is None else mask
        mask[row] = True
        merged[key], merged[f"_{key}"] = column, mask


def _column_for(value: Any, rows: int) -> npt.NDArray[Any]:
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.zeros(rows, type(value))
    if isinstance(value, np.ndarray):
        return np.zeros((rows, *value.shape), value.dtype)
    return np.full(rows, None, object)
