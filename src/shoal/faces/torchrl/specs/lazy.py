"""What Stacked and StackedComposite share: members that differ, side by side along one dim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.specs import shapes
from shoal.faces.torchrl.specs.base import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.specs.shapes import ShapeOp


def stacked_shape(members: Sequence[TensorSpec], dim: int) -> torch.Size:
    """The dims that all members have, -1 where their sizes differ, with the number of members at ``dim``."""
    sizes = zip(*(member.shape for member in members), strict=False)
    common = [size[0] if len(set(size)) == 1 else -1 for size in sizes]
    return torch.Size([*common[:dim], len(members), *common[dim:]])


class SideBySide(TensorSpec):
    """Members stacked along ``stack_dim``; an operation on any other dim is applied to each of them."""

    _members: list[Any]
    stack_dim: int

    def __init__(self, *specs: Any, dim: int = 0) -> None:
        if not specs:
            raise ValueError(f"{type(self).__name__} needs at least one spec")
        self._members = list(specs)
        self.stack_dim = shapes.wrap_dim(dim, min(spec.ndim for spec in specs) + 1, "stack")

    @property
    def dim(self) -> int:
        """The dim along which the members are stacked."""
        return self.stack_dim

    @property  # type: ignore[misc]  # it follows from those of the members
    def shape(self) -> torch.Size:
        """The shape of the members, -1 where they differ, with the number of members at ``stack_dim``."""
        return stacked_shape(self._members, self.stack_dim)

    def _restack(self, members: Sequence[Any], dim: int) -> Any:
        """Members side by side again, or one spec if they have become equal."""
        from shoal.faces.torchrl.specs.stacking import side_by_side  # stacking builds on this module

        return side_by_side(members, dim)

    # Values: a part for each member -------------------------------------------------------------------------------

    def _split(self, val: Any) -> list[Any]:
        """The parts of a value along the stack dim; none if it has no such dim."""
        raise NotImplementedError

    def _pairs(self, val: Any) -> list[tuple[Any, Any]] | None:
        """Each member with its part of a value; None if the number of parts is wrong."""
        parts = self._split(val)
        return list(zip(self._members, parts, strict=True)) if len(parts) == len(self._members) else None

    def is_in(self, val: Any) -> bool:
        """Whether each part of a value is in its member."""
        pairs = self._pairs(val)
        return pairs is not None and all(member.is_in(part) for member, part in pairs)

    def why_not(self, value: Any) -> str:
        """Which part is not in its member, and why."""
        pairs = self._pairs(value)
        if pairs is None:
            return f"got {type(value).__name__} that has not {len(self._members)} parts"
        wrong = ((at, member, part) for at, (member, part) in enumerate(pairs) if not member.is_in(part))
        return next((f"part {at}: {member.why_not(part)}" for at, member, part in wrong), "nothing is wrong")

    def _parts_for(self, val: Any) -> list[tuple[Any, Any]]:
        pairs = self._pairs(val)
        if pairs is None:
            raise RuntimeError(f"{self.why_not(val)}: {self!r}")
        return pairs

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The parts of a value as numpy, in a tuple because their shapes may differ."""
        return tuple(member.to_numpy(part, safe) for member, part in self._parts_for(val))

    # Members ------------------------------------------------------------------------------------------------------

    def clone(self) -> Any:
        """An equal spec with members of its own; unlocked, if it can be locked."""
        return type(self)(*(member.clone() for member in self._members), dim=self.stack_dim)

    def to(self, dest: torch.dtype | torch.device | str | int) -> Any:
        """The members on another device or with another dtype; the spec itself when that changes nothing."""
        members = [member.to(dest) for member in self._members]
        if all(new is old for new, old in zip(members, self._members, strict=True)):
            return self
        return type(self)(*members, dim=self.stack_dim)

    def _common(self, name: str) -> Any:
        """The value of an attribute that all members share; None if they differ."""
        values = {getattr(member, name) for member in self._members}
        return values.pop() if len(values) == 1 else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SideBySide) or type(other) is not type(self):
            return False
        return self.stack_dim == other.stack_dim and self._members == other._members

    __hash__ = None

    # Shapes -------------------------------------------------------------------------------------------------------

    def _map(self, op: ShapeOp, lead: int) -> Any:
        if self.stack_dim < lead:
            raise NotImplementedError(f"specs stacked along dim {self.stack_dim} cannot be reshaped across it")
        members = [member._map(op, lead) for member in self._members]
        return self._restack(members, self.stack_dim + members[0].ndim - self._members[0].ndim)

    def expand(self, *shape: Any) -> Any:
        """Add dims in front, and enlarge dims of size 1."""
        target = list(shapes.varargs_size(shape))
        at = self.stack_dim + len(target) - len(self.shape)
        if at < self.stack_dim or target[at] not in (len(self._members), -1):
            raise ValueError(f"specs stacked to shape {tuple(self.shape)} cannot be expanded to {tuple(target)}")
        del target[at]
        return self._restack([member.expand(target) for member in self._members], at)

    def unsqueeze(self, dim: int) -> Any:
        """A new dim of size 1."""
        at = shapes.wrap_dim(dim, len(self.shape) + 1, "unsqueeze")
        if at <= self.stack_dim:
            return self._restack([member.unsqueeze(at) for member in self._members], self.stack_dim + 1)
        return self._restack([member.unsqueeze(at - 1) for member in self._members], self.stack_dim)

    def squeeze(self, dim: int | None = None) -> Any:
        """Without the dims of size 1, or without this one if its size is 1."""
        dims = [shapes.wrap_dim(dim, len(self.shape), "squeeze")] if dim is not None else list(range(len(self.shape)))
        out: TensorSpec = self
        for at in reversed([at for at in dims if self.shape[at] == 1 and at != self.stack_dim]):
            parts, dim = (out._members, out.stack_dim) if isinstance(out, SideBySide) else ([out], 0)
            members = [part.squeeze(at - (at > dim)) for part in parts]
            out = self._restack(members, dim - (at < dim))
        return out

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """The specs along a dim."""
        at = shapes.wrap_dim(dim, len(self.shape), "unbind")
        if at == self.stack_dim:
            return tuple(self._members)
        if self.shape[at] < 0:
            raise ValueError(f"dim {dim} has another size in each member: the specs cannot be unbound along it")
        columns = zip(*(member.unbind(at - (at > self.stack_dim)) for member in self._members), strict=True)
        return tuple(self._restack(column, self.stack_dim - (at < self.stack_dim)) for column in columns)

    def _indexed(self, index: Any) -> Any:
        """The members that an index picks along the stack dim, each indexed with the rest of the index."""
        parts = list(index) if isinstance(index, tuple) else [index]
        used = sum(part is not None and part is not Ellipsis for part in parts)
        if Ellipsis in [part if part is Ellipsis else None for part in parts]:
            at = next(position for position, part in enumerate(parts) if part is Ellipsis)
            parts[at : at + 1] = [slice(None)] * (len(self.shape) - used)
        before, position = self._until_stack_dim(parts)
        inner = tuple(parts[:position] + parts[position + 1 :])
        picked = _pick(self._members, parts[position] if position < len(parts) else slice(None))
        if isinstance(picked, list):
            members = [member[inner] if inner else member for member in picked]
            return self._restack(members, before)
        return picked[inner] if inner else picked

    def _until_stack_dim(self, parts: list[Any]) -> tuple[int, int]:
        """How many dims the index leaves in front of the stack dim, and which of its parts is for the stack dim."""
        left = dim = 0
        for position, part in enumerate(parts):
            if part is None:
                left += 1
                continue
            if dim == self.stack_dim:
                return left, position
            dim += 1
            left += not isinstance(part, int)
        return left + self.stack_dim - dim, len(parts)

    def make_neg_dim(self, dim: int) -> None:
        """Let a dim be of any size in each member, in place."""
        at = shapes.wrap_dim(dim, len(self.shape), "make_neg_dim")
        if at == self.stack_dim:
            raise ValueError("the stack dim has as many positions as there are members")
        for member in self._members:
            member.make_neg_dim(at - (at > self.stack_dim))

    def clear_device_(self) -> Any:
        """Let the entries of the members be on any device."""
        for member in self._members:
            member.clear_device_()
        return self


def _pick(members: list[Any], part: Any) -> Any:
    """One member, or a list of them."""
    if isinstance(part, int):
        if not -len(members) <= part < len(members):
            raise IndexError(f"index {part} is out of bounds for {len(members)} stacked specs")
        return members[part]
    if isinstance(part, slice):
        return members[part]
    positions = torch.as_tensor(list(part) if isinstance(part, range) else part)
    if positions.dtype is torch.bool:
        positions = positions.nonzero().squeeze(-1)
    if positions.ndim == 0:
        return _pick(members, int(positions))
    return [_pick(members, position) for position in positions.tolist()]
