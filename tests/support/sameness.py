"""What it means that data has come back as it was."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np


def is_same(one: Any, other: Any) -> bool:
    """Equal types, dtypes, shapes, orders and bits; NaN is the same as NaN, 0.0 is not the same as -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, complex):
        return is_same(one.real, other.real) and is_same(one.imag, other.imag)
    if isinstance(one, dict):
        return is_same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return is_same(one.tolist(), other.tolist()) if one.dtype == object else one.tobytes() == other.tobytes()
    return bool(one == other)
