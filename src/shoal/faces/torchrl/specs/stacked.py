"""Stacked: leaves that differ in bounds, shape or class, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.faces.torchrl.nesting import nested_tensor
from shoal.faces.torchrl.specs.lazy import SideBySide

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.faces.torchrl.specs.base import TensorSpec


class Stacked(SideBySide):
    """Leaves side by side along a dim; ``spec[i]`` is the i-th of them.

    Values are stacked too: into a tensor if their shapes are equal, else into a nested tensor.

    Args:
        *specs: The leaves. They may differ in every respect.
        dim: The dim along which they are stacked.

    Example:
        >>> from shoal.faces.torchrl import Unbounded
        >>> spec = torch.stack([Unbounded((2,)), Unbounded((3,))], 0)
        >>> spec.shape, spec[1].shape
        (torch.Size([2, -1]), torch.Size([3]))
    """

    @property
    def space(self) -> None:  # type: ignore[override]
        """None: each member has a space of its own."""
        return None

    @property  # type: ignore[misc]  # each member has its own
    def dtype(self) -> torch.dtype | None:
        """The dtype of the members, if they have one in common."""
        return self._common("dtype")

    @property  # type: ignore[misc]  # each member has its own
    def device(self) -> torch.device | None:
        """The device of the members, if they have one in common."""
        return self._common("device")

    @property
    def domain(self) -> str | None:  # type: ignore[override]
        """The domain of the members, if they have one in common."""
        return self._common("domain")  # type: ignore[no-any-return]

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Random values of the members, stacked."""
        return self._stack_values([member.rand(shape) for member in self._members])

    def zero(self, shape: Any = None) -> torch.Tensor:
        """Zeros of the members, stacked."""
        return self._stack_values([member.zero(shape) for member in self._members])

    def one(self, shape: Any = None) -> torch.Tensor:
        """Ones of the members, stacked."""
        return self._stack_values([member.one(shape) for member in self._members])

    def _stack_values(self, values: list[torch.Tensor]) -> torch.Tensor:
        extra = values[0].ndim - self._members[0].ndim
        if len({(value.shape, value.dtype) for value in values}) == 1:
            return torch.stack(values, self.stack_dim + extra)
        if len({(value.ndim, value.dtype) for value in values}) == 1 and self.stack_dim + extra == 0:
            return nested_tensor(values)
        raise RuntimeError(
            f"{self!r} has members of different kinds: take spec[i] and stack values in a lazy TensorDict"
        )

    def _split(self, val: Any) -> list[Any]:
        if isinstance(val, (list, tuple)):
            return list(val)
        if not isinstance(val, torch.Tensor):
            return []
        dim = 0 if val.is_nested else self.stack_dim - len(self.shape)
        return list(val.unbind(dim)) if dim >= -val.ndim else []

    def project(self, val: Any) -> Any:
        """The value itself if it is in the spec, else its parts projected and stacked again."""
        return val if self.is_in(val) else self._each(val, lambda member, part: member.project(part))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """One value per member, encoded and stacked."""
        if isinstance(val, torch.Tensor):
            return val
        return self._each(list(val), lambda member, part: member.encode(part, ignore_device=ignore_device))

    def _each(self, val: Any, change: Callable[[TensorSpec, Any], Any]) -> Any:
        return self._stack_values([change(member, part) for member, part in self._parts_for(val)])

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The parts of a value as numpy: in one array if their shapes are equal, else in a tuple."""
        parts = super().to_numpy(val, safe)
        dim = self.stack_dim + (val.ndim - len(self.shape) if isinstance(val, torch.Tensor) else 0)
        forms = {np.shape(part) for part in parts}
        return np.stack(parts, dim) if len(forms) == 1 and dim <= len(forms.pop()) else parts

    def type_check(self, value: Any, key: Any = None) -> None:
        """Raise a TypeError unless each part has the dtype of its member."""
        for member, part in self._parts_for(value):
            member.type_check(part, key)

    def enumerate(self, use_mask: bool = False) -> Any:
        """All values of the members, stacked; each member must have equally many."""
        values = [member.enumerate(use_mask) for member in self._members]
        return torch.stack(values, self.stack_dim + 1)

    def __getitem__(self, index: Any) -> Any:
        return self._indexed(index)

    def __repr__(self) -> str:
        classes = ", ".join(type(member).__name__ for member in self._members)
        return f"Stacked({classes}, dim={self.stack_dim}, shape={self.shape})"
