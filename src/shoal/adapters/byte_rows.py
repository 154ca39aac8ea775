"""Named tensors of fixed shapes and dtypes, one after another in a row of bytes.

A pool keeps one column per leaf of a space, and wants the same leaves from all its envs. Envs of TensorDicts have many
small leaves (a reward, three flags), dtypes that numpy does not know, and neighbours with other shapes. So all that
such an env returns is one leaf to the pool: a row of bytes, and the env's own ``ByteRow`` knows what is where.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.errors import ActionError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Key = str | tuple[str, ...]
ALIGNMENT = 16  # enough for the largest number there is, complex128
_NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}


@dataclass(frozen=True, slots=True)
class ByteField:
    """One tensor of a row: what it is, and which bytes belong to it.

    Attributes:
        key: Its key in the TensorDict.
        dtype: Its dtype.
        shape: Its shape, for one env.
        start: Its first byte.
        stop: The byte after its last one.
        numpy_dtype: Numpy's dtype for it; None if numpy has none.
        strides: Bytes from one number to the next along each dim.
    """

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    numpy_dtype: np.dtype[Any] | None
    strides: tuple[int, ...]

    @classmethod
    def at(cls, start: int, key: Key, dtype: torch.dtype, shape: Sequence[int]) -> ByteField:
        """The field of a tensor whose first byte is ``start``."""
        own = tuple(shape)
        strides = tuple(prod(own[dim + 1 :]) * dtype.itemsize for dim in range(len(own)))
        return cls(key, dtype, own, start, start + prod(own) * dtype.itemsize, _NUMPY_DTYPES.get(dtype), strides)

    def seen_in(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A view of this tensor in all rows; as bytes, if numpy has no such numbers."""
        if self.numpy_dtype is None:
            return rows[:, self.start : self.stop]
        # Made in one go rather than by a slice, a view and a reshape, which take four times as long.
        shape, strides = (len(rows), *self.shape), (rows.strides[0], *self.strides)
        return np.ndarray(shape, self.numpy_dtype, rows, self.start, strides)


class ByteRow:
    """Where each tensor of a row is.

    Args:
        leaves: Key, dtype and shape of each tensor, in order.
        header: Bytes in front of the first one.

    Attributes:
        fields: The tensors.
        size: Bytes in a row.

    Example:
        >>> row = ByteRow([("reward", torch.float32, (1,)), ("done", torch.bool, (1,))])
        >>> rows = row.pack([torch.tensor([[1.5], [2.5]]), torch.tensor([[True], [False]])], 2)
        >>> row.unpack(rows)
        [tensor([[1.5000],
                [2.5000]]), tensor([[ True],
                [False]])]
    """

    def __init__(self, leaves: Iterable[tuple[Key, torch.dtype, Sequence[int]]], header: int = 0) -> None:
        fields, place = [], _aligned(header)
        for key, dtype, shape in leaves:
            fields.append(ByteField.at(place, key, dtype, shape))
            place = _aligned(fields[-1].stop)
        self.fields = tuple(fields)
        self.size = max(place, ALIGNMENT)

    def pack(self, tensors: Sequence[torch.Tensor], rows: int, size: int | None = None) -> np.ndarray[Any, Any]:
        """Tensors of several envs as rows of ``size`` bytes.

        Raises:
            ActionError: If a tensor has another shape than its field, naming both.
        """
        packed = np.zeros((rows, size or self.size), np.uint8)
        for field, tensor in zip(self.fields, tensors, strict=True):
            if tensor.shape != (rows, *field.shape):
                raise ActionError(f"{field.key!r}: expected shape {(rows, *field.shape)}, got {tuple(tensor.shape)}")
            if tensor.numel():
                field.seen_in(packed)[...] = _as_array(tensor, field, rows)
        return packed

    def unpack(self, rows: np.ndarray[Any, Any]) -> list[torch.Tensor]:
        """The tensors of several envs from their rows; each has memory of its own."""
        rows = np.ascontiguousarray(rows)
        count = len(rows)
        tensors = []
        for field in self.fields:
            if field.start == field.stop or not count:  # there are no bytes to reinterpret
                tensors.append(torch.zeros((count, *field.shape), dtype=field.dtype))
                continue
            tensor = torch.from_numpy(field.seen_in(rows).copy())
            if field.numpy_dtype is None:
                tensor = tensor.view(field.dtype).reshape(count, *field.shape)
            tensors.append(tensor)
        return tensors


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT


def _as_array(tensor: torch.Tensor, field: ByteField, rows: int) -> np.ndarray[Any, Any]:
    """The numbers of a tensor as a numpy array, or their bytes, row by row."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is not field.dtype or not tensor.is_cpu:
        tensor = tensor.to("cpu", field.dtype)
    if tensor.is_conj() or tensor.is_neg():  # views that are still to be computed, which numpy cannot read
        tensor = tensor.resolve_conj().resolve_neg()
    if field.numpy_dtype is None:
        tensor = tensor.reshape(rows, -1).contiguous().view(torch.uint8)
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


class RowBuffer:
    """The memory of one row, with a view of each of its tensors, to be written to again and again.

    Args:
        row: Where each tensor is.
        memory: Bytes, at least as many as the row has.

    Attributes:
        bytes: The row.
        arrays: Views of its fields for numpy, by key; only those whose dtype numpy knows.
    """

    def __init__(self, row: ByteRow, memory: np.ndarray[Any, Any]) -> None:
        self._fields = row.fields
        self.bytes = memory
        tensor_of_bytes = torch.from_numpy(memory)
        self._tensors = [_view(tensor_of_bytes, field) for field in row.fields]
        self.arrays: dict[Key, np.ndarray[Any, Any]] = {
            field.key: tensor.numpy()
            for field, tensor in zip(row.fields, self._tensors, strict=True)
            if field.numpy_dtype is not None
        }

    def write(self, values: Sequence[Any]) -> None:
        """Write one tensor per field; None leaves zeros.

        Raises:
            SpecError: If a value is not a tensor of the field's shape, or of a dtype that can be cast to the field's.
        """
        for field, view, value in zip(self._fields, self._tensors, values, strict=True):
            if value is None:
                view.zero_()
                continue
            if not isinstance(value, torch.Tensor) or value.shape != field.shape:
                got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                raise SpecError(f"{field.key!r}: the spec says shape {field.shape}, and the env returned {got}")
            if value.dtype is not field.dtype and not torch.can_cast(value.dtype, field.dtype):
                raise SpecError(f"{field.key!r}: the spec says {field.dtype}, and the env returned {value.dtype}")
            view.copy_(value)


def tensors_in(row: np.ndarray[Any, Any], fields: Sequence[ByteField]) -> dict[Key, torch.Tensor]:
    """The tensors of one row, by key; they share its memory."""
    memory = torch.from_numpy(row)
    return {field.key: _view(memory, field) for field in fields}


def _view(memory: torch.Tensor, field: ByteField) -> torch.Tensor:
    if field.start == field.stop:
        return torch.zeros(field.shape, dtype=field.dtype)
    return memory[field.start : field.stop].view(field.dtype).reshape(field.shape)
