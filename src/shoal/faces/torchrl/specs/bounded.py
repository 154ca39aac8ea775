"""Bounded: everything between a low and a high bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from shoal.faces.torchrl.specs.base import TensorSpec
from shoal.faces.torchrl.specs.boxes import ContinuousBox
from shoal.faces.torchrl.specs.dtypes import as_device, as_dtype, is_float
from shoal.faces.torchrl.specs.shapes import as_size, concrete

if TYPE_CHECKING:
    from collections.abc import Callable

# The largest float64 that fits into an int64.
_LARGEST = float(2**63 - 1024)


class _Bounds(NamedTuple):
    """The bounds of a box when it was last looked at, and the same in the form that values are compared with."""

    of_box: tuple[torch.Tensor, torch.Tensor]
    # They grow when a tensor is changed in place; None for inference tensors, whose changes torch does not count.
    versions: tuple[int, int] | None
    low: torch.Tensor
    high: torch.Tensor
    # The bounds as two numbers, when they are the same for all elements and not infinitely far apart.
    range: tuple[Any, Any] | None


class Bounded(TensorSpec):
    """Each element lies between its two bounds, both inclusive.

    A spec of floats is a BoundedContinuous, any other a BoundedDiscrete. The bounds are those of ``space``, where they
    can be changed.

    Args:
        low: The lower bound, or a tensor of them.
        high: The upper bound, or a tensor of them.
        shape: The shape, if the bounds do not have it.
        device: The device, torch's default if none is given.
        dtype: The dtype, torch's default float if none is given.
        domain: ``"continuous"`` or ``"discrete"``; follows from the dtype if not given.

    Raises:
        RuntimeError: There is no shape, or the bounds cannot be expanded to it.

    Example:
        >>> Bounded(-1, 1, shape=(2,)).project(torch.tensor([5.0, 0.5]))
        tensor([1.0000, 0.5000])
    """

    _told = ("space",)
    space: ContinuousBox
    _seen: _Bounds | None = None

    def __init__(
        self,
        low: Any,
        high: Any,
        shape: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        domain: str | None = None,
    ) -> None:
        self._device = as_device(device)
        self._dtype = as_dtype(dtype, self._default_dtype())
        low = torch.as_tensor(low, dtype=self.dtype, device=self.device)
        high = torch.as_tensor(high, dtype=self.dtype, device=self.device)
        if shape is None:
            if not low.ndim and not high.ndim:
                raise RuntimeError("Bounded needs a shape when its bounds are numbers")
            shape = torch.broadcast_shapes(low.shape, high.shape)
        self._shape = as_size(shape)
        size = concrete(self._shape)
        try:
            self.space = ContinuousBox(low.expand(size).clone(), high.expand(size).clone())
        except RuntimeError as error:
            bounds = f"{tuple(low.shape)} and {tuple(high.shape)}"
            raise RuntimeError(f"bounds of shapes {bounds} for a spec of shape {tuple(self.shape)}") from error
        self._domain = domain
        self._settle()

    @classmethod
    def _default_dtype(cls) -> torch.dtype:
        return torch.get_default_dtype()

    @property
    def low(self) -> torch.Tensor:
        """The lower bounds; to change them, set ``space.low``."""
        return self.space.low

    @property
    def high(self) -> torch.Tensor:
        """The upper bounds; to change them, set ``space.high``."""
        return self.space.high

    def _settle(self) -> None:
        super()._settle()
        continuous = is_float(self._kind)
        self.domain = self._domain or ("continuous" if continuous else "discrete")
        if type(self) in (Bounded, BoundedContinuous, BoundedDiscrete):
            self.__class__ = BoundedDiscrete if self.domain == "discrete" else BoundedContinuous
        self._seen = None

    def _bounds(self) -> _Bounds:
        """The bounds in the dtype and on the device of the spec, read from the box again once they have changed."""
        of_box = low, high = self.space.low, self.space.high
        seen = self._seen
        if (
            seen is not None
            and low is seen.of_box[0]
            and high is seen.of_box[1]
            and (seen.versions is None or seen.versions == (low._version, high._version))
        ):
            return seen
        versions = None if low.is_inference() or high.is_inference() else (low._version, high._version)
        low, high = (bound.to(device=self._device, dtype=self._dtype) for bound in of_box)
        self._seen = _Bounds(of_box, versions, low, high, _one_range(low, high))
        return self._seen

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Values drawn uniformly between the bounds; normal or exponential ones where a bound is infinite."""
        size = self._full_shape(shape)
        _, _, low, high, ends = self._bounds()
        if self._kind.is_floating_point:
            if ends is None:
                return _rand_floats(low, high, size)
            return torch.empty(size, dtype=self.dtype, device=self.device).uniform_(*ends)
        if ends is not None:
            first, last = int(ends[0]), int(ends[1])
            return torch.randint(first, min(last, 2**63 - 2) + 1, size, device=self.device).to(self.dtype)
        low_n, high_n = low.double(), high.double()
        drawn = low_n + torch.rand(size, dtype=torch.float64, device=self.device) * (high_n - low_n + 1)
        return torch.minimum(drawn.floor().clamp(max=_LARGEST).to(self.dtype), high)

    def _holds(self, val: torch.Tensor) -> bool:
        _, _, low, high, _ = self._bounds()
        return bool(((val >= low) & (val <= high)).all())

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        _, _, low, high, _ = self._bounds()
        if not is_float(self._kind):
            # Clamped before it is cast, so that 300 becomes the largest uint8 and not 44.
            wide = torch.float64 if val.dtype.is_floating_point else torch.int64
            val, low, high = val.to(wide), low.to(wide), high.to(wide)
            return torch.clamp(val, low, high).to(self.dtype)
        return torch.clamp(val.to(self.dtype), low, high)

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor], **fields: Any) -> Self:
        return super()._with_tensors(change, space=ContinuousBox(change(self.low), change(self.high)), **fields)

    def _in_shape(self, shape: torch.Size) -> Self:
        return self._with_tensors(lambda bound: _expanded(bound, shape), _shape=shape)

    def _as_dtype(self, dtype: torch.dtype) -> Self:
        return self._with_tensors(lambda bound: bound.to(dtype), _dtype=dtype)

    def _adopt(self, other: Self) -> None:
        box = self.space
        super()._adopt(other)
        # Whoever holds the box may be about to change its bounds.
        box.low, box.high = self.space
        self.space = box

    def cardinality(self) -> float:
        """Infinity, which is what TorchRL says of integers as well."""
        return float("inf")


class BoundedContinuous(Bounded):
    """A Bounded of floats."""


class BoundedDiscrete(Bounded):
    """A Bounded of integers."""

    @classmethod
    def _default_dtype(cls) -> torch.dtype:
        return torch.int64


def _one_range(low: torch.Tensor, high: torch.Tensor) -> tuple[Any, Any] | None:
    if low.is_meta or not low.numel() or not high.numel():
        return None
    first, last = low.reshape(-1)[0], high.reshape(-1)[0]
    same = bool((low == first).all()) and bool((high == last).all())
    if not same or (is_float(low.dtype) and not bool((last - first).isfinite())):
        return None
    return first.item(), last.item()


def _expanded(bound: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The bounds expanded to a new shape.

    Those that cannot be are left as they are: who sets another shape sets other bounds as well, in any order.
    """
    try:
        return bound.expand(concrete(shape))
    except RuntimeError:
        return bound


def _rand_floats(low: torch.Tensor, high: torch.Tensor, size: torch.Size) -> torch.Tensor:
    part = torch.rand(size, dtype=low.dtype, device=low.device)
    # Not low + part * (high - low): the difference of two large bounds can be infinite.
    drawn = torch.clamp(low * (1 - part) + high * part, low, high)
    if bool(drawn.isfinite().all()):
        return drawn
    tail = torch.empty_like(part).exponential_()
    above, below = low + tail, high - tail
    endless = torch.where(low.isfinite(), above, torch.where(high.isfinite(), below, torch.randn_like(part)))
    return torch.where(low.isfinite() & high.isfinite(), drawn, endless)
