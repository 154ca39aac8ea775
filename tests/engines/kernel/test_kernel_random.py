"""Compiled generators and numpy's give the same numbers and stop at the same place."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

numba = pytest.importorskip("numba")

from shoal.engines.kernel.loading import own_function  # noqa: E402
from shoal.engines.kernel.random import rng_at  # noqa: E402
from shoal.errors import ArgumentError  # noqa: E402
from shoal.seeding import WORDS, set_words, words_of  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

Draw = tuple[int, int, int, float, float]
KINDS = 9
INT64 = np.iinfo(np.int64)
# Around every border between numpy's methods; with three quarters of a power of two, one draw in four is refused.
SPANS = [1, 2, 13, 3 << 30, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 3 << 40, 2**63 - 1, 3 << 62, 2**64 - 1]
EDGE_SEEDS = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1]


def play(rng: Any, kinds: Any, ints: Any, floats: Any, whole: Any, real: Any) -> None:
    """What an author writes: it runs on a Generator, and compiled on an rng."""
    for k in range(len(kinds)):
        kind = kinds[k]
        if kind == 0:
            real[k] = rng.random()
        elif kind == 1:
            real[k] = rng.uniform(-floats[k, 1], floats[k, 0])
        elif kind == 2:
            whole[k] = rng.integers(13)
        elif kind == 3:
            whole[k] = rng.integers(ints[k, 0], ints[k, 1])
        elif kind == 4:
            real[k] = rng.standard_normal()
        elif kind == 5:
            real[k] = rng.normal(floats[k, 0], scale=floats[k, 1])
        elif kind == 6:
            whole[k] = rng.permutation(7)[0]
        elif kind == 7:
            rng.shuffle(whole[:k])
        else:
            real[k] = rng.uniform() + rng.normal() + rng.uniform(high=2)


play_compiled = numba.njit(play)


@numba.njit
def play_at(words: Any, i: int, kinds: Any, ints: Any, floats: Any, whole: Any, real: Any) -> None:
    play_compiled(rng_at(words[i]), kinds, ints, floats, whole, real)


@numba.njit
def integer_at(words: Any, low: int, high: int) -> int:
    return rng_at(words).integers(low, high)


@numba.njit
def float_at(words: Any, is_uniform: bool, left: float, right: float) -> float:
    rng = rng_at(words)
    return rng.uniform(left, right) if is_uniform else rng.normal(left, right)


def assert_same(generator: np.random.Generator, draws: list[Draw]) -> None:
    """Play on both sides, and leave the generator where it ended."""
    kinds = np.array([draw[0] for draw in draws])
    ints = np.array([draw[1:3] for draw in draws])
    floats = np.array([draw[3:] for draw in draws])
    expected = np.zeros(len(draws), np.int64), np.zeros(len(draws))
    found = np.zeros(len(draws), np.int64), np.zeros(len(draws))
    words = np.zeros((3, WORDS), np.uint64)
    words[1] = words_of(generator)
    play_at(words, 1, kinds, ints, floats, *found)
    play(generator, kinds, ints, floats, *expected)
    assert [column.tobytes() for column in found] == [column.tobytes() for column in expected]
    assert words.tolist() == [[0] * WORDS, words_of(generator).tolist(), [0] * WORDS]


@st.composite
def some_draw(draw: st.DrawFn) -> Draw:
    low = draw(st.sampled_from([INT64.min, -5, 0]) | st.integers(INT64.min, INT64.max - 1))
    span = draw(st.sampled_from(SPANS) | st.integers(1, 2**64 - 1))
    real = st.floats(0.0, 1e300)
    return draw(st.integers(0, KINDS - 1)), low, min(low + span, INT64.max), draw(real), draw(real)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**64 - 1), st.lists(some_draw(), min_size=1, max_size=30))
def test_any_draws_in_any_order_are_numpys(seed: int, draws: list[Draw]) -> None:
    assert_same(np.random.default_rng(seed), draws)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*EDGE_SEEDS, *range(2, 60)])
def test_long_mixed_sequences_are_numpys(seed: int) -> None:
    choose = np.random.default_rng([seed, 1])
    draws = []
    for kind in choose.integers(0, KINDS, 300).tolist():
        low, span = int(choose.integers(-(2**62), 0)), SPANS[choose.integers(len(SPANS))]
        draws.append((kind, low, min(low + span, INT64.max), choose.random(), choose.random()))
    assert_same(np.random.default_rng(seed), draws)


def test_the_tail_of_the_normal_distribution_is_numpys() -> None:
    number = 300_000  # 1 in 4,000 is from the tail
    kinds, ints, floats = np.full(number, 4), np.zeros((number, 2), np.int64), np.zeros((number, 2))
    whole, real = np.zeros(number, np.int64), np.zeros(number)
    generator = np.random.default_rng(5)
    words = words_of(generator)[np.newaxis]
    play_at(words, 0, kinds, ints, floats, whole, real)
    assert np.count_nonzero(np.abs(real) > 3.6542) > 50
    assert real.tobytes() == generator.standard_normal(number).tobytes()
    assert words[0].tolist() == words_of(generator).tolist()


@pytest.mark.parametrize("span", SPANS)
def test_integers_of_every_span_are_numpys(span: int) -> None:
    low = INT64.min if span > INT64.max else -3
    generator = np.random.default_rng(span)
    words = words_of(generator)
    for _ in range(50):
        assert integer_at(words, low, low + span) == generator.integers(low, low + span)
    assert words.tolist() == words_of(generator).tolist()


def test_all_of_int64_can_be_drawn() -> None:
    generator = np.random.default_rng(3)
    words = words_of(generator)
    for low in (INT64.min, INT64.min + 1, 0, INT64.max):
        assert integer_at(words, low, np.uint64(2**63)) == generator.integers(low, 2**63)
    assert words.tolist() == words_of(generator).tolist()


@pytest.mark.parametrize(("low", "high"), [(-1, 2**63 + 1), (0, 2**64 - 1), (2**63, 4), (2**64 - 1, 2**64 - 1)])
def test_what_is_no_int64_is_refused(low: int, high: int) -> None:
    bounds = [np.uint64(bound) if bound > INT64.max else bound for bound in (low, high)]
    with pytest.raises(ValueError, match="out of bounds for int64"):
        integer_at(words_of(np.random.default_rng(0)), *bounds)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (5, 3), (0, INT64.min), (INT64.max, INT64.min)])
def test_an_empty_range_is_refused_and_draws_nothing(low: int, high: int) -> None:
    words = words_of(np.random.default_rng(0))
    before = words.copy()
    with pytest.raises(ValueError, match="low >= high"):
        integer_at(words, low, high)
    with pytest.raises(ValueError, match=r"low >= high|high <= 0"):
        np.random.default_rng(0).integers(low, high)
    assert words.tolist() == before.tolist()


@pytest.mark.parametrize(
    ("is_uniform", "left", "right"),
    [
        (True, 1.0, 0.0),
        (True, 0.0, -0.0),
        (True, 0.0, np.inf),
        (True, np.nan, 1.0),
        (True, -1e308, 1e308),
        (False, 0.0, -1.0),
        (False, 0.0, -0.0),
    ],
)
def test_what_numpy_refuses_is_refused(is_uniform: bool, left: float, right: float) -> None:
    generator = np.random.default_rng(0)
    words = words_of(generator)
    with pytest.raises((ValueError, OverflowError)) as ours:
        float_at(words, is_uniform, left, right)
    with pytest.raises((ValueError, OverflowError)) as numpys:
        (generator.uniform if is_uniform else generator.normal)(left, right)
    assert (ours.type, str(ours.value)) == (numpys.type, str(numpys.value))
    assert words.tolist() == words_of(generator).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda words: rng_at(words).integers(2.5), "rng.integers: low: expected Integer, got float64"),
        (lambda words: rng_at(words).uniform(words, 1.0), "rng.uniform: low: expected Integer or Float, got array"),
        (lambda words: rng_at(words).shuffle(words.reshape(2, 3)), "rng.shuffle: x: expected a one-dimensional"),
        (lambda words: rng_at(words[::2]), "rng_at: expected a row of a C-contiguous uint64 array"),
    ],
    ids=["float", "array", "two-dimensional", "strided"],
)
def test_a_wrong_type_is_named_when_compiling(call: Any, message: str) -> None:
    with pytest.raises(numba.TypingError, match=message):
        numba.njit(call)(words_of(np.random.default_rng(0)))


def test_words_and_generators_turn_into_each_other() -> None:
    generator, other = np.random.default_rng(7), np.random.default_rng(8)
    for _ in range(4):  # with and without 32 bits left over
        generator.integers(10)
        words = words_of(generator)
        assert (words.dtype, words.shape) == (np.uint64, (WORDS,))
        set_words(other, words)
        assert other.bit_generator.state == generator.bit_generator.state
        assert [integer_at(words, 0, 10) for _ in range(5)] == other.integers(10, size=5).tolist()


def test_words_of_another_bit_generator_are_refused() -> None:
    with pytest.raises(ArgumentError, match="expected PCG64, got MT19937"):
        words_of(np.random.Generator(np.random.MT19937(0)))


def test_seeds_start_where_numpys_do() -> None:
    seeds = np.random.default_rng(0).integers(0, 2**64 - 1, 2000, dtype=np.uint64)
    seeds = np.concatenate([np.array(EDGE_SEEDS, np.uint64), np.arange(1000, dtype=np.uint64), seeds, seeds >> 33])
    out = np.full((len(seeds) + 1, WORDS), 99, np.uint64)
    own_function("seed_rows")(seeds.ctypes.data, out.ctypes.data, len(seeds))
    expected = [words_of(np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed))))) for seed in seeds]
    assert out[:-1].tolist() == np.array(expected).tolist()


SCRIPT = """
import numpy as np
from numba import njit
from shoal.engines.kernel.random import rng_at
from shoal.seeding import words_of

@njit(cache=True, fastmath=True)
def fill(words, out):
    rng = rng_at(words[0])
    for k in range(len(out)):
        out[k] = rng.uniform(-0.05, 0.06)

out = np.empty(200)
fill(words_of(np.random.default_rng(4))[np.newaxis], out)
print(sum(fill.stats.cache_hits.values()), *out.tolist())
"""


@pytest.mark.slow
def test_draws_are_cached_on_disk_and_exact_even_with_fastmath(tmp_path: Path) -> None:
    script = tmp_path / "draws.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> list[float]:
        command = [sys.executable, "-W", "error", str(script)]
        ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [float(word) for word in ended.stdout.split()]

    expected = np.random.default_rng(4).uniform(-0.05, 0.06, 200).tolist()
    assert run() == [0, *expected]
    assert run() == [1, *expected]
