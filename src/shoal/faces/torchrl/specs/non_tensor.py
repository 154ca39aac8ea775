"""NonTensor: an entry that is not a tensor, such as a string."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from shoal.faces.torchrl.specs.base import TensorSpec
from shoal.faces.torchrl.specs.shapes import as_size, fits


class NonTensor(TensorSpec):
    """Any Python value.

    Args:
        shape: The batch dims of the entry. The default is ``(1,)``; a single value has ``()``.
        device: The device of the TensorDict entry, if any.
        dtype: Not used.
        example_data: What ``rand``, ``zero`` and ``one`` return.
        batched: Return a stack of values, one per element, rather than one value for all.
        feature_dims: How many of the last dims belong to the value rather than to the batch.

    Example:
        >>> NonTensor(shape=(), example_data="abc").zero().data
        'abc'
    """

    _told = ("example_data", "batched", "feature_dims")

    def __init__(
        self,
        shape: Any = (1,),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        example_data: Any = None,
        batched: bool = False,
        feature_dims: int | None = None,
    ) -> None:
        self._shape = as_size(shape)
        self._device = None if device is None else torch.device(device)
        self._dtype = dtype
        self.domain = None
        self.space = None
        self.example_data = example_data
        self.batched = batched
        self.feature_dims = feature_dims
        self._settle()

    def rand(self, shape: Any = None) -> Any:
        """The example."""
        size = self._full_shape(shape)
        if self.feature_dims:
            size = size[: len(size) - self.feature_dims]
        if not self.batched or not size:
            return NonTensorData(data=self.example_data, batch_size=size, device=self.device)
        one = NonTensorData(data=self.example_data, device=self.device)
        stack: Any = one
        for dim in reversed(size):
            stack = NonTensorStack(*[stack.clone() for _ in range(dim)])
        return stack

    def zero(self, shape: Any = None) -> Any:
        """The example."""
        return self.rand(shape)

    def one(self, shape: Any = None) -> Any:
        """The example."""
        return self.rand(shape)

    def is_in(self, val: Any) -> bool:
        """Whether this is not a tensor; data with batch dims must have those of the spec."""
        if isinstance(val, (NonTensorData, NonTensorStack)):
            size = self.shape[: len(self.shape) - (self.feature_dims or 0)]
            return fits(val.shape, size)
        return not isinstance(val, (torch.Tensor, TensorDictBase))

    def why_not(self, value: Any) -> str:
        """What keeps a value out of the spec, in a few words."""
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        return f"got {type(value).__name__}{shape}, expected non-tensor data of shape {tuple(self.shape)}"

    def project(self, val: Any) -> Any:
        """The value itself: there is nothing to mend."""
        return val

    def type_check(self, value: Any, key: Any = None) -> None:
        """Do nothing: there is no dtype to check."""

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The value as an entry of a TensorDict."""
        if isinstance(val, (NonTensorData, NonTensorStack)):
            return val
        return NonTensorData(data=val, batch_size=self._full_shape(None), device=self.device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The plain Python value."""
        return val.tolist() if isinstance(val, (NonTensorData, NonTensorStack)) else val

    def to(self, dest: torch.dtype | torch.device | str | int) -> Any:
        """The spec on another device; a dtype changes nothing."""
        return self if isinstance(dest, torch.dtype) else super().to(dest)
