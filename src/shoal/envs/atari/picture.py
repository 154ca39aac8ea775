"""From two screens of a game to one small picture: the brighter of each pair of pixels, averaged over areas.

A console draws some sprites only in every second frame, so the last two frames are overlaid. Each pixel of the picture
is the mean of the area of the screen that it covers. Sums are taken in single precision, first along lines and then
across them, which is OpenCV's order: the pictures are the same to the last bit, ties included. A picture that is larger
than the screen has OpenCV's weights too, but OpenCV rounds them, so that pixels may differ by 1.
"""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Array = np.ndarray[Any, Any]

UNKNOWN = 256  # brighter than every shade, so that it stands out
_SLIVER = 1e-3  # a share of a pixel that is too small to count


class Taps:
    """Which source pixels make up each target pixel along one axis, and with which weights.

    Args:
        source: How many pixels there are.
        target: How many there are to be.
        shares: The first source pixel of a target pixel, and the weights of this one and those that follow.

    Attributes:
        starts: The first source pixel of each target pixel.
        weights: The weights of that pixel and those that follow, float32; zero where there are fewer.
    """

    def __init__(self, source: int, target: int, shares: Callable[[int, int, int], tuple[int, list[float]]]) -> None:
        each = [shares(i, source, target) for i in range(target)]
        width = max(len(weights) for _, weights in each)
        self.starts = np.zeros(target, np.int64)
        self.weights = np.zeros((target, width), np.float32)
        for i, (start, weights) in enumerate(each):
            # At the end of the axis the zeros go in front, so that nothing beyond it is read.
            shift = max(0, start + width - source)
            self.starts[i] = start - shift
            self.weights[i, shift : shift + len(weights)] = weights


def taps_of(screen: tuple[int, int], picture: tuple[int, int], *, by_area: bool) -> tuple[Taps, Taps]:
    """Taps along a line and along a column.

    Args:
        screen: Lines and columns of the screen.
        picture: Height and width of the picture.
        by_area: Whether pixels are means of areas, or interpolated between their neighbours.
    """
    (lines, columns), (height, width) = screen, picture
    # OpenCV has no means of areas for a picture that is larger than the screen in just one direction either.
    is_larger = height > lines or width > columns
    shares = _line if not by_area else _stretch if is_larger else _area
    return Taps(columns, width, shares), Taps(lines, height, shares)


def _area(i: int, source: int, target: int) -> tuple[int, list[float]]:
    scale = source / target
    begin, end = i * scale, min((i + 1) * scale, source)
    covered = [(s, min(end, s + 1) - max(begin, s)) for s in range(int(begin), min(source, ceil(end)))]
    covered = [(s, share) for s, share in covered if share > _SLIVER]
    return covered[0][0], [share / (end - begin) for _, share in covered]


def _stretch(i: int, source: int, target: int) -> tuple[int, list[float]]:
    growth = target / source
    # As OpenCV rounds: where two pixels of the screen meet, a pixel may begin with the first and yet have none of the
    # second, because a share of almost 1 becomes 1 in single precision, and only what exceeds whole pixels counts.
    first = floor(i * (1.0 / growth))
    share = max(float(np.float32(i + 1 - (first + 1) * growth)), 0.0) % 1.0
    return (first, [1.0 - share, share]) if first < source - 1 else (source - 2, [0.0, 1.0])


def _line(i: int, source: int, target: int) -> tuple[int, list[float]]:
    centre = (i + 0.5) * source / target - 0.5
    first = min(max(floor(centre), 0), source - 2)
    share = min(max(centre - first, 0.0), 1.0)
    return first, [1.0 - share, share]


class PlainShrinker:
    """Makes pictures of screens.

    Args:
        lines: Lines of the screen.
        columns: Columns of the screen.
        across: Taps along a line.
        down: Taps along a column.
    """

    def __init__(self, lines: int, columns: int, across: Taps, down: Taps) -> None:
        self._across, self._down = across, down

    def shrink(self, first: Array, second: Array, shades: Array, out: Array) -> bool:
        """Overlay two screens and write the picture of them to ``out``.

        Args:
            first: One screen, as numbers of colours, ``uint8 [lines, columns]``.
            second: The other; the same again for a picture of one screen.
            shades: How bright each colour is, ``uint16 [256]``; ``UNKNOWN`` if that is not known yet.
            out: The picture, ``uint8 [height, width]``.

        Returns:
            Whether all colours are known; if not, ``out`` is not a picture.
        """
        screen = np.maximum(shades[first], shades[second])
        if screen.max() >= UNKNOWN:
            return False
        lines = _combine(screen.astype(np.float32).T, self._across).T
        np.rint(_combine(lines, self._down), out=out, casting="unsafe")
        return True

    def knows(self, screen: Array, shades: Array) -> bool:
        """Whether all colours of a screen are known."""
        return bool(shades[screen].max() < UNKNOWN)


def _combine(rows: Array, taps: Taps) -> Array:
    total = rows[taps.starts] * taps.weights[:, :1]
    for k in range(1, taps.weights.shape[1]):
        total += rows[taps.starts + k] * taps.weights[:, k : k + 1]
    return total
