"""torch.stack and its relatives, for specs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.faces.torchrl.specs.base import TensorSpec
from shoal.faces.torchrl.specs.composite import Composite
from shoal.faces.torchrl.specs.stacked import Stacked
from shoal.faces.torchrl.specs.stacked_composite import StackedComposite


def stack(specs: Sequence[TensorSpec], dim: int = 0, out: Any = None) -> TensorSpec:
    """Specs of one kind along a new dim: one spec if they are equal, else side by side.

    Leaves are of one class, dtype, number of dims and device. Composites are of one shape and device; what they have
    under the same key may be of any kind.

    Raises:
        RuntimeError: The specs are of different kinds.
    """
    specs = list(specs)
    if out is not None:
        raise NotImplementedError("specs are stacked to a new spec: out cannot be given")
    if not specs:
        raise RuntimeError("there are no specs to stack")
    composites = [isinstance(spec, Composite) for spec in specs]
    for what, found in (
        ("classes", composites if any(composites) else [_kind(spec) for spec in specs]),
        ("dtypes", [None] if any(composites) else [spec.dtype for spec in specs]),
        ("numbers of dims", [spec.ndim for spec in specs]),
        ("devices", [spec.device for spec in specs]),
        ("batch sizes", [spec.shape if is_composite else None for spec, is_composite in zip(specs, composites)]),
    ):
        if any(value != found[0] for value in found):
            names = [type(spec).__name__ for spec in specs] if what == "classes" else found
            raise RuntimeError(f"specs of different {what} cannot be stacked: {names}")
    return side_by_side(specs, dim % (specs[0].ndim + 1))


def _kind(spec: TensorSpec) -> Any:
    return type(spec)


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
