"""StackedComposite: Composites that differ, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict

from shoal.faces.torchrl import fast_td
from shoal.faces.torchrl.specs.composite import Composite
from shoal.faces.torchrl.specs.lazy import SideBySide
from shoal.faces.torchrl.specs.locks import Lockable
from shoal.faces.torchrl.specs.tree import _unravel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.faces.torchrl.specs.named import DimNames


class StackedComposite(SideBySide, Composite):
    """Composites side by side along a dim; ``spec[i]`` is the i-th of them.

    Its keys are those that all members have. Its TensorDicts are lazy stacks if the shapes differ.

    Args:
        *specs: The Composites, all of one shape.
        dim: The dim along which they are stacked.

    Example:
        >>> from shoal.faces.torchrl import Unbounded
        >>> members = [Composite(obs=Unbounded((2,))), Composite(obs=Unbounded((3,)))]
        >>> spec = torch.stack(members, 0)
        >>> spec.rand()[1]["obs"].shape
        torch.Size([3])
    """

    def __init__(self, *specs: Composite, dim: int = 0) -> None:
        Lockable.__init__(self)
        SideBySide.__init__(self, *specs, dim=dim)
        self.data_cls = None
        self.step_mdp_static = False

    # The tree -----------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        first, *others = self._members
        return [name for name in first._names() if all(name in other._names() for other in others)]

    def _child(self, name: str) -> Any:
        children = [member._child(name) for member in self._members]
        if any(child is None for child in children):
            return None
        return self._restack(children, self.stack_dim)

    def set(self, key: Any, spec: Any) -> Any:
        """Set an entry in each member: a spec with the dims of the stack, or a lazy stack of specs."""
        self._check_unlocked()
        parts = [None] * len(self._members) if spec is None else self._spread(spec)
        for member, part in zip(self._members, parts, strict=True):
            member.set(key, part)
        return self

    def _spread(self, spec: Any) -> list[Any]:
        if isinstance(spec, dict):
            spec = Composite(spec, shape=self.shape)
        if spec.shape[: len(self.shape)] != self.shape:
            raise ValueError(f"an entry of shape {tuple(spec.shape)} does not begin with {tuple(self.shape)}")
        return list(spec.unbind(self.stack_dim))

    def _drop(self, name: str) -> None:
        for member in self._members:
            member._drop(name)

    def __delitem__(self, key: Any) -> None:
        for member in self._members:
            del member[key]

    def update(self, other: Any) -> Any:
        """Set all entries of another Composite or dict; nested ones are merged."""
        self._check_unlocked()
        for key, spec in other.items():
            parts = [None] * len(self._members) if spec is None else self._spread(spec)
            for member, part in zip(self._members, parts, strict=True):
                member.update({key: part})
        return self

    def _nodes_below(self) -> Iterator[Lockable]:
        return iter(self._members)

    def __getitem__(self, key: Any) -> Any:
        return self._entry(key) if _unravel(key) is not None else self._indexed(key)

    def empty(self) -> Composite:
        """The members without their entries."""
        return StackedComposite(*(member.empty() for member in self._members), dim=self.stack_dim)

    # What it is ---------------------------------------------------------------------------------------------------

    @property  # type: ignore[misc]  # each member has its own
    def device(self) -> torch.device | None:
        """The device of the members, if they have one in common."""
        return self._common("device")

    @property  # type: ignore[misc]  # each member has its own
    def dtype(self) -> torch.dtype | None:
        """The dtype of the entries, if they have one in common."""
        return self._common("dtype")

    @property  # type: ignore[misc]  # each member has its own
    def names(self) -> DimNames:
        """The names of the dims of the members, None for the dim along which they are stacked."""
        names: DimNames = self._members[0].names
        return [*names[: self.stack_dim], None, *names[self.stack_dim :]]

    def __repr__(self) -> str:
        members = "".join(f"\n    {member!r},".replace("\n", "\n    ") for member in self._members)
        return f"StackedComposite({members}\n    dim={self.stack_dim}, shape={self.shape})"

    # Data ---------------------------------------------------------------------------------------------------------

    def _filled(self, how: str, shape: Any) -> Any:
        extra = 0 if shape is None else 1 if isinstance(shape, int) else len(shape)
        values = [getattr(member, how)(shape) for member in self._members]
        return _stack_data(values, self.stack_dim + extra)

    def _split(self, val: Any) -> list[Any]:
        if not hasattr(val, "unbind"):
            return []
        dim = self.stack_dim + val.ndim - len(self.shape)
        return list(val.unbind(dim)) if 0 <= dim < val.ndim else []

    def project(self, val: Any) -> Any:
        """Project the parts of a TensorDict, in place where they are views of it, and return a stack of them."""
        parts = [member.project(part) for member, part in self._parts_for(val)]
        stacked = _stack_data(parts, self.stack_dim + val.ndim - len(self.shape))
        return val.update(stacked)

    def type_check(self, value: Any, key: Any = None, *, selected_keys: Any = None) -> None:
        """Raise a TypeError unless all entries (or those of these keys) have the dtypes of their specs."""
        if isinstance(value, torch.Tensor):
            self._entry(key).type_check(value, key)
            return
        for member, part in self._parts_for(value):
            member.type_check(part, selected_keys=selected_keys)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """One dict per member, encoded and stacked."""
        if hasattr(val, "batch_size"):
            return val
        pairs = zip(self._members, val, strict=True)
        values = [member.encode(part, ignore_device=ignore_device) for member, part in pairs]
        return _stack_data(values, self.stack_dim)

    def cardinality(self) -> Any:
        """The number of combinations of the values of the members."""
        total = 1
        for member in self._members:
            total = total * member.cardinality()
        return total

    def enumerate(self, use_mask: bool = False) -> Any:
        """All values of the members, stacked; each member must have equally many."""
        values = [member.enumerate(use_mask) for member in self._members]
        return _stack_data(values, self.stack_dim + 1)


def _stack_data(values: list[Any], dim: int) -> Any:
    """TensorDicts stacked along a new dim: densely if that changes nothing, not even a dtype; else lazily."""
    dense = fast_td.stack(values, dim)
    return LazyStackedTensorDict.lazy_stack(values, dim) if dense is None else dense
