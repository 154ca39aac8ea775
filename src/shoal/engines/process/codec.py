"""Plain data as bytes: the form in which infos and object observations leave a worker.

Decoding builds None, booleans, numbers, strings, bytes, lists, tuples, dicts, sets, arrays and Gymnasium's graphs, and
nothing else: no class is looked up by name and no code runs, whatever the bytes are. Anything else is refused when
it is encoded, naming the path to it, unless the pool was made with ``allow_pickle=True``.
"""

from __future__ import annotations

import re
import struct
import sys
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import GraphInstance

from shoal.engines.base import Extra
from shoal.engines.process import shipping
from shoal.errors import ShoalError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_INT = struct.Struct("<q")
_MAX_DEPTH = 64
# The dtype names that the encoder writes. Numpy parses many more, and M8[s/0] would even divide by zero.
_DTYPE = re.compile(r"[<>|][biufcSU]\d{1,9}|[<>][mM]8(\[\d{0,9}[A-Za-z]+\])?")


class CodecError(ShoalError, ValueError):
    """Bytes that are not encoded data: truncated, of an unknown kind, or nested too deeply."""


def encode(value: Any, path: str = "info", *, allow_pickle: bool = False) -> bytes:
    """``value`` as bytes.

    Raises:
        SpecError: If part of it is not plain data; the message gives the path to it.
    """
    out = bytearray()
    _encode(out, value, path, allow_pickle, 0)
    return bytes(out)


def encode_extra(env_id: int, extra: Extra, *, allow_pickle: bool = False) -> bytes:
    """What goes with one row, as bytes for ``join``: only the env id and the info if there is nothing else."""
    parts: tuple[tuple[Any, str], ...] = ((env_id, "env id"), (extra.info, "info"))
    if extra.has_final or any(part is not None for part in (extra.objects, extra.final_info, extra.final_objects)):
        parts += (
            (extra.objects, "observation"),
            (extra.final_info, "final_info"),
            (extra.final_objects, "final_obs"),
            (extra.has_final, "has_final"),
        )
    out = bytearray(b"u" + _LENGTH.pack(len(parts)))
    for value, path in parts:
        _encode(out, value, path, allow_pickle, 0)
    return bytes(out)


def decode_extras(data: bytes, *, allow_pickle: bool = False) -> list[tuple[int, Extra]]:
    """The env ids and extras behind joined results of ``encode_extra``."""
    try:
        return [
            (env_id, Extra(info)) if not rest else (env_id, Extra(info, *_all_of(rest)))
            for env_id, info, *rest in decode(data, allow_pickle=allow_pickle)
        ]
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, CodecError) else CodecError(f"no extras: {error}") from error


def _all_of(rest: list[Any]) -> list[Any]:
    if len(rest) != 4:
        raise CodecError(f"no extras: {len(rest)} parts more than an info")
    return rest


def join(encoded: list[bytes]) -> bytes:
    """The encoding of a list, from the encodings of its items."""
    return b"".join((b"l", _LENGTH.pack(len(encoded)), *encoded))


def decode(data: bytes | memoryview, *, allow_pickle: bool = False) -> Any:
    """The value behind ``data``.

    Raises:
        CodecError: If the bytes are not something that ``encode`` made.
    """
    reader = _Reader(bytes(data), allow_pickle)
    try:
        value = reader.value(0)
    except CodecError:
        raise
    except (IndexError, struct.error) as error:
        raise CodecError("truncated data") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise CodecError(f"bad data: {error}") from error
    if reader.position != len(reader.data):
        raise CodecError(f"{len(reader.data) - reader.position} bytes too many")
    return value


def _encode(out: bytearray, value: Any, path: str, allow_pickle: bool, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise SpecError(f"{path}: nested more than {_MAX_DEPTH} levels deep")
    try:
        kind = value.__class__
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            scalar(out, value)
        elif kind in _SEQUENCES:
            items = tuple(value)  # a thread of the env may be adding to it
            out += _SEQUENCES[kind] + _LENGTH.pack(len(items))
            for i, item in enumerate(items):
                _encode(out, item, f"{path}[{i}]", allow_pickle, depth + 1)
        elif kind in _MAPPINGS:
            out += b"d" + _LENGTH.pack(len(value))
            for key, item in value.items():
                _encode(out, key, path, allow_pickle, depth + 1)
                _encode(out, item, f"{path}[{key!r}]", allow_pickle, depth + 1)
        elif isinstance(value, (np.ndarray, np.generic)) and _is_plain(value):
            out += b"g" if isinstance(value, np.generic) else b""
            _encode_array(out, np.asarray(value), path, allow_pickle, depth)
        elif kind is GraphInstance:
            out += b"G"
            _encode(out, tuple(value), path, allow_pickle, depth + 1)
        elif allow_pickle:
            _block(out, b"P", shipping.pickle_value(value, path))
        else:
            raise SpecError(
                f"{path}: {_what(value)} is not plain data, so it cannot leave the worker; "
                "leave it out, turn it into numbers, strings or arrays, or make the pool with make_vec or make_pool, "
                "and allow_pickle=True"
            )
    except ShoalError:
        raise
    # Dead references, dicts that a thread of the env changes meanwhile, more bytes than a length can express.
    except Exception as error:
        raise SpecError(f"{path}: cannot leave the worker ({type(error).__name__}: {error})") from error


def _is_plain(value: np.ndarray[Any, Any] | np.generic) -> bool:
    return value.dtype.kind in "?biufcSUmMO" and not isinstance(value, np.ma.MaskedArray)


def _what(value: Any) -> str:
    kind = type(value)
    what = f"{kind.__module__}.{kind.__qualname__}"
    return f"{what} of dtype {value.dtype}" if isinstance(value, (np.ndarray, np.generic)) else what


def _block(out: bytearray, tag: bytes, data: bytes | memoryview) -> None:
    out += tag + _LENGTH.pack(len(data))
    out += data


def _encode_int(out: bytearray, value: int) -> None:
    if -(2**63) <= value < 2**63:
        out += b"i" + _INT.pack(value)
    else:
        _block(out, b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _encode_array(out: bytearray, array: np.ndarray[Any, Any], path: str, allow_pickle: bool, depth: int) -> None:
    if array.dtype == object:
        out += b"o"
        _encode(out, array.shape, path, allow_pickle, depth + 1)
        _encode(out, array.ravel().tolist(), path, allow_pickle, depth + 1)
        return
    _block(out, b"a", array.dtype.str.encode())
    _encode(out, array.shape, path, allow_pickle, depth + 1)
    _block(out, b"b", np.ascontiguousarray(array).tobytes())


_SCALARS: dict[type, Callable[[bytearray, Any], None]] = {
    type(None): lambda out, value: out.extend(b"n"),
    bool: lambda out, value: out.extend(b"t" if value else b"f"),
    int: _encode_int,
    float: lambda out, value: out.extend(b"F" + _FLOAT.pack(value)),
    complex: lambda out, value: out.extend(b"c" + _FLOAT.pack(value.real) + _FLOAT.pack(value.imag)),
    str: lambda out, value: _block(out, b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda out, value: _block(out, b"b", value),
}
_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"u", set: b"S", frozenset: b"z"}
_MAPPINGS = frozenset({dict, OrderedDict, defaultdict})


class _Reader:
    """Walks over encoded bytes, trusting no length; its caller takes an ``IndexError`` to mean missing bytes."""

    __slots__ = ("allow_pickle", "data", "position")

    def __init__(self, data: bytes, allow_pickle: bool) -> None:
        self.data = data
        self.position = 0
        self.allow_pickle = allow_pickle

    def byte(self) -> int:
        at = self.position
        self.position = at + 1
        return self.data[at]

    def number(self, form: struct.Struct) -> Any:
        at = self.position
        self.position = at + form.size
        return form.unpack_from(self.data, at)[0]

    def block(self) -> bytes:
        start = self.position + 4
        self.position = end = start + _LENGTH.unpack_from(self.data, self.position)[0]
        if end > len(self.data):
            raise CodecError("truncated data")
        return self.data[start:end]

    def count(self) -> int:
        count: int = self.number(_LENGTH)
        if count > len(self.data) - self.position:  # every item takes at least one byte
            raise CodecError("truncated data")
        return count

    def items(self, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(self.count())]

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH + 1:
            raise CodecError("nested too deeply")
        at = self.position
        tag = self.data[at]
        self.position = at + 1
        decoder = _DECODERS.get(tag)
        if decoder is None:
            raise CodecError(f"unknown kind of data {bytes([tag])!r}")
        return decoder(self, depth)

    def array(self, depth: int) -> np.ndarray[Any, Any]:
        name = self.block().decode("ascii")
        if not _DTYPE.fullmatch(name):
            raise CodecError(f"an array of unknown dtype {name!r}")
        shape = self.value(depth + 1)
        if type(shape) is not tuple or any(type(side) is not int or side < 0 for side in shape):
            raise CodecError(f"an array of impossible shape {shape!r}")
        if self.byte() != ord("b"):
            raise CodecError("an array without its bytes")
        dtype, data = np.dtype(name), bytearray(self.block())
        # Numpy takes any 32 bits for a character, and fails only later, when it is read.
        if dtype.kind == "U" and data and np.frombuffer(data, f"{name[0]}u4").max() > sys.maxunicode:
            raise CodecError("an array of strings with characters that do not exist")
        return np.frombuffer(data, dtype).reshape(shape)

    def mapping(self, depth: int) -> dict[Any, Any]:
        return {self.value(depth + 1): self.value(depth + 1) for _ in range(self.count())}

    def scalar(self, depth: int) -> Any:
        if self.byte() != ord("a"):
            raise CodecError("a numpy scalar without its array")
        return self.array(depth)[()]

    def object_array(self, depth: int) -> np.ndarray[Any, Any]:
        shape, items = self.value(depth + 1), self.value(depth + 1)
        array = np.empty(len(items), object)
        array[:] = items
        return array.reshape(shape)

    def pickled(self, depth: int) -> Any:
        if not self.allow_pickle:
            raise CodecError("a pickle, though this pool takes plain data only")
        try:
            return shipping.unpickle_value(self.block())
        except (Exception, SystemExit) as error:
            raise CodecError(f"a pickle that cannot be loaded here ({type(error).__name__}: {error})") from error


_DECODERS: dict[int, Callable[[_Reader, int], Any]] = {
    ord("n"): lambda r, depth: None,
    ord("t"): lambda r, depth: True,
    ord("f"): lambda r, depth: False,
    ord("i"): lambda r, depth: r.number(_INT),
    ord("I"): lambda r, depth: int.from_bytes(r.block(), "little", signed=True),
    ord("F"): lambda r, depth: r.number(_FLOAT),
    ord("c"): lambda r, depth: complex(r.number(_FLOAT), r.number(_FLOAT)),
    ord("s"): lambda r, depth: r.block().decode("utf-8", "surrogatepass"),
    ord("b"): lambda r, depth: r.block(),
    ord("l"): lambda r, depth: r.items(depth),
    ord("u"): lambda r, depth: tuple(r.items(depth)),
    ord("S"): lambda r, depth: set(r.items(depth)),
    ord("z"): lambda r, depth: frozenset(r.items(depth)),
    ord("d"): _Reader.mapping,
    ord("a"): _Reader.array,
    ord("g"): _Reader.scalar,
    ord("o"): _Reader.object_array,
    ord("G"): lambda r, depth: GraphInstance(*r.value(depth + 1)),
    ord("P"): _Reader.pickled,
}
