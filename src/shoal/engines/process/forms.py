"""Infos that look alike, in shared memory: the numbers without the names.

    first info of a form    through the socket, and after it the form: names, types, and a number for them
    every other one         its values in the env's slip, a few bytes of shared memory, and the number in ``told``

Most envs report the same things on every step, or at the end of every episode, and a message takes ten times as long as
the numbers in it. What has no form (texts, lists, dicts, more than fits a slip) goes through the socket every time.
"""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.base import Extra
from shoal.engines.process.wire import FrameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.engines.process.control import Control

SLIP_BYTES = 256
_MOST_FORMS = 255  # a form's number is one byte, and 0 means that there is none
_PLAIN = {bool: "?", int: "q", float: "d"}
_SCALAR = "scalar "
_DTYPES = {
    dtype.name: dtype for dtype in map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"))
}
# A name; then how the value is packed, or the dtype and shape of a numpy array or scalar.
Item = tuple[str, str, "tuple[int, ...] | None"]


class FormError(ValueError):
    """Something that should have been a form is not one."""


class Form:
    """What infos of one kind have in common.

    Args:
        info: What is in the info of a row.
        final_info: What is in the info of the episode that ended with the row; None if none did.

    Raises:
        FormError: If that does not fit a slip.
    """

    def __init__(self, info: tuple[Item, ...], final_info: tuple[Item, ...] | None = None) -> None:
        items = info + (final_info or ())
        self._info, self._final_info = info, final_info
        self._names = [name for name, _, _ in info]
        self._final_names = [name for name, _, _ in final_info or ()]
        self._packing = struct.Struct("=" + "".join(_packed_as(item) for item in items))
        if self._packing.size > SLIP_BYTES:
            raise FormError(f"{self._packing.size} bytes do not fit a slip")
        self._numpys = [
            (i, _dtype(code), shape, _reader(code, shape))
            for i, (_, code, shape) in enumerate(items)
            if shape is not None
        ]

    @classmethod
    def of(cls, extra: Extra) -> Form:
        """The form of what goes with a row.

        Raises:
            FormError: If it has none.
        """
        if extra.objects is not None or extra.is_answer:
            raise FormError("more than an info")
        final = tuple(_items((extra.final_info or {}).items())) if extra.has_final else None
        return cls(tuple(_items((extra.info or {}).items())), final)

    def put(self, slips: memoryview, offset: int, extra: Extra) -> bool:
        """Write the values if they have this form: arrays may have another shape, and ints too many digits."""
        values = [*extra.info.values()] if extra.info else []
        if extra.final_info:
            values += extra.final_info.values()
        for i, dtype, shape, _ in self._numpys:
            array = values[i]
            if array.dtype != dtype or array.shape != shape:
                return False
            values[i] = array.tobytes()
        try:
            self._packing.pack_into(slips, offset, *values)
        except struct.error:
            return False
        return True

    def read(self, slips: memoryview, offset: int) -> Extra:
        """What ``put`` was given."""
        values = [*self._packing.unpack_from(slips, offset)]
        for i, _, _, value_of in self._numpys:
            values[i] = value_of(values[i])
        info = dict(zip(self._names, values, strict=False))  # the final info's values come after these
        if self._final_info is None:
            return Extra(info)
        final = dict(zip(self._final_names, values[len(info) :], strict=True))
        return Extra(info or None, final_info=final or None, has_final=True)

    def described(self) -> Any:
        """The form as plain data."""
        return self._info, self._final_info

    @classmethod
    def from_description(cls, data: Any) -> Form:
        """The form behind ``described``.

        Raises:
            FormError: If the data describe none.
        """
        try:
            info, final_info = data
            return cls(_checked(info), None if final_info is None else _checked(final_info))
        except (TypeError, ValueError, struct.error) as error:
            raise FormError(f"no form: {error}") from error


class FormWriter:
    """The worker's side, for one lane.

    Attributes:
        news: Forms that the pool has yet to hear about, with their numbers.
    """

    def __init__(self, control: Control) -> None:
        self._told, self._slips = control.told, control.slips
        self._forms: dict[Any, tuple[int, Form | None]] = {}
        self._count = 0
        self.written: set[int] = set()
        self.news: list[tuple[int, Form]] = []

    def put(self, env_id: int, extra: Extra) -> bool:
        """Leave an extra in the env's slip, if the pool knows its form."""
        try:
            look = _look_of(extra)
            number, form = self._forms.get(look, (0, None))
            if form is None and look not in self._forms and len(self._forms) < _MOST_FORMS:
                self._forms[look] = self._learn(extra)
        except Exception:  # unhashable keys, dicts that change meanwhile: the encoder will say what is wrong
            return False
        if form is None or not form.put(self._slips, env_id * SLIP_BYTES, extra):
            return False
        self._told[env_id] = number
        self.written.add(env_id)
        return True

    def wipe(self, env_id: int) -> None:
        """Empty an env's slip before its next command: what was in it has been read."""
        if self._told[env_id]:
            self._told[env_id] = 0
            self.written.discard(env_id)

    def wipe_all(self) -> None:
        """Empty the slips of all envs of the lane."""
        for env_id in self.written:
            self._told[env_id] = 0
        self.written.clear()

    def _learn(self, extra: Extra) -> tuple[int, Form | None]:
        try:
            form = Form.of(extra)
        except FormError:
            return 0, None
        self._count += 1
        self.news.append((self._count, form))
        return self._count, form


class FormReader:
    """The pool's side, for all lanes."""

    def __init__(self, control: Control, lanes: int) -> None:
        self._told, self._slips = control.told, control.slips
        self._silence = bytes(len(control.told))
        self._forms: list[dict[int, Form]] = [{} for _ in range(lanes)]

    def learn(self, lane: int, number: Any, form: Form) -> None:
        """Remember a form under its number.

        Raises:
            FrameError: If that is not a valid number.
        """
        if type(number) is not int or not 0 < number <= _MOST_FORMS:
            raise FrameError(0, f"a form with the number {number!r}")
        self._forms[lane][number] = form

    def forget(self, lane: int) -> None:
        """Forget the forms of a lane, which begins anew with forms of its own."""
        self._forms[lane] = {}

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to read for any env."""
        return self._told.tobytes() == self._silence

    def read(self, lane: int, ids: Iterable[int]) -> list[tuple[int, Extra]]:
        """What is in the slips of these envs of a lane, which must be idle.

        Raises:
            FrameError: If a slip has a form that was never announced.
        """
        told = self._told
        return [(i, self._slip(i, lane, number)) for i in ids if (number := told[i])]

    def read_all(self, lane_of: Sequence[int]) -> list[tuple[int, Extra]]:
        """What is in all slips, if every lane is idle; ``lane_of`` says in which lane an env is.

        Raises:
            FrameError: If a slip has a form that was never announced.
        """
        told = enumerate(zip(lane_of, self._told.tobytes(), strict=False))
        return [(i, self._slip(i, lane, number)) for i, (lane, number) in told if number]

    def _slip(self, env_id: int, lane: int, number: int) -> Extra:
        form = self._forms[lane].get(number)
        if form is None:
            raise FrameError(0, f"an info of a form that nobody has told of ({number})")
        return form.read(self._slips, env_id * SLIP_BYTES)


def _look_of(extra: Extra) -> Any:
    """A key that tells forms apart at a glance."""
    if extra.objects is not None or extra.is_answer:
        return None
    info, final = extra.info, extra.final_info
    own = (*info, *map(type, info.values())) if info else ()
    return (own, (*final, *map(type, final.values())) if final else ()) if extra.has_final else own


def _items(pairs: Iterable[tuple[Any, Any]]) -> Iterable[Item]:
    for name, value in pairs:
        if type(name) is not str:
            raise FormError(f"a name that is no string: {name!r}")
        kind = type(value)
        if kind in _PLAIN:
            yield name, _PLAIN[kind], None
        elif (kind is np.ndarray or isinstance(value, np.generic)) and _DTYPES.get(value.dtype.name) == value.dtype:
            yield name, value.dtype.name if kind is np.ndarray else _SCALAR + value.dtype.name, value.shape
        else:
            raise FormError(f"{name} is a {kind.__name__}")


def _checked(items: Any) -> tuple[Item, ...]:
    """The items of a description, with nothing taken on trust."""
    for name, code, shape in items:
        is_named = type(name) is str and type(code) is str
        is_plain = shape is None and code in _PLAIN.values()
        is_numpys = type(shape) is tuple and all(type(side) is int and side >= 0 for side in shape)
        if not is_named or not (is_plain or (is_numpys and code.removeprefix(_SCALAR) in _DTYPES)):
            raise FormError(f"an item {name!r} of type {code!r} and shape {shape!r}")
    return tuple(items)


def _dtype(code: str) -> np.dtype[Any]:
    return _DTYPES[code.removeprefix(_SCALAR)]


def _packed_as(item: Item) -> str:
    _, code, shape = item
    return code if shape is None else f"{_dtype(code).itemsize * prod(shape)}s"


def _reader(code: str, shape: tuple[int, ...]) -> Callable[[bytes], Any]:
    """A function that turns bytes into a numpy array or scalar."""
    dtype = _dtype(code)
    if code.startswith(_SCALAR):
        return lambda data: np.frombuffer(data, dtype)[0]
    return lambda data: np.frombuffer(bytearray(data), dtype).reshape(shape)
