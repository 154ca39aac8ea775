"""The codec carries plain data exactly, refuses the rest by name, and survives any bytes."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import asdict
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sameness import is_same

from shoal.engines.base import Extra
from shoal.engines.process import codec
from shoal.engines.process.codec import CodecError, decode, decode_extras, encode, encode_extra, join
from shoal.errors import SpecError

bounded = settings(deadline=None, max_examples=150)

# ---------------------------------------------------------------------- plain data, and what it means to be the same

dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.byte_string_dtypes(max_len=4),
    hnp.unicode_string_dtypes(max_len=4),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
numpy_scalars = hnp.arrays(dtypes, ()).map(lambda array: array[()])
hashables = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5)
)
any_text = st.text(st.characters(codec=None), max_size=5)  # lone surrogates included
leaves = st.one_of(
    hashables, st.floats(), st.complex_numbers(), st.integers(-(2**300), 2**300), any_text, arrays, numpy_scalars
)


def object_array(items: list[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    return array


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, max_size=3)
    return st.one_of(
        few,
        few.map(tuple),
        st.dictionaries(hashables | st.tuples(hashables, hashables), inner, max_size=3),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        few.map(object_array),
        st.builds(GraphInstance, inner, inner, inner),
    )


plain_data = st.recursive(leaves, containers, max_leaves=8)


# ---------------------------------------------------------------------- there and back


@bounded
@given(plain_data)
@example(float("nan"))
@example(-0.0)
@example([2**63, -(2**63) - 1, 10**1000])
@example(np.str_(""))
@example(np.zeros((0, 3), np.uint8))
@example(np.array(7, dtype=">i2"))
@example(np.array([[1, 2], [3, 4]], order="F"))
@example(np.arange(10)[::-3])
@example(object_array([[1, 2], [3, 4]]))
@example(object_array([np.ones(2), np.ones(2)]))
@example(object_array([None, "a", {"b": [1]}, 2]).reshape(2, 2))
@example({True: 1, "x": {(1, "a"): frozenset({None})}})
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert is_same(decode(encode(value)), value)


def test_arrays_come_back_writable_and_independent() -> None:
    array = np.arange(4)
    data = encode(array)
    first, second = decode(data), decode(data)
    first[:] = -1
    np.testing.assert_array_equal(second, array)


@pytest.mark.parametrize("value", [OrderedDict(b=1, a=2), defaultdict(list, a=[1])], ids=["OrderedDict", "defaultdict"])
def test_other_dicts_arrive_as_dicts(value: dict[str, Any]) -> None:
    assert is_same(decode(encode(value)), dict(value))


@bounded
@given(
    st.lists(
        st.tuples(
            st.integers(0, 100),
            st.builds(
                Extra,
                info=st.none() | st.dictionaries(st.text(max_size=3), leaves, max_size=2),
                objects=st.none() | st.lists(leaves, max_size=2),
                final_info=st.none() | st.dictionaries(st.text(max_size=3), leaves, max_size=2),
                final_objects=st.none() | st.lists(leaves, max_size=2),
                has_final=st.booleans(),
            ),
        ),
        max_size=3,
    )
)
def test_extras_of_several_rows_travel_together(extras: list[tuple[int, Extra]]) -> None:
    data = join([encode_extra(env_id, extra) for env_id, extra in extras])
    received = decode_extras(data)
    assert is_same([(i, asdict(extra)) for i, extra in received], [(i, asdict(extra)) for i, extra in extras])


# ---------------------------------------------------------------------- what is refused

Point = namedtuple("Point", "x y")


class Color(IntEnum):
    RED = 1


class Word(str):
    __slots__ = ()


NOT_PLAIN: dict[str, Any] = {
    "an object": object(),
    "a function": len,
    "a class": int,
    "a fraction": Fraction(1, 2),
    "a named tuple": Point(1, 2),
    "an enum": Color.RED,
    "a subclass of str": Word("a"),
    "a generator": (i for i in ()),
    "a record": np.zeros(2, [("a", "i4")]),
    "a masked array": np.ma.array([1, 2], mask=[False, True]),
}


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_data_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(SpecError, match=r"info\['a'\]\[1\]\['b'\]: "):
        encode({"a": [0, {"b": value}]})


def test_a_key_that_is_not_plain_data_is_refused_with_its_path() -> None:
    with pytest.raises(SpecError, match=r"info\['a'\]: .*Fraction"):
        encode({"a": {Fraction(1, 2): 0}})


def test_extras_name_the_part_that_is_at_fault() -> None:
    with pytest.raises(SpecError, match=r"final_info\['x'\]"):
        encode_extra(0, Extra(info={"x": 1}, final_info={"x": object()}))


def test_data_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SpecError, match="nested"):
        encode(endless)


def test_deep_nesting_is_carried_up_to_a_limit() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value]
    assert decode(encode(value)) == value
    for _ in range(60):
        value = [value]
    with pytest.raises(SpecError, match="nested"):
        encode(value)


# ---------------------------------------------------------------------- bytes of unknown origin


def decode_or_refuse(data: bytes) -> None:
    """Anything but a value or a CodecError fails the test."""
    with contextlib.suppress(CodecError):
        decode(data)


@settings(bounded, max_examples=400)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_data(data: bytes) -> None:
    decode_or_refuse(data)


@pytest.mark.slow
@settings(bounded, max_examples=400)
@given(plain_data, st.data())
def test_damaged_data_is_refused_or_is_other_data(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    places = st.integers(0, len(encoded) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        encoded[place] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(encoded))


@bounded
@given(plain_data, st.data())
def test_truncated_data_is_refused(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CodecError):
        decode(encoded[:cut])


@given(plain_data, st.binary(min_size=1, max_size=5))
@bounded
def test_bytes_too_many_are_refused(value: Any, more: bytes) -> None:
    with pytest.raises(CodecError, match="too many"):
        decode(encode(value) + more)


@bounded
@given(st.binary(max_size=100))
def test_bytes_that_are_no_extras_are_refused(data: bytes) -> None:
    with contextlib.suppress(CodecError):
        decode_extras(data)


@pytest.mark.parametrize(
    "data",
    [
        b"l\xff\xff\xff\xff",
        b"d\xff\xff\xff\xff",
        b"s\xff\xff\xff\xff",
        b"I\xff\xff\xff\xff",
        b"S\x01\x00\x00\x00l\x00\x00\x00\x00",  # a set of a list
        b"d\x01\x00\x00\x00l\x00\x00\x00\x00n",  # a dict with a list as a key
        b"s\x01\x00\x00\x00\xff",  # no utf-8
        b"l\x01\x00\x00\x00" * 500 + b"n",
        b"Gn",
        b"gn",
        b"onn",
        b"?",
        b"",
    ],
    ids=repr,
)
def test_malformed_data_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data)


def array_data(dtype: str, shape: tuple[int, ...] = (), content: bytes = bytes(8)) -> bytes:
    """An encoded array with a dtype that no encoder would write."""
    name = dtype.encode()
    return b"".join(
        (b"a", struct.pack("<I", len(name)), name, encode(shape), b"b", struct.pack("<I", len(content)), content)
    )


def test_an_array_written_by_hand_is_read() -> None:
    assert is_same(decode(array_data("<f8", (1,))), np.zeros(1))


@pytest.mark.parametrize(
    "dtype", ["O", "|O8", "no such thing", "i4,,i4", "i4,(", "(1,", "{'names'", "f8,O", "a8", "V8", "f4,f4", "T", "é"]
)
def test_a_strange_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(CodecError):
        decode(array_data(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["M8[s/0]", "m8[ms/0]", "<M8[0s]"])
def test_no_dtype_can_end_the_process(dtype: str) -> None:
    """Numpy divides by a number that is part of a datetime's dtype: in a process of its own, since that one may die."""
    script = f"""
from shoal.engines.process.codec import CodecError, decode
try:
    decode({array_data(dtype)!r})
except CodecError:
    pass
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"exit code {ended.returncode}: {ended.stderr}"


@pytest.mark.parametrize("shape", [(-1,), (2,), (2**70,), (3, 3), (-5,), (2**40, 2**40)], ids=repr)
def test_a_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CodecError):
        decode(array_data("<f8", shape))


# ---------------------------------------------------------------------- pickles


class Trap:
    """Unpickling it would be noticed."""

    sprung: list[str] = []

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> str:
    Trap.sprung.append("sprung")
    return "sprung"


def test_pickles_cross_only_where_both_sides_allow_it() -> None:
    Trap.sprung.clear()
    with pytest.raises(SpecError, match="allow_pickle"):
        encode([Trap()])
    data = encode([Trap()], allow_pickle=True)
    with pytest.raises(CodecError, match="pickle"):
        decode(data)
    assert Trap.sprung == []
    assert decode(data, allow_pickle=True) == ["sprung"]


@pytest.mark.parametrize("is_scalar", [False, True])
def test_numbers_with_names_cross_as_pickles_only(is_scalar: bool) -> None:
    array = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
    value = array[1] if is_scalar else array
    with pytest.raises(SpecError, match=r"info\['x'\]: numpy.* of dtype \[\('a', .* allow_pickle=True"):
        encode({"x": value})
    decoded = decode(encode({"x": value}, allow_pickle=True), allow_pickle=True)["x"]
    assert type(decoded) is type(value)
    assert (decoded == value).all()


def test_what_cannot_be_pickled_either_is_refused_with_its_path() -> None:
    with pytest.raises(Exception, match=r"info\['x'\]") as caught:
        encode({"x": (i for i in ())}, allow_pickle=True)
    assert caught.type.__module__ == "shoal.errors"


def test_more_bytes_than_a_length_can_tell_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_LENGTH", struct.Struct("<B"))  # the real limit is 4 GiB
    with pytest.raises(SpecError, match=r"info\['blob'\]: cannot leave the worker"):
        encode({"blob": bytes(256)})


@pytest.mark.parametrize("num_parts", [0, 5, 7, 8])
def test_extras_have_all_their_parts_and_no_more(num_parts: int) -> None:
    with pytest.raises(CodecError, match="no extras"):
        decode_extras(encode([(0, None, None, None, None, False, 7, True)[:num_parts]]))
