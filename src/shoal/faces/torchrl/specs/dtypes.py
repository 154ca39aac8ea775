"""Dtypes and devices: torch's and numpy's names for the same thing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_NUMPY_DTYPES: dict[torch.dtype | None, Any] = {
    dtype: torch.empty((), dtype=dtype).numpy().dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
}
_TORCH_DTYPES = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}


def numpy_dtype(dtype: torch.dtype | None) -> Any:
    """The numpy dtype of a torch dtype; None if there is none (bfloat16)."""
    return _NUMPY_DTYPES.get(dtype)


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of a numpy dtype.

    Raises:
        TypeError: torch has no such dtype (strings, objects).
    """
    name = _TORCH_DTYPES.get(np.dtype(dtype))
    if name is None:
        raise TypeError(f"torch has no dtype for {np.dtype(dtype)}")
    return name


def as_device(device: torch.device | str | int | None) -> torch.device:
    """A device; torch's default where none is given."""
    return torch.get_default_device() if device is None else torch.device(device)


def as_dtype(dtype: torch.dtype | str | None, default: torch.dtype) -> torch.dtype:
    """A dtype from its name, or a default where none is given."""
    if isinstance(dtype, str):
        named: torch.dtype = getattr(torch, dtype)
        return named
    return default if dtype is None else dtype


def is_float(dtype: torch.dtype) -> bool:
    """Whether the elements are continuous: real or complex floats."""
    return bool(dtype.is_floating_point or dtype.is_complex)
