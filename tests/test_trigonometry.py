"""``shoal.trigonometry``: as exact as the C library, and the same in plain Python and compiled."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.trigonometry import sine_cosine

ANGLES = np.concatenate(
    [np.random.default_rng(3).uniform(-reach, reach, 2000) for reach in (1e-300, 1e-9, 0.2, 1, 7, 100, 99_999, 1e9)]
    + [np.arange(-64, 65) * (math.pi / 8)]
)


def ulps_apart(a: float, b: float) -> float:
    return abs(a - b) / math.ulp(b)


@given(st.floats(-1e5, 1e5))
def test_it_is_within_two_last_bits_of_the_c_library(angle: float) -> None:
    sine, cosine = sine_cosine(angle)
    assert ulps_apart(sine, math.sin(angle)) <= 2
    assert ulps_apart(cosine, math.cos(angle)) <= 2


def test_most_results_are_those_of_the_c_library() -> None:
    theirs = [(math.sin(angle), math.cos(angle)) for angle in ANGLES]
    same = np.mean([sine_cosine(angle) == pair for angle, pair in zip(ANGLES, theirs, strict=True)])
    assert same > 0.9


@pytest.mark.parametrize("angle", [1e5, -1e5, 1e22, 5e300])
def test_far_angles_are_left_to_the_c_library(angle: float) -> None:
    assert sine_cosine(angle) == (math.sin(angle), math.cos(angle))


def test_nan_stays_nan() -> None:
    assert all(map(math.isnan, sine_cosine(math.nan)))


def test_compiled_it_gives_the_same_bits() -> None:
    numba = pytest.importorskip("numba")
    compiled = numba.njit(sine_cosine)
    assert all(compiled(angle) == sine_cosine(angle) for angle in ANGLES)
