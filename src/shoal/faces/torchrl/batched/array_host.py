"""Envs in this thread that can be stepped without TensorDicts: one TensorDict per batch instead of several per env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.adapters.tensordict_env import ArrayEnv, Crossing, array_env_of
from shoal.errors import ActionError
from shoal.faces.torchrl.batched.hosts import InProcess
from shoal.faces.torchrl.batched.stacking import nested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDictBase

    Following = tuple[list[int], TensorDictBase | None]


class ArrayHost(InProcess):
    """Envs of one kind whose data is arrays.

    Args:
        envs: The envs.
        arrays: How to step each of them.
        crossing: Their inputs and outputs.
        device: Where data is wanted.
    """

    reads_resets = False

    def __init__(
        self, envs: Sequence[Any], arrays: Sequence[ArrayEnv], crossing: Crossing, device: torch.device | None
    ) -> None:
        super().__init__(envs, device, is_one_kind=True)
        self._arrays = list(arrays)
        self._in_fields = crossing.inputs.fields
        self._out_fields = crossing.outputs.fields
        self._only_at_step = crossing.only_at_step
        count = len(arrays)
        # Written by the envs, and copied out as a whole.
        self._columns = {f.key: np.zeros((count, *f.shape), f.numpy_dtype) for f in self._out_fields}
        self._rows = [{key: _row(column, i) for key, column in self._columns.items()} for i in range(count)]
        self._all_ids = list(range(count))

    def step(self, ids: Sequence[int], td: TensorDictBase) -> TensorDictBase:
        """Step some envs."""
        self._step_each(ids, td)
        return self._taken(ids, is_first=False)

    def step_and_maybe_reset(self, ids: Sequence[int], td: TensorDictBase) -> tuple[TensorDictBase, Following]:
        """Step some envs, and reset those that are done."""
        done = self._step_each(ids, td)
        following = self._taken(ids, is_first=False)
        if not done:
            return following, ([], None)
        over = [ids[place] for place in done]
        for i in over:
            self._arrays[i].reset_arrays(self._rows[i])
        return following, (done, self._taken(over, is_first=True))

    def _step_each(self, ids: Sequence[int], td: TensorDictBase) -> list[int]:
        """Step some envs; return the places of those that are done."""
        inputs = [(field.key, self._input(td, field, len(ids))) for field in self._in_fields]
        arrays, rows, done = self._arrays, self._rows, []
        if len(inputs) == 1:
            ((key, column),) = inputs
            for place, i in enumerate(ids):
                if arrays[i].step_arrays({key: column[place, ...]}, rows[i]):
                    done.append(place)
            return done
        for place, i in enumerate(ids):
            if arrays[i].step_arrays({key: _row(column, place) for key, column in inputs}, rows[i]):
                done.append(place)
        return done

    def _input(self, td: TensorDictBase, field: Any, count: int) -> np.ndarray[Any, Any]:
        value = td.get(field.key, None)
        if value is None:
            raise ActionError(f"step: {field.key!r} is missing; there are {list(td.keys())}")
        if value.shape != (count, *field.shape):
            raise ActionError(f"{field.key!r}: expected shape {(count, *field.shape)}, got {tuple(value.shape)}")
        if value.dtype is not field.dtype or value.device.type != "cpu":
            value = value.to("cpu", field.dtype)
        array: np.ndarray[Any, Any] = value.detach().numpy()
        return array if array.ndim > 1 else array.reshape(count, *field.shape)

    def reset(
        self, ids: Sequence[int], given: Sequence[TensorDictBase | None], kwargs: Sequence[dict[str, Any]]
    ) -> TensorDictBase:
        """Reset some envs."""
        if any(kwargs):
            return super().reset(ids, given, kwargs)
        for i in ids:
            self._arrays[i].reset_arrays(self._rows[i])
        return self._taken(ids, is_first=True)

    def _taken(self, ids: Sequence[int], *, is_first: bool) -> TensorDictBase:
        """Copies of some rows."""
        index = None if list(ids) == self._all_ids else np.asarray(ids)
        entries = {}
        for key, column in self._columns.items():
            if is_first and key in self._only_at_step:
                continue
            entries[key] = torch.from_numpy(column.copy() if index is None else column[index])
        return nested(entries, torch.Size([len(ids)]), self.device)


def _row(column: np.ndarray[Any, Any], place: int) -> np.ndarray[Any, Any]:
    """A view of one row, an array even where it is a single number."""
    return column[place, ...]


def array_host(envs: Sequence[Any], crossings: Sequence[Crossing], device: torch.device | None) -> ArrayHost | None:
    """A host that steps envs without TensorDicts; None if they do not all offer that, or are not of one kind."""
    if (device is not None and device.type != "cpu") or any(crossing is not crossings[0] for crossing in crossings):
        return None
    arrays = [array_env_of(env, crossings[0]) for env in envs]
    if any(array is None for array in arrays):
        return None
    return ArrayHost(envs, [array for array in arrays if array is not None], crossings[0], device)
