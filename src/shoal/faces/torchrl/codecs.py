"""Values of Gymnasium spaces as tensors, and tensors as values that ``step`` takes.

A codec goes both ways between what an env gives or takes and the layout that the spec of the same space declares. It is
built once per env, by ``codec_for``, and settles then what would otherwise be decided at every step:

    space            spec                     read                             write
    Box              Bounded, Unbounded       a copy of the array              a copy of the tensor
    Discrete         OneHot                   a row with one 1                 position of the 1, plus ``start``
                     Categorical              value minus ``start``            value plus ``start``
    MultiDiscrete    MultiOneHot, OneHot      one row per component            positions of the 1s, plus ``start``
                     MultiCategorical, ...    values minus ``start``           values plus ``start``
    MultiBinary      Binary                   a copy                           a copy
    Dict             Composite                a dict by key                    a dict by key
    Tuple            a stack of its parts     stacked                          a tuple
    Sequence         a leading dim of -1      stacked                          an array, or a tuple of items
    other            whatever it is           the spec's own ``encode``        the spec's own ``to_numpy``

What ``read`` returns shares no memory with its argument, unless nobody else will ever write to that (``owned``): an env
that reuses its buffers cannot change a result that was handed out before. Everything also works on batches of values,
which have leading dims.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from tensordict import NonTensorData, NonTensorStack
from torch import from_numpy

from shoal.errors import ActionError, MissingAction, SpecError
from shoal.faces.torchrl.fast_td import build, entries_of
from shoal.faces.torchrl.spaces import gym_to_torchrl_spec_transform
from shoal.faces.torchrl.specs import Composite, MultiOneHot, NonTensor, OneHot

if TYPE_CHECKING:
    from shoal.faces.torchrl.specs import TensorSpec

Array = npt.NDArray[Any]


def codec_for(space: spaces.Space[Any], spec: TensorSpec, path: str, batch: tuple[int, ...] = ()) -> Codec:
    """The codec between a space and the spec that was made from it.

    Args:
        space: The space of one env.
        spec: Its spec, with ``batch`` in front of its shape.
        path: What to call the value in errors, such as ``"observation"``.
        batch: The leading dims of a batch of values.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> from shoal.faces.torchrl import Categorical
        >>> codec = codec_for(Discrete(3, start=5), Categorical(3), "action")
        >>> codec.read(7), codec.write(codec.read(7))
        (tensor(2), np.int64(7))
    """
    if isinstance(space, spaces.Dict) and isinstance(spec, Composite):
        return DictCodec(space, spec, path, batch)
    if isinstance(space, spaces.Tuple):
        return TupleCodec(space, spec, path, batch)
    if isinstance(spec, NonTensor):
        return ObjectCodec(spec, path, batch)
    if isinstance(space, spaces.Sequence):
        return SequenceCodec(space, spec, path, batch)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        if isinstance(spec, MultiOneHot) and isinstance(space, spaces.MultiDiscrete):
            return MultiOneHotCodec(space, spec, path, batch)
        return (OneHotCodec if isinstance(spec, OneHot) else IntegerCodec)(space, spec, path, batch)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return ArrayCodec(space, spec, path, batch)
    return SpecCodec(spec, path, batch)


def plain(value: Any) -> Any:
    """A value that an env returned, without tensors: numpy would warn about them."""
    return array_of(value, "observation") if isinstance(value, torch.Tensor) else value


def array_of(tensor: torch.Tensor, path: str) -> Array:
    """The array of a tensor, wherever it is and whatever it is part of."""
    try:
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError):
        array = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    except AttributeError:
        raise ActionError(f"{path}: expected a tensor, got {type(tensor).__name__} {tensor!r:.60}") from None
    return array


class Codec:
    """The translation between the values of one space and those of its spec."""

    path: str

    def read(self, value: Any, owned: bool = False) -> Any:
        """The value of an env in the form of the spec: a tensor, a dict of them, or non-tensor data.

        Args:
            value: What the env returned.
            owned: Whether nobody else will ever write to it, so that no copy is needed.
        """
        raise NotImplementedError

    def write(self, data: Any) -> Any:
        """A tensor (or a TensorDict, or non-tensor data) as the value that the env takes."""
        raise NotImplementedError


class _Arrays(Codec):
    """The base of codecs with arrays of a fixed shape on both sides."""

    def __init__(self, space: spaces.Space[Any], spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        self.path = path
        self.shape = tuple(spec.shape)
        self.plain_shape = (*batch, *(space.shape or ()))
        self.dtype = numpy_dtype(spec.dtype)
        self.space_dtype = space.dtype or self.dtype
        # A scalar action stays a scalar: envs look things up in tables with it.
        self.is_scalar = not self.plain_shape

    def _reshaped(self, array: Array, shape: tuple[int, ...], error: type[SpecError | ActionError]) -> Array:
        try:
            return array.reshape(shape)
        except ValueError:
            raise error(f"{self.path}: expected shape {shape}, got {array.shape}") from None

    def _given(self, data: Any) -> Array:
        """The array of a tensor that becomes an action, in the shape of the spec."""
        array = array_of(data, self.path)
        return array if array.shape == self.shape else self._reshaped(array, self.shape, ActionError)


class ArrayCodec(_Arrays):
    """Box and MultiBinary: the same numbers on both sides."""

    def read(self, value: Any, owned: bool = False) -> torch.Tensor:  # noqa: D102
        array = value if value.__class__ is np.ndarray else np.asarray(plain(value))
        if not owned or array.dtype != self.dtype or not array.flags.forc or not array.flags.writeable:
            array = np.array(array, self.dtype, order="C")
        return from_numpy(array if array.shape == self.shape else self._reshaped(array, self.shape, SpecError))

    def write(self, data: Any) -> Any:  # noqa: D102
        array = self._given(data).astype(self.space_dtype)  # a copy: the env may keep or change its action
        return array if array.shape == self.plain_shape else array.reshape(self.plain_shape)


class IntegerCodec(_Arrays):
    """Discrete and MultiDiscrete as integers that count from 0."""

    def __init__(self, space: Any, spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        super().__init__(space, spec, path, batch)
        self.start = start_of(space)

    def read(self, value: Any, owned: bool = False) -> torch.Tensor:  # noqa: D102
        value = plain(value)
        array = np.array(value - self.start if self.start is not None else value, self.dtype)
        return from_numpy(array if array.shape == self.shape else self._reshaped(array, self.shape, SpecError))

    def write(self, data: Any) -> Any:  # noqa: D102
        return self._shifted(self._given(data).astype(self.space_dtype))

    def _shifted(self, indices: Array) -> Any:
        if indices.shape != self.plain_shape:
            indices = indices.reshape(self.plain_shape)
        if self.start is not None:
            indices = indices + self.start
        return indices[()] if self.is_scalar else indices


class OneHotCodec(IntegerCodec):
    """Discrete, and MultiDiscrete with components of one size: a row with a single 1 for each."""

    def __init__(self, space: Any, spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        super().__init__(space, spec, path, batch)
        self.size = self.shape[-1]
        self.is_row = len(self.shape) == 1
        self._values = np.arange(self.size)

    def read(self, value: Any, owned: bool = False) -> torch.Tensor:  # noqa: D102
        value = plain(value) if self.start is None else plain(value) - self.start
        if self.is_row:
            if not 0 <= value < self.size:
                raise SpecError(f"{self.path}: {value} is not one of the {self.size} values of its space")
            row = np.zeros(self.size, self.dtype)
            row[int(value)] = 1  # numpy would take a bool for a mask
            return from_numpy(row)
        rows = (np.asarray(value).reshape(*self.shape[:-1], 1) == self._values).astype(self.dtype)
        return from_numpy(rows)

    def write(self, data: Any) -> Any:  # noqa: D102
        index = self._given(data).argmax(-1)
        if self.is_row:
            return index if self.start is None else index + self.start
        return self._shifted(index.astype(self.space_dtype, copy=False))


class MultiOneHotCodec(IntegerCodec):
    """MultiDiscrete with components of different sizes: their rows one after another."""

    def __init__(self, space: spaces.MultiDiscrete, spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        super().__init__(space, spec, path, batch)
        sizes = space.nvec.reshape(-1)
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes
        self._flat = (*batch, len(sizes))

    def read(self, value: Any, owned: bool = False) -> torch.Tensor:  # noqa: D102
        value = plain(value) if self.start is None else plain(value) - self.start
        rows = np.zeros(self.shape, self.dtype)
        np.put_along_axis(rows, np.asarray(value).reshape(self._flat) + self._begins, 1, -1)
        return from_numpy(rows)

    def write(self, data: Any) -> Any:  # noqa: D102
        rows = self._given(data)
        places = [rows[..., a:b].argmax(-1) for a, b in zip(self._begins, self._ends, strict=True)]
        return self._shifted(np.stack(places, -1).astype(self.space_dtype))


class SequenceCodec(Codec):
    """Sequence: any number of values of one space, stacked."""

    def __init__(self, space: spaces.Sequence, spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        if batch:
            raise SpecError(f"{path}: sequences of different lengths cannot be batched, and {space} is of that kind")
        self.path = path
        self._is_stacked = space.stack
        is_categorical = not any(isinstance(leaf, (OneHot, MultiOneHot)) for leaf in leaves_of(spec))
        item = gym_to_torchrl_spec_transform(space.feature_space, categorical_action_encoding=is_categorical)
        self._item = codec_for(space.feature_space, item, path)
        self._shape = tuple(spec.shape[1:])
        self._dtype = spec.dtype

    def read(self, value: Any, owned: bool = False) -> torch.Tensor:  # noqa: D102
        items = [self._item.read(item) for item in value]
        return torch.stack(items) if items else torch.zeros((0, *self._shape), dtype=self._dtype)

    def write(self, data: Any) -> Any:  # noqa: D102
        items = [self._item.write(item) for item in data]
        return np.stack(items) if self._is_stacked and items else tuple(items)


class TupleCodec(Codec):
    """Tuple: its parts stacked along one dim, or each under a key of its own."""

    def __init__(self, space: spaces.Tuple[Any], spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        self.path = path
        self._keys = [str(key) for key in spec.keys()] if isinstance(spec, Composite) else None  # noqa: SIM118
        self._dim = len(batch)
        self._batch = torch.Size(batch)
        parts = spec.unbind(self._dim) if self._keys is None else [spec[key] for key in self._keys]
        self._parts = [
            codec_for(part, own, f"{path}[{i}]", batch)
            for i, (part, own) in enumerate(zip(space.spaces, parts, strict=True))
        ]

    def read(self, value: Any, owned: bool = False) -> Any:  # noqa: D102
        read = [part.read(item, owned) for part, item in zip(self._parts, value, strict=True)]
        if self._keys is not None:
            return build(dict(zip(self._keys, read, strict=True)), self._batch)
        return torch.stack(read, self._dim)

    def write(self, data: Any) -> Any:  # noqa: D102
        items = data.unbind(self._dim) if self._keys is None else [data.get(key) for key in self._keys]
        return tuple(part.write(item) for part, item in zip(self._parts, items, strict=True))


class DictCodec(Codec):
    """Dict: each value under its key; ``state`` is called ``observation`` where the env has no other observation."""

    def __init__(self, space: spaces.Dict, spec: Composite, path: str, batch: tuple[int, ...]) -> None:
        self.path = path
        self._batch = torch.Size(batch)
        names = {key: key for key in space.spaces}
        if "state" in names and "state" not in spec.keys():  # noqa: SIM118  a spec is no dict
            names["state"] = "observation"
        self._parts = [
            (key, names[key], codec_for(part, spec[names[key]], f"{path}[{key!r}]", batch))
            for key, part in space.spaces.items()
        ]

    def read(self, value: Any, owned: bool = False) -> Any:  # noqa: D102
        return build(self.entries(value, owned), self._batch)

    def entries(self, value: Any, owned: bool = False) -> dict[str, Any]:
        """What ``read`` returns, as a plain dict."""
        try:
            return {name: part.read(value[key], owned) for key, name, part in self._parts}
        except KeyError as error:
            raise SpecError(f"{self.path}: {error} is missing; there are {list(value)}") from None

    def write(self, data: Any) -> dict[str, Any]:  # noqa: D102
        return {key: part.write(entry(data, name, self.path)) for key, name, part in self._parts}


class ObjectCodec(Codec):
    """Values that no tensor can hold, such as texts."""

    def __init__(self, spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        self.path = path
        self._batch = torch.Size(batch)

    def read(self, value: Any, owned: bool = False) -> Any:  # noqa: D102
        if self._batch:
            return NonTensorStack(*[NonTensorData(item) for item in value])
        return NonTensorData(value)

    def write(self, data: Any) -> Any:  # noqa: D102
        if isinstance(data, NonTensorStack):
            return tuple(data.tolist())
        value = data.data if isinstance(data, NonTensorData) else data
        return (value,) * self._batch.numel() if self._batch else value


class SpecCodec(Codec):
    """Spaces that only their spec knows how to read."""

    def __init__(self, spec: TensorSpec, path: str, batch: tuple[int, ...]) -> None:
        self.path = path
        self._spec = spec

    def read(self, value: Any, owned: bool = False) -> Any:  # noqa: D102
        read = self._spec.encode(value, ignore_device=True)
        return read.clone() if isinstance(read, torch.Tensor) and not owned else read

    def write(self, data: Any) -> Any:  # noqa: D102
        return self._spec.to_numpy(data)


def start_of(space: Any) -> Any:
    """The first value of a discrete space, or of each of its components; None if it is 0."""
    start = getattr(space, "start", None)
    return None if start is None or not np.any(start) else start


def entry(data: Any, key: str, path: str) -> Any:
    """An entry of a TensorDict, got as cheaply as possible."""
    inside = entries_of(data)
    found = data.get(key, None) if inside is None else inside.get(key)
    if found is None:
        raise MissingAction(f"{path}: {key!r} is missing; there are {list(data.keys())}")
    return found


def leaves_of(spec: TensorSpec) -> list[Any]:
    """The leaves of a spec."""
    return list(spec.values(True, True)) if isinstance(spec, Composite) else [spec]


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The numpy counterpart of a torch dtype."""
    if dtype is None:
        return np.dtype(object)
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found
