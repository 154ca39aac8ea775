"""Names of batch dims, which follow the dims through operations on the shape of a Composite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.errors import SpecError
from shoal.faces.torchrl.specs.reshaping import Reshaping
from shoal.faces.torchrl.specs.shapes import dims_used, explicit_index, wrap_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

DimNames = list[str | None]


class NamedDims(Reshaping):
    """A spec whose dims can have names; ``reshape``, ``flatten`` and ``unflatten`` give dims without names."""

    # None while no dim has a name.
    _dims: DimNames | None = None

    @property
    def names(self) -> DimNames:
        """The names of the dims, None where a dim has none."""
        return [None] * self.ndim if self._dims is None else list(self._dims)

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        names: DimNames = [None] * self.ndim if value is None else list(value)
        if len(names) != self.ndim:
            raise SpecError(f"one name for each of the {self.ndim} dims, got {names}")
        self._dims = names if any(name is not None for name in names) else None
        for part in self._named_parts():
            part.names = [*names, *part.names[self.ndim :]]

    def _named_parts(self) -> list[NamedDims]:
        """The nested specs, which begin with the same dims."""
        return []

    def refine_names(self, *names: Any) -> Self:
        """Give names to dims that have none, in place, and return the spec.

        Args:
            *names: One per dim, the present one where there is one; ``...`` stands for dims that stay as they are.

        Raises:
            RuntimeError: A dim has another name.
        """
        given = list(names)
        if given.count(...) == 1:
            at, kept = given.index(...), self.ndim - len(given) + 1
            given[at : at + 1] = self.names[at : at + kept]
        pairs = zip(given, self.names, strict=False)
        if len(given) != self.ndim or any(old not in (None, new) for new, old in pairs):
            raise RuntimeError(f"dims named {self.names} cannot be refined to {list(names)}")
        self.names = given
        return self

    # Operations that keep names -----------------------------------------------------------------------------------

    def expand(self, *shape: Any) -> Self:
        """The spec with more dims in front, and dims of size 1 enlarged."""
        out = super().expand(*shape)
        new = [None] * (out.ndim - self.ndim)
        return self._renamed(out, [*new, *self.names])

    def unsqueeze(self, dim: int) -> Self:
        """The spec with a new dim of size 1."""
        out, at = super().unsqueeze(dim), wrap_dim(dim, self.ndim + 1, "unsqueeze")
        return self._renamed(out, [*self.names[:at], None, *self.names[at:]])

    def squeeze(self, dim: int | None = None) -> Self:
        """The spec without its dims of size 1, or without this one if its size is 1."""
        out = super().squeeze(dim)
        if out is self:
            return self
        gone = [at for at, size in enumerate(self.shape) if size == 1] if dim is None else [dim % self.ndim]
        return self._renamed(out, [name for at, name in enumerate(self.names) if at not in gone])

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The specs along a dim."""
        outs, at = super().unbind(dim), wrap_dim(dim, self.ndim, "unbind")
        return tuple(self._renamed(out, [*self.names[:at], *self.names[at + 1 :]]) for out in outs)

    def __getitem__(self, index: Any) -> Any:
        out = super().__getitem__(index)
        return out if self._dims is None else self._renamed(out, _names_at(index, self, out.ndim))

    def _renamed(self, out: Self, names: DimNames) -> Self:
        if self._dims is not None:
            out.names = names
        return out


def _names_at(index: Any, spec: NamedDims, ndim: int) -> DimNames:
    """The names of the dims that an index leaves; none where tensors mix dims up."""
    parts = explicit_index(index, spec.shape)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if tensors and (tensors[0].ndim > 1 or sum(isinstance(part, (int, torch.Tensor)) for part in parts) > 1):
        return [None] * ndim
    names: DimNames = []
    dim = 0
    for part in parts:
        if isinstance(part, (slice, torch.Tensor)):
            names.append(spec.names[dim])
        elif part is None or isinstance(part, bool):
            names.append(None)
        dim += dims_used(part)
    return names + spec.names[dim:]
