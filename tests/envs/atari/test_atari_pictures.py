"""Pictures of screens: means of areas, the same as OpenCV's, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")
from shoal.envs.atari.compiled import CompiledShrinker
from shoal.envs.atari.picture import UNKNOWN, Array, PlainShrinker, Taps, taps_of

LINES, COLUMNS = 210, 160
SHADES = np.random.default_rng(5).permutation(256).astype(np.uint16)


def screen(seed: int, grain: int) -> Array:
    """A screen of blocks, whose lines repeat one another as those of games do."""
    small = np.random.default_rng(seed).integers(0, 256, (LINES // grain + 1, COLUMNS // grain + 1), dtype=np.uint8)
    return np.ascontiguousarray(small.repeat(grain, 0).repeat(grain, 1)[:LINES, :COLUMNS])


def taps(height: int, width: int, *, by_area: bool = True) -> tuple[Taps, Taps]:
    return taps_of((LINES, COLUMNS), (height, width), by_area=by_area)


def shrink(first: Array, second: Array, shades: Array, across: Taps, down: Taps, out: Array) -> bool:
    return CompiledShrinker(LINES, COLUMNS, across, down).shrink(first, second, shades, out)


sizes = st.tuples(st.integers(1, 260), st.integers(1, 260))


@settings(deadline=None, max_examples=20, derandomize=True)
@given(size=sizes, seed=st.integers(0, 99), grain=st.integers(1, 9), by_area=st.booleans())
def test_compiled_or_not_the_picture_is_the_same(size: tuple[int, int], seed: int, grain: int, by_area: bool) -> None:
    first, second = screen(seed, grain), screen(seed + 1, grain)
    plain, compiled = np.zeros(size, np.uint8), np.ones(size, np.uint8)
    across, down = taps(*size, by_area=by_area)
    assert PlainShrinker(LINES, COLUMNS, across, down).shrink(first, second, SHADES, plain)
    assert shrink(first, second, SHADES, across, down, compiled)
    np.testing.assert_array_equal(plain, compiled)


@pytest.mark.parametrize("size", [(84, 84), (64, 64), (96, 84), (110, 160), (42, 50)])
@pytest.mark.parametrize("grain", [1, 4])
def test_means_of_areas_are_opencvs(size: tuple[int, int], grain: int) -> None:
    cv2 = pytest.importorskip("cv2")
    across, down = taps(*size)
    out = np.zeros(size, np.uint8)
    for seed in range(5):
        first, second = screen(seed, grain), screen(seed + 50, grain)
        assert shrink(first, second, SHADES, across, down, out)
        both = np.maximum(SHADES[first], SHADES[second]).astype(np.uint8)
        np.testing.assert_array_equal(out, cv2.resize(both, size[::-1], interpolation=cv2.INTER_AREA))


@pytest.mark.parametrize("size", [(300, 300), (211, 161), (420, 320), (250, 100), (100, 250), (210, 161)])
def test_pictures_larger_than_the_screen_are_opencvs_but_for_rounding(size: tuple[int, int]) -> None:
    cv2 = pytest.importorskip("cv2")
    first, out = screen(1, 3), np.zeros(size, np.uint8)
    assert shrink(first, first, SHADES, *taps(*size), out)
    theirs = cv2.resize(SHADES[first].astype(np.uint8), size[::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(out.astype(int) - theirs).max() <= 1


@settings(deadline=None, max_examples=10, derandomize=True)
@given(size=sizes, shade=st.integers(0, 255), by_area=st.booleans())
def test_a_blank_screen_gives_a_blank_picture(size: tuple[int, int], shade: int, by_area: bool) -> None:
    blank = np.full((LINES, COLUMNS), shade, np.uint8)
    out = np.zeros(size, np.uint8)
    assert shrink(blank, blank, SHADES, *taps(*size, by_area=by_area), out)
    assert (out == SHADES[shade]).all()


def test_in_its_own_size_the_picture_is_the_brighter_of_the_screens() -> None:
    first, second = screen(1, 3), screen(2, 3)
    out = np.zeros((LINES, COLUMNS), np.uint8)
    assert shrink(first, second, SHADES, *taps(LINES, COLUMNS), out)
    np.testing.assert_array_equal(out, np.maximum(SHADES[first], SHADES[second]))


@pytest.mark.parametrize("line", [0, 100, LINES - 1])
def test_a_colour_that_nobody_knows_is_noticed(line: int) -> None:
    shades = SHADES.copy()
    shades[77] = UNKNOWN
    good, bad = np.zeros((LINES, COLUMNS), np.uint8), np.zeros((LINES, COLUMNS), np.uint8)
    bad[line, 50] = 77
    out = np.zeros((84, 84), np.uint8)
    for kind in (CompiledShrinker, PlainShrinker):
        shrinker = kind(LINES, COLUMNS, *taps(84, 84))
        assert shrinker.knows(good, shades)
        assert not shrinker.knows(bad, shades)
        assert shrinker.shrink(good, good, shades, out)
        assert not shrinker.shrink(good, bad, shades, out)
        assert not shrinker.shrink(bad, good, shades, out)
