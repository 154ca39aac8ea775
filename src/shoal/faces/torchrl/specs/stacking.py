"""torch.stack and its relatives, for specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.specs.composite import Composite
from shoal.faces.torchrl.specs.shapes import wrap_dim
from shoal.faces.torchrl.specs.stacked import Stacked
from shoal.faces.torchrl.specs.stacked_composite import StackedComposite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.faces.torchrl.specs.base import TensorSpec


def stack(specs: Sequence[TensorSpec], dim: int = 0, out: Any = None) -> TensorSpec:
    """Specs of one kind along a new dim: one spec if they are equal, else side by side.

    Leaves must agree in class, dtype, number of dims and device. Composites must agree in shape and device; what they
    hold under the same key may differ in any way.

    Raises:
        RuntimeError: The specs are of different kinds.
        NoSuchDim: There cannot be such a dim.
    """
    specs = list(specs)
    if out is not None:
        raise NotImplementedError("specs are stacked to a new spec: out cannot be given")
    if not specs:
        raise RuntimeError("there are no specs to stack")
    for what, value_of in _MUST_AGREE.items():
        found = [value_of(spec) for spec in specs]
        if any(value != found[0] for value in found):
            raise RuntimeError(f"specs of different {what} cannot be stacked: {found}")
    return side_by_side(specs, wrap_dim(dim, specs[0].ndim + 1, "stack"))


_MUST_AGREE: dict[str, Callable[[TensorSpec], Any]] = {
    "classes": lambda spec: "Composite" if isinstance(spec, Composite) else type(spec).__name__,
    "dtypes": lambda spec: None if isinstance(spec, Composite) else spec.dtype,
    "numbers of dims": lambda spec: spec.ndim,
    "batch sizes": lambda spec: spec.shape if isinstance(spec, Composite) else None,
    "devices": lambda spec: spec.device,
}


def side_by_side(specs: Sequence[Any], dim: int) -> TensorSpec:
    """Specs along a new dim: one spec if they are equal, else side by side, however different they are."""
    first = specs[0]
    if all(spec == first for spec in specs[1:]):
        size = [*first.shape[:dim], len(specs), *first.shape[dim:]]
        return first.unsqueeze(dim).expand(size)  # type: ignore[no-any-return]
    if all(isinstance(spec, Composite) for spec in specs):
        return StackedComposite(*specs, dim=dim)
    return Stacked(*specs, dim=dim)


TORCH_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.stack: stack,
    torch.squeeze: lambda spec, dim=None: spec.squeeze(dim),
    torch.unsqueeze: lambda spec, dim: spec.unsqueeze(dim),
    torch.reshape: lambda spec, shape: spec.reshape(shape),
    torch.flatten: lambda spec, start_dim=0, end_dim=-1: spec.flatten(start_dim, end_dim),
    torch.unflatten: lambda spec, dim, sizes: spec.unflatten(dim, sizes),
    torch.unbind: lambda spec, dim=0: spec.unbind(dim),
}
