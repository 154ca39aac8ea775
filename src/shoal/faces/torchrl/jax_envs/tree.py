"""Nested JAX data as TensorDicts, and back; tensors and arrays are the same memory (DLPack) where JAX allows it.

Torch can do little with unsigned integers of more than a byte, which random keys are made of: it is shown signed
ones with the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import torch

from shoal.faces.torchrl.env.keys import Path, key_of
from shoal.faces.torchrl.specs import Composite, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.faces.torchrl.specs import TensorSpec

_SEEN_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def tensor_of(array: Any, device: torch.device | None = None) -> torch.Tensor:
    """An array as a tensor."""
    tensor = torch.from_dlpack(array)
    tensor = tensor.view(_SEEN_AS.get(tensor.dtype, tensor.dtype))
    return tensor if device is None else tensor.to(device)


def array_of(tensor: torch.Tensor, dtype: Any = None) -> Any:
    """A tensor as an array; unsigned again, where the array it came from was."""
    array = jnp.from_dlpack(tensor.detach().cpu().contiguous())
    if dtype is None or array.dtype == dtype:
        return array
    if array.dtype.kind == "i" and dtype.kind == "u" and array.dtype.itemsize == dtype.itemsize:
        return jax.lax.bitcast_convert_type(array, dtype)
    return array.astype(dtype)


class Tree:
    """The shape of nested JAX data: where its leaves are, and what they are.

    Args:
        example: Data, or what ``jax.eval_shape`` says about it, for a single env.
        name: The name of a leaf that is not nested in anything.
    """

    def __init__(self, example: Any, name: str) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(example)
        self.paths: list[Path] = [tuple(_word(part) for part in path) or (name,) for path, _ in leaves]
        self.leaves: list[Any] = [leaf for _, leaf in leaves]

    def tensors(self, data: Any, size: torch.Size, device: torch.device | None) -> list[tuple[Path, torch.Tensor]]:
        """The leaves of a batch, by path, with the dims of ``size`` in front."""
        rows = (tensor_of(leaf, device) for leaf in jax.tree_util.tree_leaves(data))
        return [
            (path, row.reshape((*size, *leaf.shape)))
            for path, row, leaf in zip(self.paths, rows, self.leaves, strict=True)
        ]

    def data(self, get: Callable[[Path], torch.Tensor]) -> Any:
        """A batch as nested JAX data, with a single batch dim."""
        leaves = [
            array_of(get(path).reshape(-1, *leaf.shape), leaf.dtype)
            for path, leaf in zip(self.paths, self.leaves, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self._structure, leaves)

    def spec(self, describe: Callable[[Path, Any], TensorSpec] | None = None) -> Composite:
        """The spec of a single env's TensorDict of such data."""
        spec = Composite()
        for path, leaf in zip(self.paths, self.leaves, strict=True):
            spec[key_of(path)] = unbounded(path, leaf) if describe is None else describe(path, leaf)
        return spec


def unbounded(path: Path, leaf: Any) -> TensorSpec:
    """The spec of a leaf about which nothing is known but its shape and dtype."""
    dtype = torch.from_dlpack(jnp.zeros((1,), leaf.dtype)).dtype
    return Unbounded(torch.Size(leaf.shape), dtype=_SEEN_AS.get(dtype, dtype))


def _word(part: Any) -> str:
    """A part of a path as a name: that of a field or of a key, or the place in a list."""
    for attribute in ("name", "key", "idx"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)
