"""Sine and cosine of an angle at once, without a branch that depends on the angle.

The C library takes one of several paths depending on the size of the angle. In a loop over envs at all angles the
processor guesses the path wrong half of the time, which takes longer than the arithmetic. Here every angle takes the
same path: it is reduced to an eighth of a turn around zero, where both series are short, and signs and roles are put
right by multiplication. In plain Python and compiled, on any machine, the result is the same to the last bit; one
result in twenty differs from the C library's, in its last bit.
"""

from __future__ import annotations

import math

# A quarter of a turn in three parts. The first two have 33 bits, so that their multiples fit into a float up to _FAR.
_HEAD, _MIDDLE, _TAIL = 1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21
_QUARTERS_PER_RADIAN = 2 / math.pi
_FAR = 1e5

_S3, _S5, _S7, _S9, _S11, _S13, _S15 = ((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 8))
_C4, _C6, _C8, _C10, _C12, _C14, _C16 = ((-1) ** k / math.factorial(2 * k) for k in range(2, 9))


def sine_cosine(angle: float) -> tuple[float, float]:
    """The sine and the cosine of an angle in radians, for kernel envs and whoever else needs both.

    Example:
        >>> sine_cosine(0.0)
        (0.0, 1.0)
    """
    if not abs(angle) < _FAR:
        return math.sin(angle), math.cos(angle)
    quarters = math.floor(angle * _QUARTERS_PER_RADIAN + 0.5)
    near = angle - quarters * _HEAD
    middle = quarters * _MIDDLE
    x = near - middle
    lost = (near - x) - middle - quarters * _TAIL  # what x had no room for

    x2 = x * x
    x4 = x2 * x2
    x8 = x4 * x4
    half = 0.5 * x2
    rough = 1.0 - half

    series = (_S3 + x2 * _S5) + x4 * (_S7 + x2 * _S9) + x8 * ((_S11 + x2 * _S13) + x4 * _S15)
    sine = x + ((x * x2) * series + lost * rough)
    series = (_C4 + x2 * _C6) + x4 * (_C8 + x2 * _C10) + x8 * ((_C12 + x2 * _C14) + x4 * _C16)
    cosine = rough + (((1.0 - rough) - half) + (x4 * series - x * lost))

    odd = quarters & 1
    even = 1 - odd
    sign = 1 - (quarters & 2)
    return (sine * even + cosine * odd) * sign, (cosine * even - sine * odd) * sign
