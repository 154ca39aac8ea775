"""Numpy's random numbers inside compiled code: the same methods, the same bits, one generator per env.

    seed_words     seeds -> (N, 6) words          what Generator(PCG64(SeedSequence(seed))) starts with
    rng_at         one row of words -> rng        in compiled code; drawing moves the row along
    rng.random()   uniform, integers, standard_normal, normal, shuffle, permutation

An env keeps six words: the 128-bit state of PCG64 and its 128-bit increment, high half first, then the 32 bits
that are left over when an integer needs only half of a draw, and whether there are any.

The arithmetic is compiled without fastmath even when the caller has it: a fused multiply-add would change the
last bit. Integers are np.uint64 throughout, because numba turns a mix of uint64 and int64 into float64.
"""
# mypy: disable-error-code="no-any-return"
# (what numba has compiled is Any to mypy)

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, make_attribute_wrapper, models, overload_method, register_model
from numba.np.random._constants import fi_double, ki_double, wi_double, ziggurat_nor_inv_r, ziggurat_nor_r

if TYPE_CHECKING:
    from shoal.seeding import Words

_ZERO, _ONE, _BYTE = np.uint64(0), np.uint64(1), np.uint64(0xFF)
_LOW32, _LOW52, _LOW64 = np.uint64(2**32 - 1), np.uint64(2**52 - 1), np.uint64(2**64 - 1)
# PCG64's multiplier, and the constants of SeedSequence's hash.
_FACTOR_HIGH, _FACTOR_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_POOL_START, _POOL_FACTOR = np.uint64(0x43B0D7E5), np.uint64(0x931E8875)
_STATE_START, _STATE_FACTOR = np.uint64(0x8B51F9DD), np.uint64(0x58F38DED)
_MIX_LEFT, _MIX_RIGHT = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)

_WORDS_TYPE = types.Array(types.uint64, 1, "C")
# Without reference counting, for which there is no need here, code needs no numba where it is loaded.
_exact = njit(nogil=True, fastmath=False, error_model="numpy", _nrt=False)


class RngType(types.Type):
    """What ``rng`` is to numba: a reference to one env's words."""

    def __init__(self) -> None:
        super().__init__(name="Rng")


@register_model(RngType)
class _RngModel(models.StructModel):
    def __init__(self, manager: Any, frontend_type: Any) -> None:
        super().__init__(manager, frontend_type, [("words", _WORDS_TYPE)])


make_attribute_wrapper(RngType, "words", "words")


@intrinsic
def rng_at(_typing: Any, words: Any) -> Any:
    """The generator whose state is ``words``, a row of an (N, 6) uint64 array; for compiled code only.

    It does not keep the array alive: use it on arrays that were passed in from Python.
    """
    if words != _WORDS_TYPE:
        raise NumbaTypeError(f"rng_at: expected a row of a C-contiguous uint64 array, got {words}")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row = context.make_array(words)(context, builder, arguments[0])
        # Without an owner, nothing is counted. The count is atomic and shared by all rows: threads would fight for it.
        row.meminfo = cgutils.get_null_value(row.meminfo.type)
        rng = cgutils.create_struct_proxy(signature.return_type)(context, builder)
        rng.words = row._getvalue()
        return rng._getvalue()

    return RngType()(words), build


@intrinsic
def _product(_typing: Any, _left: Any, _right: Any) -> Any:
    """The high and the low half of the 128-bit product of two uint64: one instruction, which Python has no word for."""
    signature = types.UniTuple(types.uint64, 2)(types.uint64, types.uint64)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = arguments[0].type
        wide = type(narrow)(128)
        left, right = (builder.zext(argument, wide) for argument in arguments)
        product = builder.mul(left, right)
        high = builder.lshr(product, wide(64))
        return context.make_tuple(builder, signature.return_type, [builder.trunc(x, narrow) for x in (high, product)])

    return signature, build


@_exact
def _advance(words: Words) -> None:
    """One step of the 128-bit linear congruence."""
    high, low = _product(words[1], _FACTOR_LOW)
    high += words[0] * _FACTOR_LOW + words[1] * _FACTOR_HIGH + words[2]
    total = low + words[3]
    words[0] = high + np.uint64(total < low)
    words[1] = total


@_exact
def _bits64(words: Words) -> np.uint64:
    _advance(words)
    mixed = words[0] ^ words[1]
    turn = words[0] >> 58
    return mixed >> turn | mixed << (_ZERO - turn & np.uint64(63))


@_exact
def _bits32(words: Words) -> np.uint64:
    """The low half of a draw, and its high half the next time."""
    if words[5]:
        words[5] = _ZERO
        return words[4]
    drawn = _bits64(words)
    words[4] = drawn >> 32
    words[5] = _ONE
    return drawn & _LOW32


@_exact
def _up_to_32(words: Words, last: np.uint64) -> np.uint64:
    """Lemire's method: the high half of a product, drawn again where some results would come up too often."""
    count = last + _ONE
    scaled = _bits32(words) * count
    if scaled & _LOW32 < count:
        uneven = (_LOW32 - last) % count
        while scaled & _LOW32 < uneven:
            scaled = _bits32(words) * count
    return scaled >> 32


@_exact
def _up_to_64(words: Words, last: np.uint64) -> np.uint64:
    count = last + _ONE
    chosen, rest = _product(_bits64(words), count)
    if rest < count:
        uneven = (_LOW64 - last) % count
        while rest < uneven:
            chosen, rest = _product(_bits64(words), count)
    return chosen


@_exact
def _up_to(words: Words, last: np.uint64) -> np.uint64:
    """One of 0, 1, ..., ``last``. Which draw is used, and so what comes after, depends on ``last`` as in numpy."""
    if last == _ZERO:
        return _ZERO
    if last <= _LOW32:
        return _up_to_32(words, last)
    if last < _LOW64:
        return _up_to_64(words, last)
    return _bits64(words)


@_exact
def _integer(words: Words, low: Any, high: Any) -> np.int64:
    # Whatever the types are, the last number and its distance from the first are right modulo 2**64.
    first, last = np.int64(low), np.int64(np.uint64(high) - _ONE)
    if (low > 0 and first < 0) or (high > 0 and last < 0):
        raise ValueError("low or high is out of bounds for int64")
    if first > last or (high < 0 and last > 0):
        raise ValueError("low >= high")
    return np.int64(np.uint64(first) + _up_to(words, np.uint64(last) - np.uint64(first)))


@_exact
def _shuffle(words: Words, x: Any) -> None:
    """Swap each item with one up to it; here numpy does not scale a draw: it masks draws until one fits."""
    mask = _LOW32
    for i in range(len(x) - 1, 0, -1):
        last = np.uint64(i)
        while mask >> 1 >= last:
            mask >>= 1
        j = _bits32(words) & mask
        while j > last:
            j = _bits32(words) & mask
        x[i], x[j] = x[j], x[i]


@_exact
def _unit(words: Words) -> float:
    return np.float64(_bits64(words) >> 11) * 2.0**-53


@_exact
def _uniform(words: Words, low: float, high: float) -> float:
    width = high - low
    if not math.isfinite(width):
        raise OverflowError("high - low range exceeds valid bounds")
    if math.copysign(1.0, width) < 0.0:
        raise ValueError("high - low < 0")
    return low + width * _unit(words)


@_exact
def _normal_tail(words: Words) -> float:
    while True:
        beyond = -ziggurat_nor_inv_r * np.log1p(-_unit(words))
        height = -np.log1p(-_unit(words))
        if height + height > beyond * beyond:
            return ziggurat_nor_r + beyond


@_exact
def _standard_normal(words: Words) -> float:
    """The ziggurat: 8 bits choose a layer, 1 the sign, 52 the place in it; about 1 in 100 needs more than that."""
    while True:
        drawn = _bits64(words)
        layer = drawn & _BYTE
        place = drawn >> 9 & _LOW52
        x = np.float64(place) * wi_double[layer]
        if drawn >> 8 & _ONE:
            x = -x
        if place < ki_double[layer]:
            return x
        if layer == _ZERO:
            # The tail takes its sign from another bit than the layers do.
            tail = _normal_tail(words)
            return -tail if place >> 8 & _ONE else tail
        lower, upper = fi_double[layer], fi_double[layer - _ONE]
        if (upper - lower) * _unit(words) + lower < np.exp(-0.5 * x * x):
            return x


@_exact
def _normal(words: Words, loc: float, scale: float) -> float:
    if math.copysign(1.0, scale) < 0.0 and not math.isnan(scale):
        raise ValueError("scale < 0")
    return loc + scale * _standard_normal(words)


def _expect(method: str, *kinds: type, **arguments: Any) -> None:
    """Refuse other types at compile time; an argument that was left out is Omitted, or the default itself."""
    for name, given in arguments.items():
        if isinstance(given, types.Type) and not isinstance(given, (*kinds, types.Omitted)):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise NumbaTypeError(f"rng.{method}: {name}: expected {wanted}, got {given}")


# Numba wants the parameters of a method's two functions to be the same, annotations included.
@overload_method(RngType, "random")
def _random_method(rng: Any) -> Any:
    def draw(rng: Any) -> Any:
        return _unit(rng.words)

    return draw


@overload_method(RngType, "uniform")
def _uniform_method(rng: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
    _expect("uniform", types.Integer, types.Float, low=low, high=high)

    def draw(rng: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
        return _uniform(rng.words, np.float64(low), np.float64(high))

    return draw


@overload_method(RngType, "integers")
def _integers_method(rng: Any, low: Any, high: Any = None) -> Any:
    _expect("integers", types.Integer, low=low)
    _expect("integers", types.Integer, types.NoneType, high=high)

    def draw_below(rng: Any, low: Any, high: Any = None) -> Any:
        return _integer(rng.words, 0, low)

    def draw_between(rng: Any, low: Any, high: Any = None) -> Any:
        return _integer(rng.words, low, high)

    return draw_between if isinstance(high, types.Integer) else draw_below


@overload_method(RngType, "standard_normal")
def _standard_normal_method(rng: Any) -> Any:
    def draw(rng: Any) -> Any:
        return _standard_normal(rng.words)

    return draw


@overload_method(RngType, "normal")
def _normal_method(rng: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    _expect("normal", types.Integer, types.Float, loc=loc, scale=scale)

    def draw(rng: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
        return _normal(rng.words, np.float64(loc), np.float64(scale))

    return draw


@overload_method(RngType, "shuffle")
def _shuffle_method(rng: Any, x: Any) -> Any:
    _expect("shuffle", types.Array, x=x)
    # Items of other arrays are views, which do not survive a swap.
    if x.ndim != 1 or not isinstance(x.dtype, types.Number | types.Boolean):
        raise NumbaTypeError(f"rng.shuffle: x: expected a one-dimensional array of numbers, got {x}")

    def shuffle(rng: Any, x: Any) -> Any:
        _shuffle(rng.words, x)

    return shuffle


@overload_method(RngType, "permutation")
def _permutation_method(rng: Any, x: Any) -> Any:
    _expect("permutation", types.Integer, x=x)

    def permute(rng: Any, x: Any) -> Any:
        numbers = np.arange(np.int64(x))
        _shuffle(rng.words, numbers)
        return numbers

    return permute


@_exact
def _hashed(value: np.uint64, before: np.uint64, after: np.uint64) -> np.uint64:
    value = (value ^ before) * after & _LOW32
    return value ^ value >> 16


@_exact
def _fill_pool(pool: Words, seed: np.uint64) -> None:
    """SeedSequence's pool for an int: hash its 32-bit words, zeros after the last, and mix each into the others."""
    pool[0], pool[1], pool[2], pool[3] = seed & _LOW32, seed >> 32, _ZERO, _ZERO
    constant = _POOL_START
    for i in range(4):
        before, constant = constant, constant * _POOL_FACTOR & _LOW32
        pool[i] = _hashed(pool[i], before, constant)
    for source in range(4):
        for target in range(4):
            if source != target:
                before, constant = constant, constant * _POOL_FACTOR & _LOW32
                other = _hashed(pool[source], before, constant)
                mixed = _MIX_LEFT * pool[target] - _MIX_RIGHT * other & _LOW32
                pool[target] = mixed ^ mixed >> 16


@_exact
def _start(words: Words, pool: Words) -> None:
    """PCG64's first state: four words drawn from the pool, two for the state and two for the stream."""
    constant = _STATE_START
    for i in range(4):
        before, middle = constant, constant * _STATE_FACTOR & _LOW32
        constant = middle * _STATE_FACTOR & _LOW32
        low = _hashed(pool[2 * i % 4], before, middle)
        words[i] = low | _hashed(pool[2 * i % 4 + 1], middle, constant) << 32
    words[2] = words[2] << 1 | words[3] >> 63
    words[3] = words[3] << 1 | _ONE
    total = words[1] + words[3]
    words[0] += words[2] + np.uint64(total < words[1])
    words[1] = total
    words[4] = words[5] = _ZERO
    _advance(words)


@_exact
def seed_words(seeds: Words, out: Words, pool: Words) -> None:
    """Fill ``out`` (n, 6) with what ``Generator(PCG64(SeedSequence(seed)))`` starts with, for n uint64 seeds.

    ``pool`` is scratch space for four words.
    """
    for i in range(len(seeds)):
        _fill_pool(pool, seeds[i])
        _start(out[i], pool)
