"""What ``picture`` does, compiled: the same pictures in a tenth of the time.

Most lines of most games show what the line above them shows. To see that takes a fraction of the time that it takes to
look up the shades of a line and to average them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from shoal.envs.atari.picture import UNKNOWN, Array, Taps


def shrink(first: Array, second: Array, shades: Array, across: Taps, down: Taps, out: Array) -> bool:
    """See ``picture.shrink_plain``."""
    return bool(_shrink(first, second, shades, across.starts, across.weights, down.starts, down.weights, out))


@numba.njit(nogil=True, cache=True)
def _shrink(
    first: Any, second: Any, shades: Any, x_starts: Any, x_weights: Any, y_starts: Any, y_weights: Any, out: Any
) -> Any:  # pragma: no cover
    height, width = out.shape
    lines, columns = first.shape
    x_taps, y_taps = x_weights.shape[1], y_weights.shape[1]
    first_words, second_words = first.view(np.uint64), second.view(np.uint64)
    line = np.empty(columns, np.float32)
    total = np.empty(width, np.float32)
    # Lines of the screen that have been averaged, and where each one's mean is: a line that repeats another has that
    # one's. A line of the picture needs at most so many, and the next may begin with its last.
    kept = np.empty((y_taps + 1, width), np.float32)
    place_of = np.empty(lines, np.int64)
    next_line, place = 0, y_taps
    brightest = np.uint16(0)
    for y in range(height):
        for k in range(y_taps):
            source = y_starts[y] + k
            while next_line <= source:
                if next_line == 0 or not (_repeats(first_words, next_line) and _repeats(second_words, next_line)):
                    place = (place + 1) % (y_taps + 1)
                    mean = kept[place]
                    above, below = first[next_line], second[next_line]
                    for x in range(columns):
                        shade = max(shades[above[x]], shades[below[x]])
                        brightest = max(brightest, shade)
                        line[x] = shade
                    for x in range(width):
                        start = x_starts[x]
                        value = line[start] * x_weights[x, 0]
                        for j in range(1, x_taps):
                            value += line[start + j] * x_weights[x, j]
                        mean[x] = value
                place_of[next_line] = place
                next_line += 1
            mean, weight = kept[place_of[source]], y_weights[y, k]
            if k == 0:
                for x in range(width):
                    total[x] = mean[x] * weight
            else:
                for x in range(width):
                    total[x] += mean[x] * weight
        shrunk = out[y]
        for x in range(width):
            shrunk[x] = np.uint8(np.rint(total[x]))
    return brightest < UNKNOWN


@numba.njit(nogil=True, cache=True)
def knows(screen: Any, shades: Any) -> Any:  # pragma: no cover
    """See ``picture.knows_plain``."""
    words = screen.view(np.uint64)
    brightest = np.uint16(0)
    for y in range(len(screen)):
        if y == 0 or not _repeats(words, y):
            line = screen[y]
            for x in range(len(line)):
                brightest = max(brightest, shades[line[x]])
    return brightest < UNKNOWN


@numba.njit(nogil=True, cache=True)
def _repeats(words: Any, y: int) -> Any:  # pragma: no cover
    """Whether a line, in words of eight pixels, is the same as the one above it."""
    line, above = words[y], words[y - 1]
    difference = np.uint64(0)
    for x in range(len(line)):
        difference |= line[x] ^ above[x]
    return difference == 0
