"""Bounded: everything between a low and a high bound."""

from __future__ import annotations

from typing import Any, Self

import torch

from shoal.faces.torchrl.specs.base import TensorSpec
from shoal.faces.torchrl.specs.boxes import ContinuousBox
from shoal.faces.torchrl.specs.dtypes import as_device, as_dtype, is_float
from shoal.faces.torchrl.specs.shapes import as_size, concrete

# The largest float64 that is an int64.
_LARGEST = float(2**63 - 1024)


class Bounded(TensorSpec):
    """Each element lies between its two bounds, both of them allowed.

    A spec of floats is a BoundedContinuous, any other a BoundedDiscrete.

    Args:
        low: The lower bound, or a tensor of them.
        high: The upper bound, or a tensor of them.
        shape: The shape, if the bounds do not have it.
        device: The device, torch's default if none is given.
        dtype: The dtype, torch's default float if none is given.
        domain: ``"continuous"`` or ``"discrete"``, by dtype if not given.

    Raises:
        RuntimeError: There is no shape, or the bounds do not have it.

    Example:
        >>> Bounded(-1, 1, shape=(2,)).project(torch.tensor([5.0, 0.5]))
        tensor([1.0000, 0.5000])
    """

    _held = ("low", "high")
    low: torch.Tensor
    high: torch.Tensor

    def __init__(
        self,
        low: Any,
        high: Any,
        shape: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> None:
        self.device = as_device(device)
        self.dtype = as_dtype(dtype, self._default_dtype())
        low = torch.as_tensor(low, dtype=self.dtype, device=self.device)
        high = torch.as_tensor(high, dtype=self.dtype, device=self.device)
        if shape is None:
            if not low.ndim and not high.ndim:
                raise RuntimeError("Bounded needs a shape when its bounds are numbers")
            shape = torch.broadcast_shapes(low.shape, high.shape)
        self.shape = as_size(shape)
        size = concrete(self.shape)
        try:
            self.low, self.high = low.expand(size).clone(), high.expand(size).clone()
        except RuntimeError as error:
            bounds = f"{tuple(low.shape)} and {tuple(high.shape)}"
            raise RuntimeError(f"bounds of shapes {bounds} for a spec of shape {tuple(self.shape)}") from error
        self._domain = domain
        self._settle()

    @classmethod
    def _default_dtype(cls) -> torch.dtype:
        return torch.get_default_dtype()

    def _settle(self) -> None:
        super()._settle()
        self.space = ContinuousBox(self.low, self.high)
        continuous = is_float(self._kind)
        if type(self) in (Bounded, BoundedContinuous, BoundedDiscrete):
            self.__class__ = BoundedContinuous if continuous else BoundedDiscrete
        self.domain = self._domain or ("continuous" if continuous else "discrete")
        self._range = self._one_range()

    def _one_range(self) -> tuple[Any, Any] | None:
        """The bounds as two numbers, when they are the same for all elements and not infinitely far apart."""
        if self.low.is_meta or not self.low.numel():
            return None
        low, high = self.low.reshape(-1)[0], self.high.reshape(-1)[0]
        same = bool((self.low == low).all()) and bool((self.high == high).all())
        if not same or (is_float(self._kind) and not bool((high - low).isfinite())):
            return None
        return low.item(), high.item()

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Values drawn evenly between the bounds; normal or exponential ones where a bound is infinite."""
        size = self._full_shape(shape)
        if self.dtype is not None and self.dtype.is_floating_point:
            if self._range is None:
                return self._rand_floats(size)
            return torch.empty(size, dtype=self.dtype, device=self.device).uniform_(*self._range)
        if self._range is not None:
            low, high = self._range
            return torch.randint(low, min(high, 2**63 - 2) + 1, size, device=self.device).to(self.dtype)
        low_n, high_n = self.low.double(), self.high.double()
        drawn = low_n + torch.rand(size, dtype=torch.float64, device=self.device) * (high_n - low_n + 1)
        return torch.minimum(drawn.floor().clamp(max=_LARGEST).to(self.dtype), self.high)

    def _rand_floats(self, size: torch.Size) -> torch.Tensor:
        part = torch.rand(size, dtype=self.dtype, device=self.device)
        # Not low + part * (high - low): the difference of two large bounds is infinite.
        drawn = torch.clamp(self.low * (1 - part) + self.high * part, self.low, self.high)
        if bool(drawn.isfinite().all()):
            return drawn
        tail = torch.empty_like(part).exponential_()
        above, below = self.low + tail, self.high - tail
        endless = torch.where(
            self.low.isfinite(), above, torch.where(self.high.isfinite(), below, torch.randn_like(part))
        )
        return torch.where(self.low.isfinite() & self.high.isfinite(), drawn, endless)

    def _holds(self, val: torch.Tensor) -> bool:
        return bool(((val >= self.low) & (val <= self.high)).all())

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        low, high = self.low, self.high
        if not is_float(self._kind):
            # Clamped as what it is, so that 300 becomes the highest uint8 and not 44.
            wide = torch.float64 if val.dtype.is_floating_point else torch.int64
            val, low, high = val.to(wide), low.to(wide), high.to(wide)
            return torch.clamp(val, low, high).to(self.dtype)
        return torch.clamp(val.to(self.dtype), low, high)

    def _as_dtype(self, dtype: torch.dtype) -> Self:
        return type(self)(self.low.to(dtype), self.high.to(dtype), shape=self.shape, device=self.device, dtype=dtype)

    def cardinality(self) -> float:
        """Infinitely many."""
        return float("inf")


class BoundedContinuous(Bounded):
    """A Bounded of floats."""


class BoundedDiscrete(Bounded):
    """A Bounded of integers."""

    @classmethod
    def _default_dtype(cls) -> torch.dtype:
        return torch.int64
