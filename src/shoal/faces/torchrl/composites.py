"""make_composite_from_td: a spec from an example."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor

from shoal.faces.torchrl.fast_td import entries_of
from shoal.faces.torchrl.specs import Composite, NonTensor, Unbounded


def make_composite_from_td(
    data: TensorDictBase, *, unsqueeze_null_shapes: bool = True, dynamic_shape: bool = False
) -> Composite:
    """A Composite that contains the TensorDict: Unbounded leaves for tensors, NonTensor leaves for the rest.

    Args:
        data: The example.
        unsqueeze_null_shapes: Make leaves without dims leaves of shape ``(1,)``.
        dynamic_shape: Let the last dim of each leaf be of any size.

    Example:
        >>> from tensordict import TensorDict
        >>> make_composite_from_td(TensorDict({"obs": torch.zeros(3)}))["obs"].shape
        torch.Size([3])
    """
    inside = entries_of(data)
    entries = {
        name: _spec_of(value, data.batch_size, unsqueeze_null_shapes, dynamic_shape)
        for name, value in (data if inside is None else inside).items()
    }
    return Composite(entries, shape=data.batch_size, device=data.device)


def _spec_of(value: Any, batch_size: torch.Size, unsqueeze_null_shapes: bool, dynamic_shape: bool) -> Any:
    if is_non_tensor(value) or not isinstance(value, (torch.Tensor, TensorDictBase)):
        example = getattr(value, "data", value) if is_non_tensor(value) else value
        return NonTensor(shape=getattr(value, "batch_size", batch_size), example_data=example)
    if isinstance(value, TensorDictBase):
        return make_composite_from_td(value, unsqueeze_null_shapes=unsqueeze_null_shapes, dynamic_shape=dynamic_shape)
    shape = value.shape or torch.Size([1] if unsqueeze_null_shapes else [])
    if dynamic_shape and len(shape) > len(batch_size):
        shape = torch.Size([*shape[:-1], -1])
    return Unbounded(shape, dtype=value.dtype, device=value.device)
