"""Binary: elements that are 0 or 1."""

from __future__ import annotations

from typing import Any, Self

import torch

from shoal.faces.torchrl.specs import shapes
from shoal.faces.torchrl.specs.categorical import Categorical
from shoal.faces.torchrl.specs.shapes import as_size


class Binary(Categorical):
    """Each element is 0 or 1.

    Args:
        n: The length of the last dim.
        shape: The shape; ``(n,)`` if none is given.
        device: The device, torch's default if none is given.
        dtype: The dtype.

    Raises:
        TypeError: Neither n nor a shape is given.
        ValueError: The last dim of the shape is not n.

    Example:
        >>> Binary(4).is_in(Binary(4).rand())
        True
    """

    def __init__(
        self,
        n: int | None = None,
        shape: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str = torch.int8,
    ) -> None:
        if shape is None:
            if n is None:
                raise TypeError("Binary needs n, or a shape")
            shape = (n,)
        size = as_size(shape)
        if n is not None and (not size or size[-1] != n):
            raise ValueError(f"the last dim of Binary's shape is n = {n}, got shape {tuple(size)}")
        super().__init__(2, shape=size, device=device, dtype=dtype)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The specs along a dim that is not the last."""
        if shapes.wrap_dim(dim, len(self.shape), "unbind") == len(self.shape) - 1:
            raise ValueError("unbind: the last dim of Binary stays as it is")
        return super().unbind(dim)

    def __getitem__(self, index: Any) -> Any:
        lead = max(len(self.shape) - 1, 0)
        return self._map(shapes.index_op(index, self.shape[:lead]), lead)
