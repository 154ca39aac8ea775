"""Composite: named specs, for the entries of a TensorDict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDictBase

from shoal.faces.torchrl import fast_td
from shoal.faces.torchrl.specs.base import CHECK_SPEC_ENCODE, TensorSpec
from shoal.faces.torchrl.specs.named import NamedDims
from shoal.faces.torchrl.specs.non_tensor import NonTensor
from shoal.faces.torchrl.specs.shapes import ShapeOp, as_size, new_shape, wrap_dim
from shoal.faces.torchrl.specs.tree import SpecTree, _unravel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.specs.locks import Lockable


class Composite(SpecTree, NamedDims, TensorSpec):
    """Named specs: what a TensorDict may be.

    Args:
        *args: Dicts of specs, or Composites; nested dicts and tuples of names make nested specs.
        shape: The batch size. The shape of each entry begins with it.
        device: The device of the TensorDicts; None when the entries may be on any.
        batch_size: The same as ``shape``.
        data_cls: A tensorclass to return instead of a TensorDict.
        step_mdp_static: Kept as an attribute, for code that reads it; an env carries nested entries over key by key.
        names: Names of the batch dims, for the TensorDicts.
        **specs: Specs by name. None declares an entry that can be anything.

    Raises:
        ValueError: The shape of an entry does not begin with ``shape``.
        RuntimeError: An entry is on another device.

    Example:
        >>> from shoal.faces.torchrl import Categorical, Unbounded
        >>> spec = Composite(obs=Unbounded((4, 3)), agent=Composite(action=Categorical(2, shape=(4,))), shape=(4,))
        >>> spec["agent", "action"].shape
        torch.Size([4])
        >>> spec[0].rand()["obs"].shape
        torch.Size([3])
    """

    def __init__(
        self,
        *args: Mapping[Any, Any] | SpecTree,
        shape: Any = None,
        device: torch.device | str | None = None,
        batch_size: Any = None,
        data_cls: Any = None,
        step_mdp_static: bool = False,
        names: Sequence[str | None] | None = None,
        **specs: Any,
    ) -> None:
        super().__init__()
        if shape is None:
            shape = () if batch_size is None else batch_size
        self._shape = as_size(shape)
        self._device = None if device is None else torch.device(device)
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        self._children: dict[str, TensorSpec | None] = {}
        for source in (*args, specs):
            if not hasattr(source, "items"):
                raise RuntimeError(f"a Composite is made of dicts of specs, got {source!r}")
            for key, value in source.items():
                self.set(key, value)
        if names is not None:
            self.names = names

    # The tree -----------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return list(self._children)

    def _child(self, name: str) -> TensorSpec | None:
        return self._children[name]

    def _put(self, name: str, spec: TensorSpec | None) -> None:
        if spec is None:
            self._children[name] = None
            return
        if spec.ndim < self.ndim:
            spec = self._with_batch_dims(spec)
        if spec.shape[: self.ndim] != self.shape:
            raise ValueError(
                f"the shape of entry {name!r} begins with that of its Composite: {tuple(spec.shape)} in "
                f"{tuple(self.shape)}"
            )
        if self._device is not None and spec.device not in (self._device, None):
            raise RuntimeError(f"entry {name!r} is on {spec.device}, its Composite on {self._device}")
        if isinstance(spec, Composite) and spec.device is None and self._device is not None:
            spec = spec._renamed(spec._with(spec, spec.shape, self._device), spec.names)
        self._children[name] = spec

    def _with_batch_dims(self, spec: TensorSpec) -> TensorSpec:
        """Add the batch dims to a spec without them: a Composite with room for them in its entries, or a NonTensor."""
        if isinstance(spec, Composite) and all(child is None or self._has_room(child) for child in spec.values()):
            return spec._with(spec, self.shape, spec.device)
        return spec.expand(self.shape) if isinstance(spec, NonTensor) and not spec.shape else spec

    def _has_room(self, child: TensorSpec) -> bool:
        return child.shape[: self.ndim] == self.shape or isinstance(child, (Composite, NonTensor))

    def _drop(self, name: str) -> None:
        del self._children[name]

    def _new_subtree(self) -> Composite:
        return Composite(shape=self.shape, device=self._device)

    def _as_spec(self, value: Any) -> TensorSpec | None:
        if value is None or isinstance(value, TensorSpec):
            return value
        if isinstance(value, Mapping):
            return Composite(value, shape=self.shape, device=self._device)
        raise TypeError(f"an entry of a Composite is a spec, a dict of specs or None, got {value!r}")

    def _nodes_below(self) -> Iterator[Lockable]:
        return (child for child in self._children.values() if isinstance(child, Composite))

    def _named_parts(self) -> list[NamedDims]:
        return [child for child in self._children.values() if type(child) is Composite]

    def __getitem__(self, key: Any) -> Any:
        if _unravel(key) is not None:
            return self._entry(key)
        return super().__getitem__(key)

    def empty(self) -> Composite:
        """A Composite of the same shape and device without entries."""
        return self._with({}, self.shape, self._device)

    # What a Composite is ------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """The batch size, with which the shape of each entry begins."""
        return self._shape

    @shape.setter
    def shape(self, value: Any) -> None:
        self._check_unlocked()
        shape = as_size(value)
        for name, child in self._children.items():
            if child is not None and child.shape[: len(shape)] != shape:
                raise ValueError(
                    f"the shape of entry {name!r} does not begin with {tuple(shape)}: {tuple(child.shape)}"
                )
        if len(shape) != self.ndim:
            self._dims = None
        self._shape = shape

    @property
    def batch_size(self) -> torch.Size:
        """The same as ``shape``."""
        return self.shape

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        self.shape = value

    @property  # type: ignore[misc]  # the entries are on it too: see to()
    def device(self) -> torch.device | None:
        """The device of the TensorDicts, or None."""
        return self._device

    @property
    def domain(self) -> str:  # type: ignore[override]
        """Always ``"composite"``."""
        return "composite"

    @property
    def space(self) -> None:  # type: ignore[override]
        """None: each entry has a space of its own."""
        return None

    @property  # type: ignore[misc]  # each entry has its own
    def dtype(self) -> torch.dtype | None:
        """The dtype of the entries, if they have one in common."""
        dtypes = {child.dtype for child in self._children.values() if child is not None}
        return dtypes.pop() if len(dtypes) == 1 else None

    def __repr__(self) -> str:
        entries = "".join(f"\n    {name}: {_indented(repr(self._child(name)))}," for name in self._names())
        return f"{type(self).__name__}({entries}\n    shape={self.shape}, device={self.device})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self) or not isinstance(other, Composite):
            return False
        mine = (self.shape, self.device, self.data_cls)
        return mine == (other.shape, other.device, other.data_cls) and self._children == other._children

    __hash__ = None

    def clone(self) -> Self:
        """An equal Composite with entries of its own, unlocked."""
        return self._remade(lambda child: child.clone(), self._device)

    def to(self, dest: torch.dtype | torch.device | str | int) -> Self:
        """The Composite and its entries on another device, or its entries with another dtype."""
        if isinstance(dest, torch.dtype):
            return self._remade(lambda child: child.to(dest), self._device)
        device = torch.device(dest)
        if device == self._device:
            return self
        return self._remade(lambda child: child.to(device), device)

    def clear_device_(self) -> Self:
        """Let the entries be on any device, here and in nested specs."""
        self._device = None
        for child in self._children.values():
            if child is not None:
                child.clear_device_()
        return self

    def _remade(self, change: Callable[[TensorSpec], TensorSpec], device: torch.device | None) -> Self:
        children = {name: None if child is None else change(child) for name, child in self._children.items()}
        return self._renamed(self._with(children, self.shape, device), self.names)

    def _map(self, op: ShapeOp, lead: int) -> Self:
        shape = new_shape(op, self.shape)
        children = {name: None if child is None else child._map(op, lead) for name, child in self._children.items()}
        return self._with(children, shape, self._device)

    def _with(self, entries: Mapping[Any, Any] | SpecTree, shape: torch.Size, device: torch.device | None) -> Self:
        """A Composite of other entries that is used in the same way."""
        how = {"data_cls": self.data_cls, "step_mdp_static": self.step_mdp_static}
        made = Composite(entries, shape=shape, device=device, **how)
        return made  # type: ignore[return-value]  # a subclass has a way of its own

    def make_neg_dim(self, dim: int) -> None:
        """Let a batch dim be of any size, here and in all entries, in place."""
        at = wrap_dim(dim, len(self.shape), "make_neg_dim")
        self._shape = torch.Size([-1 if position == at else size for position, size in enumerate(self.shape)])
        for child in self._children.values():
            if child is not None:
                child.make_neg_dim(at)

    # Data ---------------------------------------------------------------------------------------------------------

    def rand(self, shape: Any = None) -> Any:
        """A TensorDict of random values, of batch size ``(*shape, *spec.shape)``."""
        return self._filled(TensorSpec.rand.__name__, shape)

    def zero(self, shape: Any = None) -> Any:
        """A TensorDict of zeros, of batch size ``(*shape, *spec.shape)``."""
        return self._filled(TensorSpec.zero.__name__, shape)

    def one(self, shape: Any = None) -> Any:
        """A TensorDict of ones, of batch size ``(*shape, *spec.shape)``."""
        return self._filled(TensorSpec.one.__name__, shape)

    def _filled(self, how: str, shape: Any) -> Any:
        entries = {name: getattr(child, how)(shape) for name, child in self._children.items() if child is not None}
        return self._data(entries, self._full_shape(shape))

    def _data(self, entries: dict[str, Any], batch_size: torch.Size) -> Any:
        td = fast_td.build(entries, batch_size, self._device)
        if self._dims is not None:
            td.names = [None] * (len(batch_size) - self.ndim) + self.names
        return td if self.data_cls is None else self.data_cls.from_tensordict(td)

    def zeros_update(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set all entries of the spec to zeros in a TensorDict, and return it."""
        return self._update(tensordict, "zero")

    def ones_update(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set all entries of the spec to ones in a TensorDict, and return it."""
        return self._update(tensordict, "one")

    def rand_update(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set all entries of the spec to random values in a TensorDict, and return it."""
        return self._update(tensordict, "rand")

    def _update(self, tensordict: TensorDictBase, how: str) -> TensorDictBase:
        extra = tensordict.shape[: max(tensordict.ndim - self.ndim, 0)]
        return tensordict.update(self._filled(how, extra))

    def is_in(self, val: Any) -> bool:
        """Whether all entries are in their specs; entries without a spec are ignored.

        Raises:
            KeyError: An entry is missing.
        """
        if not hasattr(val, "get") or not hasattr(val, "keys"):
            return False
        return all(child is None or child.is_in(_value(val, name)) for name, child in self._children.items())

    def why_not(self, value: Any) -> str:
        """Which entry is not in its spec, and why."""
        if not hasattr(value, "get") or not hasattr(value, "keys"):
            return f"got {type(value).__name__}, expected a TensorDict"
        for name, child in self._children.items():
            entry = None if child is None else _value(value, name)
            if child is not None and not child.is_in(entry):
                return f"entry {name!r}: {child.why_not(entry)}"
        return "nothing is wrong"

    def project(self, val: Any) -> Any:
        """Project all entries, in place, and return the TensorDict."""
        for name, child in self._children.items():
            if child is not None:
                value = _value(val, name)
                projected = child.project(value)
                if projected is not value:
                    val[name] = projected
        return val

    def type_check(self, value: Any, key: Any = None, *, selected_keys: Any = None) -> None:
        """Raise a TypeError unless entries have the dtypes of their specs.

        Args:
            value: A TensorDict, or a tensor.
            key: The key of the entry, if the value is a tensor.
            selected_keys: The keys of the entries to check, or one of them; all if none are given.
        """
        if isinstance(value, torch.Tensor):
            self._entry(key).type_check(value, key)
            return
        one = [] if _unravel(selected_keys) is None else [selected_keys]
        for name in self.keys() if selected_keys is None else one or selected_keys:
            child, entry = self._entry(name), value.get(name, None)
            if child is not None and entry is not None:
                child.type_check(entry, name)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Turn a dict of numbers, lists and arrays into a TensorDict.

        Raises:
            KeyError: There is no spec for an entry.
        """
        if isinstance(val, TensorDictBase):
            return val
        entries: dict[str, Any] = {}
        for name, value in val.items():
            if name not in self._names():
                raise KeyError(f"{name!r} is not among the keys {self._names()}")
            child = self._child(name)
            if child is not None and value is not None:
                entries[name] = child.encode(value, ignore_device=ignore_device)
        encoded = self._data(entries, self._full_shape(None))
        if CHECK_SPEC_ENCODE:
            self.assert_is_in(encoded)
        return encoded

    def to_numpy(self, val: Any, safe: bool | None = None) -> dict[str, Any]:
        """Turn a TensorDict into a dict of arrays."""
        out = {}
        for name in val.keys():  # noqa: SIM118  a TensorDict is no dict
            child = self._entry(name)
            out[name] = _value(val, name) if child is None else child.to_numpy(_value(val, name), safe)
        return out

    def cardinality(self) -> Any:
        """The number of combinations of the values of the entries; 0 without entries."""
        counts = [child.cardinality() for child in self._children.values() if child is not None]
        return math.prod(counts) if counts else 0

    def enumerate(self, use_mask: bool = False) -> Any:
        """All combinations of the values of the entries, the last entry changing fastest."""
        values = {name: child.enumerate(use_mask) for name, child in self._children.items() if child is not None}
        if not values:
            return self._data({}, self._full_shape(None))
        total = math.prod(value.shape[0] for value in values.values())
        rows, repeats = torch.arange(total), total
        for name, value in values.items():
            repeats //= value.shape[0]
            values[name] = value[(rows // repeats % value.shape[0]).to(value.device)]
        return self._data(values, self._full_shape((total,)))

    @property
    def _any_size(self) -> bool:  # type: ignore[override]
        return -1 in self.shape


def _value(td: Any, name: str) -> Any:
    """An entry of a TensorDict or a dict.

    Raises:
        KeyError: There is no such entry.
    """
    inside = fast_td.entries_of(td) if isinstance(td, TensorDictBase) else td if isinstance(td, dict) else None
    if inside is not None and name in inside:
        return inside[name]
    if name not in td.keys():  # noqa: SIM118  a TensorDict is no dict
        raise KeyError(f"entry {name!r} is missing among {list(td.keys())}")
    return td.get(name)


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
