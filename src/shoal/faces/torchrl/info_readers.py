"""Readers of info dicts: what an env says besides its observation, as entries of a TensorDict.

A reader is called with the info of every reset and step, and with the TensorDict that is being made. Any callable will
do. One that knows its specs (``BaseInfoDictReader``) has them added to the observation spec of the env.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from shoal.errors import ArgumentError
from shoal.faces.torchrl.specs import Composite, NonTensor, Unbounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.specs import TensorSpec


class BaseInfoDictReader(ABC):
    """A reader that knows the specs of what it writes."""

    @abstractmethod
    def __call__(self, info_dict: Mapping[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Write what is of interest in an info to the TensorDict, and return it."""

    @property
    @abstractmethod
    def info_spec(self) -> Any:
        """The specs of the entries it writes, by key; None while they are not known."""


class default_info_dict_reader(BaseInfoDictReader):
    """Writes some or all entries of an info as they are.

    Numbers, lists and arrays become tensors, nested dicts TensorDicts, and texts non-tensor data. A key that an info
    does not have is filled with zeros, so that all results have the same entries.

    Args:
        keys: Which entries; by default all that are found in a first reset and step.
        spec: Their specs: a mapping by key, or a sequence in the order of the keys. Without any, given keys are taken
            for float32 scalars, and found ones for what they were found to be.
        ignore_private: Whether to leave out keys that begin with an underscore, when no keys are given.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, default_info_dict_reader
        >>> env = GymEnv("FrozenLake-v1").set_info_dict_reader(default_info_dict_reader(["prob"]))
        >>> env.reset()["prob"]
        tensor(1.)
    """

    def __init__(
        self,
        keys: Sequence[str] | None = None,
        spec: Mapping[str, TensorSpec] | Sequence[TensorSpec] | TensorSpec | None = None,
        ignore_private: bool = True,
    ) -> None:
        self.ignore_private = ignore_private
        self.keys = None if keys is None else list(keys)
        self._batch: tuple[int, ...] = ()
        # An undeclared entry may turn out to be more than a scalar, and is then stored as it is.
        self._is_declared = spec is not None
        self._info_spec = _declared(self.keys, spec)
        if self.keys is None and self._info_spec is not None:
            self.keys = [str(key) for key in self._info_spec.keys()]  # noqa: SIM118  a spec is no dict

    @property
    def info_spec(self) -> Any:  # noqa: D102
        return self._info_spec

    @property
    def is_searching(self) -> bool:
        """Whether the keys are not known yet, and have to be found in infos."""
        return self.keys is None

    def attach(self, batch_size: Sequence[int]) -> None:
        """Treat the specs as those of one env, and the infos as those of a whole batch."""
        self._batch = batch = tuple(batch_size)
        if self._info_spec is not None and batch:
            spread = {key: _spread(leaf, batch) for key, leaf in self._info_spec.items()}
            self._info_spec = Composite(spread, shape=torch.Size(batch))

    def discover(self, infos: Sequence[Mapping[str, Any]], batch_size: Sequence[int]) -> None:
        """Learn the keys and specs from infos that were seen."""
        found: dict[str, Any] = {}
        for info in infos:
            for key, value in info.items():
                if not (self.ignore_private and str(key).startswith("_")):
                    found.setdefault(str(key), value)
        self.keys = list(found)
        self._batch = tuple(batch_size)
        batch = torch.Size(batch_size)
        self._is_declared = True
        self._info_spec = Composite({key: _spec_of(as_data(value, batch)) for key, value in found.items()}, shape=batch)

    def __call__(self, info_dict: Any, tensordict: TensorDictBase) -> TensorDictBase:  # noqa: D102
        if not isinstance(info_dict, (Mapping, TensorDictBase)):
            warnings.warn(f"info: expected a dict, got {type(info_dict).__name__}; it is not read", stacklevel=2)
            return tensordict
        if self.is_searching:
            self.discover([info_dict], tensordict.batch_size)
        for key in self.keys or ():
            leaf = None if self._info_spec is None else self._info_spec.get(key, None)
            if key in info_dict:
                tensordict.set(key, self._fitted(as_data(info_dict[key], torch.Size(self._batch)), leaf))
            elif leaf is not None:
                tensordict.set(key, leaf.zero())
        return tensordict

    def _fitted(self, data: Any, leaf: TensorSpec | None) -> Any:
        """A value in the dtype and shape of its spec."""
        if leaf is None or not isinstance(data, torch.Tensor) or leaf.dtype is None:
            return data
        if data.shape != leaf.shape and -1 not in leaf.shape:
            if data.numel() != leaf.shape.numel() and not self._is_declared:
                return data
            data = data.reshape(leaf.shape)
        return data.to(leaf.dtype)


def as_data(value: Any, batch: torch.Size) -> Any:
    """A value from an info as a new tensor, a TensorDict, or non-tensor data."""
    if isinstance(value, Mapping):
        nested = {str(key): as_data(item, batch) for key, item in value.items() if not _is_mask(key, value)}
        return TensorDict(nested, batch_size=batch)
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, str):
        return NonTensorData(value, batch_size=batch)
    array = np.array(value)
    if array.dtype == object and array.ndim:
        stacked = [item for item in array if item is not None]
        # An array of arrays, one per env; it can be stacked if every env has one of the same shape.
        if stacked and len(stacked) == len(array) and all(np.shape(item) == np.shape(stacked[0]) for item in stacked):
            array = np.stack([np.asarray(item) for item in stacked])
    if array.dtype.kind in "biufc":
        return torch.from_numpy(array)
    return NonTensorData(value, batch_size=batch)


def _is_mask(key: Any, of: Mapping[Any, Any]) -> bool:
    """Whether a key of a vector env's infos is a mask: it says which envs have another key."""
    return isinstance(key, str) and key.startswith("_") and key[1:] in of


def _spec_of(data: Any) -> TensorSpec:
    if isinstance(data, torch.Tensor):
        return Unbounded(shape=data.shape, dtype=data.dtype)
    if isinstance(data, NonTensorData):
        return NonTensor(shape=data.batch_size, example_data=data.data)
    return Composite({key: _spec_of(data.get(key)) for key in data.keys()}, shape=data.batch_size)  # noqa: SIM118


def _declared(keys: list[str] | None, spec: Any) -> Composite | None:
    if spec is None:
        return None if keys is None else Composite({key: Unbounded(shape=()) for key in keys})
    if isinstance(spec, Composite):
        return spec.clone()
    if isinstance(spec, Mapping):
        return Composite(dict(spec))
    if keys is None:
        raise ArgumentError("spec: a sequence of specs needs keys to go with it")
    if len(spec) != len(keys):
        raise ArgumentError(f"spec: {len(spec)} specs do not fit {len(keys)} keys {keys}")
    return Composite(dict(zip(keys, spec, strict=True)))


def _spread(leaf: TensorSpec, batch: tuple[int, ...]) -> TensorSpec:
    if tuple(leaf.shape[: len(batch)]) == batch:
        return leaf
    return leaf.expand(torch.Size((*batch, *leaf.shape)))
