"""Stacked: leaves that differ in bounds, shape or class, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.nesting import nested_tensor
from shoal.faces.torchrl.specs.lazy import SideBySide, stacked_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.faces.torchrl.specs.base import TensorSpec


class Stacked(SideBySide):
    """Leaves side by side along a dim; ``spec[i]`` is the i-th of them.

    Values are stacked too: to a tensor where the shapes are equal, else to a nested tensor.

    Args:
        *specs: The leaves. They may differ in all things.
        dim: The dim along which they lie.

    Example:
        >>> from shoal.faces.torchrl import Unbounded
        >>> spec = torch.stack([Unbounded((2,)), Unbounded((3,))], 0)
        >>> spec.shape, spec[1].shape
        (torch.Size([2, -1]), torch.Size([3]))
    """

    def __init__(self, *specs: TensorSpec, dim: int = 0) -> None:
        if not specs:
            raise ValueError("Stacked needs at least one spec")
        self._members = list(specs)
        self.stack_dim = dim % (min(spec.ndim for spec in specs) + 1)
        self.space = None

    @property
    def shape(self) -> torch.Size:
        """The shape, -1 where the members differ."""
        return stacked_shape(self._members, self.stack_dim)

    @property
    def dtype(self) -> torch.dtype | None:  # type: ignore[override]
        """The dtype of the members, if they have one in common."""
        return self._common("dtype")

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The device of the members, if they have one in common."""
        return self._common("device")

    @property
    def domain(self) -> str | None:  # type: ignore[override]
        """The domain of the members, if they have one in common."""
        return self._common("domain")  # type: ignore[no-any-return]

    def _common(self, name: str) -> Any:
        values = {getattr(member, name) for member in self._members}
        return values.pop() if len(values) == 1 else None

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

    def _split(self, val: torch.Tensor) -> list[torch.Tensor] | None:
        """The part of a value for each member; None when it has not as many parts."""
        if isinstance(val, (list, tuple)):
            parts = list(val)
        elif val.is_nested:
            parts = list(val.unbind(0))
        else:
            dim = self.stack_dim - len(self.shape)
            parts = list(val.unbind(dim)) if -val.ndim <= dim else []
        return parts if len(parts) == len(self._members) else None

    def is_in(self, val: Any) -> bool:
        """Whether each part of a value (a tensor, a nested tensor or a list) is in its member."""
        parts = self._split(val) if isinstance(val, (torch.Tensor, list, tuple)) else None
        if parts is None:
            return False
        return all(member.is_in(part) for member, part in zip(self._members, parts, strict=True))

    def why_not(self, value: Any) -> str:
        """Which part is not in its member, and why."""
        parts = self._split(value) if isinstance(value, (torch.Tensor, list, tuple)) else None
        if parts is None:
            return f"got {type(value).__name__} that has not {len(self._members)} parts"
        for at, (member, part) in enumerate(zip(self._members, parts, strict=True)):
            if not member.is_in(part):
                return f"part {at}: {member.why_not(part)}"
        return "nothing is wrong"

    def project(self, val: Any) -> Any:
        """The value itself if it is in the spec, else its parts projected and stacked again."""
        return val if self.is_in(val) else self._each(val, lambda member, part: member.project(part))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """One value per member, encoded and stacked."""
        if isinstance(val, torch.Tensor):
            return val
        return self._each(list(val), lambda member, part: member.encode(part, ignore_device=ignore_device))

    def _each(self, val: Any, change: Callable[[TensorSpec, Any], Any]) -> Any:
        parts = self._split(val)
        if parts is None:
            raise RuntimeError(f"{self.why_not(val)}: {self!r}")
        return self._stack_values([change(member, part) for member, part in zip(self._members, parts, strict=True)])

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The parts of a value as numpy: a tuple, as they may differ in shape."""
        parts = self._split(val)
        if parts is None:
            raise RuntimeError(f"{self.why_not(val)}: {self!r}")
        return tuple(member.to_numpy(part, safe) for member, part in zip(self._members, parts, strict=True))

    def type_check(self, value: Any, key: Any = None) -> None:
        """Raise a TypeError unless each part has the dtype of its member."""
        for member, part in zip(self._members, self._split(value) or [], strict=False):
            member.type_check(part, key)

    def clone(self) -> Stacked:
        """A spec that shares nothing with this one."""
        return Stacked(*(member.clone() for member in self._members), dim=self.stack_dim)

    def to(self, dest: torch.dtype | torch.device | str | int) -> Any:
        """The members on another device or with another dtype."""
        members = [member.to(dest) for member in self._members]
        if all(new is old for new, old in zip(members, self._members, strict=True)):
            return self
        return Stacked(*members, dim=self.stack_dim)

    def enumerate(self, use_mask: bool = False) -> Any:
        """All values of the members, stacked, when there are equally many."""
        values = [member.enumerate(use_mask) for member in self._members]
        return torch.stack(values, self.stack_dim + 1)

    def __getitem__(self, index: Any) -> Any:
        return self._indexed(index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stacked):
            return False
        return self.stack_dim == other.stack_dim and self._members == other._members

    __hash__ = None  # type: ignore[assignment]  # specs can change

    def __repr__(self) -> str:
        classes = ", ".join(type(member).__name__ for member in self._members)
        return f"Stacked({classes}, dim={self.stack_dim}, shape={self.shape})"
