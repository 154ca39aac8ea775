"""OneHot: one of n choices, as a vector with a single 1."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from shoal.faces.torchrl.specs.base import CHECK_SPEC_ENCODE, TensorSpec
from shoal.faces.torchrl.specs.boxes import CategoricalBox
from shoal.faces.torchrl.specs.categorical import Categorical
from shoal.faces.torchrl.specs.dtypes import as_device, numpy_dtype
from shoal.faces.torchrl.specs.masks import allowed, checked_mask, draw
from shoal.faces.torchrl.specs.shapes import as_size

# Up to this many choices, their vectors are kept in a table.
_LARGEST_TABLE = 256


class _NoSuchChoice(AssertionError, RuntimeError):
    """A choice that is not between 0 and n - 1."""


class OneHot(TensorSpec):
    """The last dim is a vector of n elements, one of them 1 and the others 0.

    Args:
        n: The number of choices.
        shape: The shape, whose last dim is n; ``(n,)`` if none is given.
        device: The device, torch's default if none is given.
        dtype: The dtype.
        use_register: Number the values that are encoded (strings, say) in the order in which they are first seen.
        mask: Which choices are allowed: bools that can be expanded to ``shape``.

    Example:
        >>> OneHot(3).encode(1)
        tensor([False,  True, False])
    """

    _held = ("mask",)
    _told = ("_n",)
    _event_dims = 1
    # The vectors of all choices, and the same memory as an array; made when first used.
    _table: torch.Tensor | None
    _rows: Any

    def __init__(
        self,
        n: int,
        shape: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = torch.bool,
        use_register: bool = False,
        mask: torch.Tensor | None = None,
    ) -> None:
        self._n = int(n)
        self._shape = torch.Size([self._n]) if shape is None else as_size(shape)
        self._check_shape(self._shape)
        self._device = as_device(device)
        self._dtype = torch.bool if dtype is None else dtype
        self.domain = "discrete"
        self.space = CategoricalBox(self._n)
        self.use_register = use_register
        self._register: dict[Any, int] = {}
        self.mask: torch.Tensor | None = None
        self._settle()
        self.update_mask(mask)

    @property
    def n(self) -> int:
        """The number of choices."""
        return self._n

    def update_mask(self, mask: torch.Tensor | None) -> None:
        """Allow only some choices from now on; None allows all."""
        self.mask = checked_mask(mask, self.shape, self.device)

    def _check_shape(self, shape: torch.Size) -> None:
        if not shape or shape[-1] != self._n:
            raise ValueError(f"the last dim of OneHot's shape is n = {self._n}, got shape {tuple(shape)}")

    def _settle(self) -> None:
        super()._settle()
        self._many = self._full_shape(None)[:-1]
        self._table = self._rows = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None, "_rows": None}

    def clone(self) -> Self:
        """An equal spec with a mask, a space and a register of its own."""
        out = super().clone()
        out._register = dict(self._register)
        return out

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Random one-hot vectors, uniform over those that are allowed."""
        many = self._many if shape is None else self._full_shape(shape)[:-1]
        if self.mask is not None:
            return self._vectors_of(draw(self.mask, many))
        if self._elsewhere:
            return self._vectors_of(torch.randint(self._n, many, device=self.device))
        return self._vectors_of(torch.randint(self._n, many))

    def _vectors_of(self, choice: torch.Tensor) -> torch.Tensor:
        """The one-hot vectors of choices, with memory of their own."""
        if self._n > _LARGEST_TABLE:
            return self._new_vectors(choice)
        if self._table is None:
            self._table = self._new_vectors(torch.arange(self._n, device=self.device))
            has_numpy = not self._elsewhere and numpy_dtype(self.dtype) is not None
            self._rows = self._table.numpy() if has_numpy else None
        if choice.ndim:
            return self._table[choice]
        # A single row would be a view of the table, and numpy copies one at half the cost of torch.
        if self._rows is None:
            return self._table[choice].clone()
        return torch.from_numpy(self._rows[choice.item()].copy())

    def _new_vectors(self, choice: torch.Tensor) -> torch.Tensor:
        blank = torch.zeros((*choice.shape, self._n), dtype=self.dtype, device=self.device)
        return blank.scatter_(-1, choice.unsqueeze(-1), 1)

    def _holds(self, val: torch.Tensor) -> bool:
        choice = self.to_categorical(val)
        # A vector is one-hot if it is the one that the position of its largest element stands for.
        if not torch.equal(self._vectors_of(choice), val):
            return False
        return self.mask is None or bool(allowed(self.mask, choice).all())

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        weights = val.to(torch.float32).clamp(min=0)
        if self.mask is not None:
            weights = weights * self.mask
        anything = torch.ones_like(weights) if self.mask is None else self.mask.to(torch.float32)
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, anything)
        choice = torch.multinomial(weights.reshape(-1, self._n), 1).reshape(weights.shape[:-1])
        return self._vectors_of(choice)

    def encode(self, val: Any, *, ignore_device: bool = False) -> torch.Tensor:
        """Choices, given as integers of any shape, as one-hot vectors.

        Raises:
            AssertionError: A choice is not between 0 and n - 1.
        """
        if self.use_register:
            val = self._registered(val)
        choice = val.long() if isinstance(val, torch.Tensor) else torch.from_numpy(np.array(val, dtype=np.int64))
        vectors = self._encoded(choice)
        if len(self.shape) > 1 and vectors.shape != self.shape and vectors.numel() == self.shape.numel():
            vectors = vectors.reshape(self.shape)
        if ignore_device:
            vectors = vectors.cpu()
        if CHECK_SPEC_ENCODE:
            self.assert_is_in(vectors)
        return vectors

    def _encoded(self, choice: torch.Tensor) -> torch.Tensor:
        if choice.numel() == 1:
            outside = not 0 <= choice.item() < self._n
        else:
            outside = bool(((choice < 0) | (choice >= self._n)).any())
        if outside:
            raise _NoSuchChoice(f"{choice.tolist()} is not among the {self._n} choices of OneHot")
        return self._vectors_of(choice.to(self.device))

    def _registered(self, val: Any) -> int:
        """The number that stands for a value, which may be of any kind."""
        if val not in self._register and len(self._register) >= self._n:
            raise AssertionError(f"{val!r} would be choice {self._n + 1} of {self._n}: {list(self._register)}")
        return self._register.setdefault(val, len(self._register))

    def to_numpy(self, val: torch.Tensor, safe: bool | None = None) -> Any:
        """One-hot vectors as integers."""
        if CHECK_SPEC_ENCODE if safe is None else safe:
            self.assert_is_in(val)
        choice = self.to_categorical(val)
        if self.use_register:
            values = list(self._register)
            return [values[at] for at in choice.reshape(-1).tolist()] if choice.ndim else values[int(choice)]
        return choice.numpy(force=True)

    def cardinality(self) -> int:
        """The number of choices for each vector."""
        return self._n

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """All one-hot vectors, as a tensor of shape ``(n, *shape)``."""
        if use_mask:
            raise NotImplementedError("one-hot vectors are listed without a mask; see to_categorical_spec()")
        size = self._full_shape(None)
        rows = self._vectors_of(torch.arange(self._n, device=self.device))
        return rows.reshape(self._n, *[1] * (len(size) - 1), self._n).expand(self._n, *size).clone()

    def index(self, index: torch.Tensor, tensor_to_index: torch.Tensor) -> torch.Tensor:
        """The entries along the last dim of a tensor that the vectors point at."""
        choice = self.to_categorical(index)
        lead = torch.broadcast_shapes(choice.shape, tensor_to_index.shape[:-1])
        rows = tensor_to_index.expand(*lead, tensor_to_index.shape[-1])
        return rows.gather(-1, choice.expand(lead).unsqueeze(-1))

    def to_categorical(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """One-hot vectors as integers."""
        if safe:
            self.assert_is_in(val)
        return (val.to(torch.int8) if val.dtype is torch.bool else val).argmax(-1)

    def to_categorical_spec(self) -> Categorical:
        """The same choices as integers."""
        return Categorical(self._n, shape=self.shape[:-1], device=self.device, mask=self.mask)

    def to_one_hot(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """The vectors themselves."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> OneHot:
        """The spec itself."""
        return self
