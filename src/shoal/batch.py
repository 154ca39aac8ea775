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
_DTYPE_OF = {kind: np.dtype(kind) for kind in (float, bool, np.float64, np.float32, np.int64, np.int32)}


@dataclass(slots=True)
class Batch:
    """Results of one ``recv``, row by row. The arrays are the caller's, except for observations with ``copy=False``.

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

    Example:
        >>> import shoal
        >>> with shoal.make_pool("CartPole-v1", 2, engine="serial") as pool:
        ...     batch = pool.reset(seed=1)
        >>> batch.obs.shape, batch.env_id.tolist(), batch.first.tolist()
        ((2, 4), [0, 1], [True, True])
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
    """Infos of rows as one dict of arrays, in Gymnasium's form: ``key``, and a mask ``_key`` of the rows that have it.

    As in Gymnasium, the first value of a key decides the dtype of its array. If some value would not survive in that,
    the array gets a wider dtype or, where there is none, holds the values as objects.

    Example:
        >>> merge_infos(2, [(1, {"x": 0.5})])
        {'x': array([0. , 0.5]), '_x': array([False,  True])}
        >>> merge_infos(2, [(0, {"x": 1}), (1, {"x": "one"})])["x"]
        array([1, 'one'], dtype=object)
    """
    told = _by_key(rows, infos)
    everyone = [*range(rows)]
    merged: dict[str, Any] = {}
    for key, (ids, values) in told.items():
        is_complete = ids == everyone
        if isinstance(values[0], dict) and key != "final_obs" and all([isinstance(value, dict) for value in values]):
            merged[key] = merge_infos(rows, list(zip(ids, values, strict=True)))
        else:
            merged[key] = _column(rows, ids, values, is_complete=is_complete, as_objects=key == "final_obs")
        # If envs report a key of this name themselves, their values say more than a mask would.
        if f"_{key}" not in told:
            merged[f"_{key}"] = np.ones(rows, np.bool_) if is_complete else _mask(rows, ids)
    return merged


def _mask(rows: int, ids: list[int]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(rows, np.bool_)
    for row in ids:
        mask[row] = True
    return mask


def _by_key(rows: int, infos: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, tuple[list[int], list[Any]]]:
    """For each key, the rows that have it, and their values."""
    keys = infos[0][1].keys() if infos else ()
    if len(infos) == rows and all([info.keys() == keys for _, info in infos]):
        # All rows have the same keys, as is usual on a step.
        ids = [row for row, _ in infos]
        return {key: (ids, [info[key] for _, info in infos]) for key in keys}
    told: dict[str, tuple[list[int], list[Any]]] = {}
    for row, info in infos:
        for key, value in info.items():
            ids, values = told.setdefault(key, ([], []))
            ids.append(row)
            values.append(value)
    return told


def _column(rows: int, ids: list[int], values: list[Any], *, is_complete: bool, as_objects: bool) -> npt.NDArray[Any]:
    dtype = None if as_objects else _common_dtype(values)
    if is_complete and dtype is not None and dtype.kind != "O":
        return np.array(values, dtype)
    column = np.empty(rows, object) if dtype is None else np.zeros((rows, *getattr(values[0], "shape", ())), dtype)
    for row, value in zip(ids, values, strict=True):
        column[row] = value
    return column


def _common_dtype(values: list[Any]) -> np.dtype[Any] | None:
    """A dtype that keeps every value: that of the first if it can, else a wider one; None if only objects will do."""
    first = values[0]
    kinds = set(map(type, values))
    if len(kinds) == 1 and (dtype := _DTYPE_OF.get(type(first))) is not None:
        return dtype
    if type(first) not in (int, float, bool) and not isinstance(first, (np.number, np.ndarray)):
        return None
    if len(kinds) == 1 and isinstance(first, np.number) and all([value.dtype == first.dtype for value in values]):
        return first.dtype
    if kinds == {int} and (dtype := np.array(values).dtype).kind == "i":
        return dtype
    if not all(isinstance(value, (int, float, np.generic, np.ndarray)) for value in values):
        return None
    arrays = [np.asarray(value) for value in values]
    if any(array.shape != arrays[0].shape for array in arrays):
        return None
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1:
        (dtype,) = dtypes
        # An array of objects is the env's own choice; a number too large for any dtype is carried as an object.
        return None if dtype.kind == "O" and kinds != {np.ndarray} else dtype
    letters = {dtype.kind for dtype in dtypes}
    if not (letters <= set("biuf") or letters in ({"U"}, {"S"})):  # numbers widen to numbers, strings to strings
        return None
    candidates = (arrays[0].dtype, np.result_type(*dtypes))
    return next((dtype for dtype in candidates if all(_survives(array, dtype) for array in arrays)), None)


def _survives(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if array.dtype.kind == cast.dtype.kind == "f":
        return np.array_equal(cast.astype(array.dtype), array, equal_nan=True)
    # Python compares its numbers exactly. Numpy would first cast both sides to one dtype, in which a number that was
    # rounded, or has wrapped around, looks the same.
    return bool(cast.tolist() == array.tolist())
