"""What ``picture`` does, written to be compiled: the same pictures in a tenth of the time.

In most games, most lines are the same as the line above them. Checking that takes a fraction of the time that it takes
to look up the shades of a line and average them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from shoal.engines.kernel.intrinsics import array_at, data_of
from shoal.envs.atari.picture import UNKNOWN


def shrink(
    first_at: Any,
    second_at: Any,
    shades_at: Any,
    out_at: Any,
    x_starts_at: Any,
    x_weights_at: Any,
    y_starts_at: Any,
    y_weights_at: Any,
    notes_at: Any,
    places_at: Any,
    lines: int,
    columns: int,
    height: int,
    width: int,
    x_taps: int,
    y_taps: int,
) -> int:  # pragma: no cover
    """See ``picture.PlainShrinker.shrink``. The first four arguments are array objects.

    The notes have room for a line of the screen, for averaged lines, one more than there are taps, and for their sum.
    The places have an element for each line of the screen.
    """
    first, second = (
        array_at(data_of(first_at), (lines, columns), np.uint8),
        array_at(data_of(second_at), (lines, columns), np.uint8),
    )
    first_words = array_at(data_of(first_at), (lines, columns // 8), np.uint64)
    second_words = array_at(data_of(second_at), (lines, columns // 8), np.uint64)
    shades = array_at(data_of(shades_at), (256,), np.uint16)
    out = array_at(data_of(out_at), (height, width), np.uint8)
    x_starts, y_starts = array_at(x_starts_at, (width,), np.int64), array_at(y_starts_at, (height,), np.int64)
    x_weights = array_at(x_weights_at, (width, x_taps), np.float32)
    y_weights = array_at(y_weights_at, (height, y_taps), np.float32)
    line = array_at(notes_at, (columns,), np.float32)
    total = array_at(notes_at + np.uint64(4 * columns), (width,), np.float32)
    kept = array_at(notes_at + np.uint64(4 * (columns + width)), (y_taps + 1, width), np.float32)
    place_of = array_at(places_at, (lines,), np.int64)
    screens = (first, second, first_words, second_words)
    across, down, notes = (x_starts, x_weights), (y_starts, y_weights), (line, total, kept, place_of)
    return int(_shrink(screens, shades, across, down, notes, out))


@numba.njit(_nrt=False)
def _shrink(screens: Any, shades: Any, across: Any, down: Any, notes: Any, out: Any) -> Any:  # pragma: no cover
    first, second, first_words, second_words = screens
    (x_starts, x_weights), (y_starts, y_weights) = across, down
    # ``kept`` has averaged lines of the screen, and ``place_of`` says where each line's mean is: a line that repeats
    # another shares its mean. A line of the picture needs at most ``y_taps``, and the next may begin with its last one.
    line, total, kept, place_of = notes
    (height, width), columns = out.shape, first.shape[1]
    x_taps, y_taps = x_weights.shape[1], y_weights.shape[1]
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


def knows(screen_at: Any, shades_at: Any, lines: int, columns: int) -> int:  # pragma: no cover
    """See ``picture.PlainShrinker.knows``. The first two arguments are array objects."""
    screen = array_at(data_of(screen_at), (lines, columns), np.uint8)
    words = array_at(data_of(screen_at), (lines, columns // 8), np.uint64)
    shades = array_at(data_of(shades_at), (256,), np.uint16)
    brightest = np.uint16(0)
    for y in range(lines):
        if y == 0 or not _repeats(words, y):
            line = screen[y]
            for x in range(columns):
                brightest = max(brightest, shades[line[x]])
    return int(brightest < UNKNOWN)


@numba.njit(_nrt=False)
def _repeats(words: Any, y: int) -> Any:  # pragma: no cover
    """Whether a line, in words of eight pixels, is the same as the one above it."""
    line, above = words[y], words[y - 1]
    difference = np.uint64(0)
    for x in range(len(line)):
        difference |= line[x] ^ above[x]
    return difference == 0
