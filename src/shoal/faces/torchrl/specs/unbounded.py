"""Unbounded: any values of a dtype."""

from __future__ import annotations

from typing import Any

import torch

from shoal.faces.torchrl.specs.base import TensorSpec
from shoal.faces.torchrl.specs.boxes import ContinuousBox
from shoal.faces.torchrl.specs.dtypes import as_device, as_dtype, is_float
from shoal.faces.torchrl.specs.shapes import as_size, concrete, fits


class Unbounded(TensorSpec):
    """A tensor of a shape and a dtype, with any values.

    A spec of floats is an UnboundedContinuous, any other an UnboundedDiscrete.

    Args:
        shape: The shape, or the length of a vector.
        device: The device, torch's default if none is given.
        dtype: The dtype, torch's default float if none is given.
        domain: ``"continuous"`` or ``"discrete"``; follows from the dtype if not given.

    Example:
        >>> Unbounded((-1, 3)).is_in(torch.zeros(7, 3))
        True
    """

    def __init__(
        self,
        shape: Any = (1,),
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> None:
        self._shape = as_size(shape)
        self._device = as_device(device)
        self._dtype = as_dtype(dtype, self._default_dtype())
        self._domain = domain
        self._settle()

    @classmethod
    def _default_dtype(cls) -> torch.dtype:
        return torch.get_default_dtype()

    def _settle(self) -> None:
        super()._settle()
        kind = self._kind
        continuous = is_float(kind)
        self.domain = self._domain or ("continuous" if continuous else "discrete")
        if type(self) in (Unbounded, UnboundedContinuous, UnboundedDiscrete):
            self.__class__ = UnboundedDiscrete if self.domain == "discrete" else UnboundedContinuous
        low, high = _limits(kind)
        size = concrete(self.shape)
        bounds = torch.tensor([low, high], dtype=self.dtype, device=self.device)
        self.space = ContinuousBox(bounds[0].expand(size), bounds[1].expand(size))
        self._plain = self.dtype is torch.get_default_dtype() and not self._elsewhere

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Standard normal floats, or any integers."""
        size = self._full_shape(shape)
        if self._plain:
            return torch.randn(size)
        if is_float(self._kind):
            return torch.randn(size, dtype=self.dtype, device=self.device)
        low, high = _limits(self._kind)
        if self.dtype in (torch.int64, torch.uint64):
            return torch.empty(size, dtype=torch.int64, device=self.device).random_(-(2**63), None).to(self.dtype)
        return torch.randint(int(low), int(high) + 1, size, device=self.device).to(self.dtype)

    def _holds(self, val: torch.Tensor) -> bool:
        return True

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        val = val.to(self.dtype)
        return val if fits(val.shape, self.shape) else val.reshape(self.shape)


class UnboundedContinuous(Unbounded):
    """An Unbounded of floats."""


class UnboundedDiscrete(Unbounded):
    """An Unbounded of integers."""

    @classmethod
    def _default_dtype(cls) -> torch.dtype:
        return torch.int64


def _limits(dtype: torch.dtype) -> tuple[float, float]:
    """The lowest and the highest value of a dtype."""
    if dtype is torch.bool:
        return False, True
    info = torch.finfo(dtype) if is_float(dtype) else torch.iinfo(dtype)
    return info.min, info.max
