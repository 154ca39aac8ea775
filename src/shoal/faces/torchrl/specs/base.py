"""TensorSpec: what every spec can do.

A leaf defines only three things: how to draw a value (``rand``), whether a value belongs to it (``_holds``) and how to
mend a value that does not (``_mend``). Everything else is here: the dtype and shape checks that come first, filled
tensors, conversion from and to numpy, and the operations on shapes (see ``shapes``).
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch

from shoal.faces.torchrl.specs.dtypes import as_device, numpy_dtype
from shoal.faces.torchrl.specs.reshaping import Reshaping
from shoal.faces.torchrl.specs.shapes import ShapeOp, as_size, concrete, fits, new_shape, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.faces.torchrl.specs.boxes import Box

CHECK_SPEC_ENCODE = os.environ.get("CHECK_SPEC_ENCODE", "0") not in ("", "0", "False", "false")


class TensorSpec(Reshaping):
    """What a tensor may be: its shape, dtype, device and values.

    Attributes:
        shape: The shape, batch dims included; -1 is a dim of any size.
        space: The possible values: bounds or numbers of choices.
        device: Where the tensors are. None for a Composite or a NonTensor whose data may be anywhere, and for specs
            side by side that are not on one device.
        dtype: The type of the elements.
        domain: ``"continuous"`` or ``"discrete"``.

    Example:
        >>> from shoal.faces.torchrl import Categorical
        >>> spec = Categorical(3, shape=(2,))
        >>> spec.is_in(spec.rand((5,)))
        True
        >>> spec.expand(4, 2).shape
        torch.Size([4, 2])
    """

    space: Box | None
    domain: str | None

    _shape: torch.Size
    _device: torch.device | None
    _dtype: torch.dtype | None

    # Names of the tensors that begin with the dims of the spec, and are reshaped along with it.
    _held: ClassVar[tuple[str, ...]] = ()
    # Names of the other attributes that tell two specs of a class apart.
    _told: ClassVar[tuple[str, ...]] = ()

    # Shape, dtype and device, which can be changed in place --------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """The shape, batch dims included; -1 is a dim of any size."""
        return self._shape

    @shape.setter
    def shape(self, value: Any) -> None:
        shape = as_size(value)
        self._check_shape(shape)
        self._adopt(self._in_shape(shape))

    @property
    def dtype(self) -> torch.dtype | None:
        """The type of the elements."""
        return self._dtype

    @dtype.setter
    def dtype(self, value: torch.dtype) -> None:
        self._adopt(self._as_dtype(value))

    @property
    def device(self) -> torch.device | None:
        """Where the tensors are."""
        return self._device

    @device.setter
    def device(self, value: torch.device | str | int) -> None:
        self._adopt(self._on_device(as_device(value)))

    def _check_shape(self, shape: torch.Size) -> None:
        """Raise a ValueError unless the spec can have this shape."""

    def _adopt(self, other: Self) -> None:
        """Become the other spec, in place."""
        self.__class__ = other.__class__
        self.__dict__ = other.__dict__

    # Drawing and filling ------------------------------------------------------------------------------------------

    def rand(self, shape: Any = None) -> Any:
        """A random value of shape ``(*shape, *spec.shape)``, from torch's global generator."""
        raise NotImplementedError

    def sample(self, shape: Any = None) -> Any:
        """The same as ``rand``."""
        return self.rand(shape)

    def zero(self, shape: Any = None) -> Any:
        """Zeros of shape ``(*shape, *spec.shape)``, whether or not 0 is a value of the spec."""
        return torch.zeros(self._full_shape(shape), dtype=self.dtype, device=self.device)

    def zeros(self, shape: Any = None) -> Any:
        """The same as ``zero``."""
        return self.zero(shape)

    def one(self, shape: Any = None) -> Any:
        """Ones of shape ``(*shape, *spec.shape)``, True for a spec of bools."""
        return torch.ones(self._full_shape(shape), dtype=self.dtype, device=self.device)

    def ones(self, shape: Any = None) -> Any:
        """The same as ``one``."""
        return self.one(shape)

    def _full_shape(self, shape: Any) -> torch.Size:
        mine = concrete(self.shape) if self._any_size else self.shape
        if shape is None:
            return mine
        return torch.Size((shape,) if isinstance(shape, int) else shape) + mine

    # Membership ---------------------------------------------------------------------------------------------------

    def is_in(self, val: Any) -> bool:
        """Whether this is a value of the spec, or a batch of values: dtype, shape and contents are checked."""
        return (
            isinstance(val, torch.Tensor)
            and val.dtype == self.dtype
            and fits(val.shape, self.shape)
            and (not val.numel() or self._holds(val))
        )

    def contains(self, item: Any) -> bool:
        """The same as ``is_in``."""
        return self.is_in(item)

    def _holds(self, val: torch.Tensor) -> bool:
        """Whether the values are in the space, given that dtype and shape are right."""
        raise NotImplementedError

    def project(self, val: Any) -> Any:
        """The value itself if it is in the spec, else a value of the spec made from it."""
        if self.is_in(val):
            return val
        return self._mend(torch.as_tensor(val, device=self.device))

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def assert_is_in(self, value: Any) -> None:
        """Raise an AssertionError that says what is wrong unless the value is in the spec."""
        if not self.is_in(value):
            raise AssertionError(f"{self.why_not(value)}: {value} is not in {self!r}")

    def why_not(self, value: Any) -> str:
        """What keeps a value out of the spec, in a few words."""
        if not isinstance(value, torch.Tensor):
            return f"got {type(value).__name__}, expected a tensor"
        if value.dtype != self.dtype:
            return f"got dtype {value.dtype}, expected {self.dtype}"
        if not fits(value.shape, self.shape):
            return f"got shape {tuple(value.shape)}, expected {tuple(self.shape)}"
        return f"got values outside of {self.space}"

    def type_check(self, value: torch.Tensor, key: Any = None) -> None:
        """Raise a TypeError unless the value has the dtype of the spec."""
        if value.dtype != self.dtype:
            name = "value" if key is None else f"value of {key!r}"
            raise TypeError(f"{name} has dtype {value.dtype}, {type(self).__name__} has {self.dtype}")

    # From and to numpy --------------------------------------------------------------------------------------------

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Turn numbers, lists and arrays into a tensor with memory of its own; tensors are returned untouched.

        Args:
            val: What an env returned.
            ignore_device: Leave the result on the CPU.

        Raises:
            RuntimeError: The value cannot be reshaped to the shape of the spec.
        """
        if isinstance(val, torch.Tensor):
            return val
        if type(val) is list and len(val) == 1:
            val = val[0]
            if isinstance(val, torch.Tensor):
                val = val.numpy(force=True)
        tensor = self._new_tensor(val)
        if tensor.shape != self.shape and not (self._any_size and fits(tensor.shape, self.shape)):
            tensor = tensor.reshape(self.shape)
        if not ignore_device and self._elsewhere:
            tensor = tensor.to(self.device)
        if CHECK_SPEC_ENCODE:
            self.assert_is_in(tensor)
        return tensor

    def _new_tensor(self, val: Any) -> torch.Tensor:
        """A CPU tensor with the dtype of the spec that shares no memory with the value."""
        try:
            dtype = numpy_dtype(self.dtype)
            tensor = torch.from_numpy(np.array(val, dtype=dtype))
            return tensor.to(self.dtype) if dtype is None else tensor
        except (TypeError, ValueError) as error:
            raise TypeError(f"{val!r} is no value for {type(self).__name__} of {self.dtype}: {error}") from error

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Turn a value of the spec into numpy: the inverse of ``encode``.

        Args:
            val: A tensor.
            safe: Assert first that the value is in the spec.
        """
        if CHECK_SPEC_ENCODE if safe is None else safe:
            self.assert_is_in(val)
        return val.numpy(force=True)

    def memoize_encode(self, mode: bool = True) -> None:
        """Do nothing, for compatibility: ``encode`` makes no decisions that could be cached."""

    # Discrete specs -----------------------------------------------------------------------------------------------

    def cardinality(self) -> Any:
        """How many values there are."""
        raise NotImplementedError(f"a spec of class {type(self).__name__} has no number of values")

    def enumerate(self, use_mask: bool = False) -> Any:
        """All values, stacked along a new first dim."""
        raise NotImplementedError(f"the values of a spec of class {type(self).__name__} cannot be listed")

    def index(self, index: torch.Tensor, tensor_to_index: torch.Tensor) -> torch.Tensor:
        """The entries of a tensor, along its last dim, that values of the spec point at."""
        raise NotImplementedError(f"a value of a spec of class {type(self).__name__} points at nothing")

    # Copies -------------------------------------------------------------------------------------------------------

    def clone(self) -> Self:
        """An equal spec with tensors and a space of its own."""
        return self._with_tensors(torch.Tensor.clone)

    def to(self, dest: torch.dtype | torch.device | str | int) -> Self:
        """The spec on another device or with another dtype; the spec itself when that changes nothing."""
        if isinstance(dest, torch.dtype):
            return self if dest == self.dtype else self._as_dtype(dest)
        device = torch.device(dest)
        return self if device == self.device else self._on_device(device)

    def cpu(self) -> Self:
        """The spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Self:
        """The spec on a GPU."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def clear_device_(self) -> Self:
        """Do nothing: the tensors of a leaf are always on some device."""
        return self

    def _in_shape(self, shape: torch.Size) -> Self:
        return self._with_tensors(lambda tensor: tensor, _shape=shape)

    def _on_device(self, device: torch.device) -> Self:
        return self._with_tensors(lambda tensor: tensor.to(device), _device=device)

    def _as_dtype(self, dtype: torch.dtype) -> Self:
        return self._with_tensors(lambda tensor: tensor, _dtype=dtype)

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor], **fields: Any) -> Self:
        """A copy of the spec with its tensors changed, except for fields that are given."""
        out = copy.copy(self)
        for name in self._held:
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(out, name, change(tensor))
        for name, value in fields.items():
            setattr(out, name, value)
        out._settle()
        return out

    def _settle(self) -> None:
        """Recompute what is derived from shape, dtype and device; called whenever one of them changes."""
        self._elsewhere = self.device is not None and self.device.type != "cpu"
        self._any_size = -1 in self.shape

    # Shapes -------------------------------------------------------------------------------------------------------

    def _map(self, op: ShapeOp, lead: int) -> Self:
        """The spec after an operation on its first ``lead`` dims."""
        if lead > self._lead:
            raise ValueError(f"the last dim of {type(self).__name__} of shape {tuple(self.shape)} stays as it is")
        shape = new_shape(op, self.shape)
        return self._with_tensors(lambda tensor: _one_where_any(op(tensor), shape), _shape=shape)

    def make_neg_dim(self, dim: int) -> None:
        """Let a dim be of any size, in place."""
        at = wrap_dim(dim, len(self.shape), "make_neg_dim")
        shape = torch.Size([-1 if position == at else size for position, size in enumerate(self.shape)])
        self._adopt(self._with_tensors(lambda tensor: _one_where_any(tensor, shape), _shape=shape))

    @property
    def _kind(self) -> torch.dtype:
        """The dtype, for a spec that must have one."""
        if self.dtype is None:
            raise TypeError(f"{type(self).__name__} has no dtype")
        return self.dtype

    # Comparison ---------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not isinstance(other, TensorSpec):
            return False
        if (self.shape, self.dtype, self.device, self.domain) != (other.shape, other.dtype, other.device, other.domain):
            return False
        if any(getattr(self, name) != getattr(other, name) for name in self._told):
            return False
        return all(_same(getattr(self, name), getattr(other, name)) for name in self._held)

    __hash__ = None  # type: ignore[assignment]  # specs can change

    def __repr__(self) -> str:
        parts = (f"{name}={getattr(self, name)}" for name in ("shape", "space", "device", "dtype", "domain"))
        return f"{type(self).__name__}({', '.join(parts)})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from shoal.faces.torchrl.specs.stacking import TORCH_FUNCTIONS  # stacking imports this module

        if func not in TORCH_FUNCTIONS:
            return NotImplemented
        return TORCH_FUNCTIONS[func](*args, **(kwargs or {}))


def _one_where_any(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The tensor with size 1 along the dims that may be of any size."""
    for dim, size in enumerate(shape):
        if size < 0 and tensor.shape[dim] != 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool(torch.equal(one, other))
