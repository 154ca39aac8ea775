"""How close a value is to right, as a number from 0 to 1: the functions that dm_control's tasks use, on arrays."""

from __future__ import annotations

from math import inf, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shoal.native import Array

_AT_MARGIN = 0.1
_STEEPNESS = sqrt(-2 * log(_AT_MARGIN))
_LENGTH = sqrt(1 / _AT_MARGIN - 1)


def within(values: Array, low: float, high: float = inf) -> Array:
    """1 inside the bounds, inclusive, and 0 outside."""
    inside: Array = ((low <= values) & (values <= high)).astype(np.float64)
    return inside


def bell(values: Array, low: float = 0.0, high: float = 0.0, margin: float = 1.0) -> Array:
    """1 inside the bounds; outside, half a bell curve that is down to a tenth at the margin."""
    height: Array = np.exp(-0.5 * (_distance(values, low, high, margin) * _STEEPNESS) ** 2)
    return height


def slope(values: Array, low: float, margin: float, at_margin: float = 0.0) -> Array:
    """1 from ``low`` on; below it a straight line that is down to ``at_margin`` at the margin, and never below 0."""
    fall = _distance(values, low, inf, margin) * (1 - at_margin)
    height: Array = np.where(fall < 1, 1 - fall, 0.0)
    return height


def long_tail(values: Array, high: float, margin: float) -> Array:
    """1 from 0 to ``high``; beyond it a curve that is down to a tenth at the margin and then falls slowly."""
    height: Array = 1 / ((_distance(values, 0.0, high, margin) * _LENGTH) ** 2 + 1)
    return height


def small(values: Array) -> Array:
    """1 at 0, falling along a parabola to 0 at 1 and -1."""
    height: Array = np.where(np.abs(values) < 1, 1 - values**2, 0.0)
    return height


def _distance(values: Array, low: float, high: float, margin: float) -> Array:
    """The distance beyond the nearer bound, in margins."""
    beyond: Array = np.maximum(np.maximum(low - values, values - high), 0.0) / margin
    return beyond
