"""From two screens of a game to one small picture: the brighter of each pair of pixels, averaged over areas.

A console draws some sprites only in every second frame, so the last two frames are laid over one another. Each pixel
of the picture is the mean of the area of the screen that it covers. Sums are taken in single precision, first along
lines and then across them, which is OpenCV's order: the pictures are the same to the last bit, ties included.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

UNKNOWN = 256  # brighter than every shade, so that it shows
_SLIVER = 1e-3  # a share of a pixel that is too small to count


class Taps:
    """Which source pixels make up each target pixel along one axis, and with which weights.

    Attributes:
        starts: The first source pixel of each target pixel.
        weights: Those of it and of the pixels that follow, float32; zero where there are fewer.
    """

    def __init__(self, source: int, target: int, *, by_area: bool) -> None:
        shares = [_area(i, source, target) if by_area else _line(i, source, target) for i in range(target)]
        width = max(len(weights) for _, weights in shares)
        self.starts = np.zeros(target, np.int64)
        self.weights = np.zeros((target, width), np.float32)
        for i, (start, weights) in enumerate(shares):
            # At the end of the axis the zeros go in front: nobody may look beyond it.
            shift = max(0, start + width - source)
            self.starts[i] = start - shift
            self.weights[i, shift : shift + len(weights)] = weights


def _area(i: int, source: int, target: int) -> tuple[int, list[float]]:
    scale = source / target
    begin, end = i * scale, min((i + 1) * scale, source)
    covered = [(s, min(end, s + 1) - max(begin, s)) for s in range(int(begin), min(source, int(np.ceil(end))))]
    covered = [(s, share) for s, share in covered if share > _SLIVER]
    return covered[0][0], [share / (end - begin) for _, share in covered]


def _line(i: int, source: int, target: int) -> tuple[int, list[float]]:
    centre = (i + 0.5) * source / target - 0.5
    first = min(max(int(np.floor(centre)), 0), source - 2)
    share = min(max(centre - first, 0.0), 1.0)
    return first, [1.0 - share, share]


class PlainShrinker:
    """Makes pictures of screens.

    Args:
        lines: Of the screen.
        columns: Of the screen.
        across: Taps along a line.
        down: Taps along a column.
    """

    def __init__(self, lines: int, columns: int, across: Taps, down: Taps) -> None:
        self._across, self._down = across, down

    def shrink(self, first: Array, second: Array, shades: Array, out: Array) -> bool:
        """Lay two screens over one another and write the picture of them to ``out``.

        Args:
            first: One screen, as numbers of colours, ``uint8 [lines, columns]``.
            second: The other; the same again for a picture of one screen.
            shades: How bright each colour is, ``uint16 [256]``; ``UNKNOWN`` if nobody knows.
            out: ``uint8 [height, width]``.

        Returns:
            Whether all colours are known; else ``out`` is no picture.
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
