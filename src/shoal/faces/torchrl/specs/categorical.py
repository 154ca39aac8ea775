"""Categorical: integers from 0 to n - 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.specs.base import TensorSpec
from shoal.faces.torchrl.specs.boxes import CategoricalBox
from shoal.faces.torchrl.specs.dtypes import as_device, as_dtype
from shoal.faces.torchrl.specs.masks import allowed, checked_mask, draw
from shoal.faces.torchrl.specs.shapes import as_size

if TYPE_CHECKING:
    from shoal.faces.torchrl.specs.one_hot import OneHot


class Categorical(TensorSpec):
    """Each element is an integer from 0 to n - 1.

    Args:
        n: The number of choices; -1 when it is not known yet, see ``set_provisional_n``.
        shape: The shape.
        device: The device, torch's default if none is given.
        dtype: The dtype; bools and floats are accepted too.
        mask: Which choices are allowed: bools that can be expanded to ``(*shape, n)``.

    Example:
        >>> Categorical(3).enumerate()
        tensor([0, 1, 2])
    """

    _held = ("mask",)
    _told = ("_n", "_provisional_n")

    def __init__(
        self,
        n: int,
        shape: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str = torch.int64,
        mask: torch.Tensor | None = None,
    ) -> None:
        self._shape = torch.Size([]) if shape is None else as_size(shape)
        self._device = as_device(device)
        self._dtype = as_dtype(dtype, torch.int64)
        self.domain = "discrete"
        self._n = int(n)
        self._provisional_n: int | None = None
        self.space = CategoricalBox(self._n)
        self.mask: torch.Tensor | None = None
        self._settle()
        self.update_mask(mask)

    @property
    def n(self) -> int:
        """The number of choices.

        Raises:
            RuntimeError: The number is not known.
        """
        n = self._n if self._provisional_n is None else self._provisional_n
        if n < 0:
            raise RuntimeError(f"the cardinality of this {type(self).__name__} is undefined: call set_provisional_n(n)")
        return n

    @property
    def _is_open(self) -> bool:
        """Whether the number of choices is still unknown, so that any choice is accepted."""
        return self._n < 0 and self._provisional_n is None

    def set_provisional_n(self, n: int | None) -> None:
        """Say how many choices there are for now, when the spec was made with ``n=-1``."""
        self._provisional_n = n

    def update_mask(self, mask: torch.Tensor | None) -> None:
        """Allow only some choices from now on; None allows all."""
        if mask is not None and self._n < 0:
            raise ValueError("a spec of undefined cardinality takes no mask")
        self.mask = checked_mask(mask, torch.Size([*self.shape, self._n]), self.device)

    def _settle(self) -> None:
        super()._settle()
        # torch.randint is fastest when its defaults are not spelled out.
        self._plain = self.dtype is torch.int64 and not self._elsewhere and not self._any_size

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Random choices, uniform over those that are allowed."""
        if self.mask is not None:
            full = self._full_shape(shape)
            return draw(self.mask, full).to(self.dtype)
        if shape is None and self._plain:
            return torch.randint(self.n, self._shape)
        return torch.randint(self.n, self._full_shape(shape), device=self.device).to(self.dtype)

    def _holds(self, val: torch.Tensor) -> bool:
        if self._is_open:
            return True
        if self.dtype is torch.bool:
            inside = self.n > 1 or not bool(val.any())
        else:
            low, high = torch.aminmax(val)
            inside = low.item() >= 0 and high.item() < self.n
        return inside and (self.mask is None or bool(allowed(self.mask, val).all()))

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        if val.dtype.is_floating_point:
            val = val.round()
        elif val.dtype is torch.bool:
            val = val.long()
        val = (val if self._is_open else val.clamp(0, self.n - 1)).to(self.dtype)
        if self.mask is None:
            return val
        return torch.where(allowed(self.mask, val), val, draw(self.mask, val.shape).to(self.dtype))

    def cardinality(self) -> int:
        """The number of choices."""
        return self.n

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """All choices, as a tensor of shape ``(n, *shape)``.

        Args:
            use_mask: Only those that the mask allows.
        """
        values = torch.arange(self.n, dtype=torch.int64, device=self.device)
        if use_mask and self.mask is not None:
            if self.mask.ndim > 1:
                raise RuntimeError("choices can be listed with a mask only when there is one mask for all elements")
            values = values[self.mask]
        size = self._full_shape(None)
        return values.to(self.dtype).reshape(-1, *[1] * len(size)).expand(-1, *size).clone()

    def index(self, index: torch.Tensor, tensor_to_index: torch.Tensor) -> torch.Tensor:
        """The entries along the last dim of a tensor that the choices point at; a row of choices, into its own row."""
        if index.shape[:-1] == tensor_to_index.shape[:-1] and index.ndim == tensor_to_index.ndim:
            return tensor_to_index.gather(-1, index.long())
        rows = tensor_to_index.expand(*index.shape, tensor_to_index.shape[-1])
        return rows.gather(-1, index.long().unsqueeze(-1)).squeeze(-1)

    def to_one_hot(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """Choices as one-hot vectors of bools."""
        if safe:
            self.assert_is_in(val)
        return torch.nn.functional.one_hot(val.long(), -1 if self._is_open else self.n).bool()

    def to_categorical(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """The choices themselves."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> OneHot:
        """The same choices as one-hot vectors."""
        from shoal.faces.torchrl.specs.one_hot import OneHot  # one_hot imports this module

        return OneHot(self.n, shape=(*self.shape, self.n), device=self.device, mask=self.mask)

    def to_categorical_spec(self) -> Categorical:
        """The spec itself."""
        return self
