"""The space of a spec: the part of it that says which values there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(eq=False)
class ContinuousBox:
    """Everything between two bounds.

    Attributes:
        low: The lower bounds, of the shape of the spec.
        high: The upper bounds.
    """

    low: torch.Tensor
    high: torch.Tensor

    @property
    def minimum(self) -> torch.Tensor:
        """The lower bounds."""
        return self.low

    @property
    def maximum(self) -> torch.Tensor:
        """The upper bounds."""
        return self.high

    def to(self, device: torch.device | str) -> ContinuousBox:
        """The box on another device."""
        return ContinuousBox(self.low.to(device), self.high.to(device))

    def clone(self) -> ContinuousBox:
        """A box with bounds of its own."""
        return ContinuousBox(self.low.clone(), self.high.clone())

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.low, self.high))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ContinuousBox)
            and self.low.dtype == other.low.dtype
            and torch.equal(self.low, other.low)
            and torch.equal(self.high, other.high)
        )

    def __repr__(self) -> str:
        return f"ContinuousBox(low={_short(self.low)}, high={_short(self.high)})"


@dataclass(frozen=True)
class CategoricalBox:
    """A number of choices.

    Attributes:
        n: How many; -1 when that is not known yet.
    """

    n: int

    def to(self, device: torch.device | str) -> CategoricalBox:
        """The same box: there is nothing on a device."""
        return self

    def clone(self) -> CategoricalBox:
        """A copy."""
        return CategoricalBox(self.n)


@dataclass(frozen=True)
class BoxList:
    """One box per choice, for a spec with several choices."""

    boxes: list[CategoricalBox | BoxList]

    @classmethod
    def from_nvec(cls, nvec: torch.Tensor) -> BoxList:
        """One box per element along the last dim, nested when there are more dims."""
        if nvec.ndim > 1:
            return cls([cls.from_nvec(part) for part in nvec.unbind(-1)])
        return cls([CategoricalBox(int(n)) for n in nvec])

    def to(self, device: torch.device | str) -> BoxList:
        """The same boxes: there is nothing on a device."""
        return self

    def clone(self) -> BoxList:
        """A copy."""
        return BoxList([box.clone() for box in self.boxes])

    def __iter__(self) -> Iterator[CategoricalBox | BoxList]:
        return iter(self.boxes)

    def __len__(self) -> int:
        return len(self.boxes)


Box = ContinuousBox | CategoricalBox | BoxList


def _short(bounds: torch.Tensor) -> str:
    """Bounds as one number if they are all the same, else as a shape."""
    if (
        not bounds.is_meta
        and bounds.numel()
        and math.isfinite(float(bounds.reshape(-1)[0]))
        and bool((bounds == bounds.reshape(-1)[0]).all())
    ):
        return f"{bounds.reshape(-1)[0].item():g}"
    return f"tensor of {tuple(bounds.shape)}"
