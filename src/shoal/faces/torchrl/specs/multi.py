"""MultiCategorical and MultiOneHot: several choices at once, each with its own number of outcomes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from shoal.faces.torchrl.specs.base import CHECK_SPEC_ENCODE, TensorSpec
from shoal.faces.torchrl.specs.boxes import BoxList
from shoal.faces.torchrl.specs.categorical import Categorical
from shoal.faces.torchrl.specs.dtypes import as_device
from shoal.faces.torchrl.specs.masks import allowed, checked_mask, draw
from shoal.faces.torchrl.specs.one_hot import OneHot
from shoal.faces.torchrl.specs.shapes import as_size, concrete, dims_used, explicit_index, fits

if TYPE_CHECKING:
    from collections.abc import Sequence


class MultiCategorical(TensorSpec):
    """Each element along the last dim is an integer below its own bound.

    Args:
        nvec: How many outcomes each element has.
        shape: The shape, that of ``nvec`` if none is given.
        device: The device, torch's default if none is given.
        dtype: The dtype.
        mask: Which outcomes are allowed: the masks of the elements, concatenated along the last dim.
        remove_singleton: Drop the last dim of random values when there is a single element.

    Example:
        >>> MultiCategorical((3, 2)).project(torch.tensor([9, -1]))
        tensor([2, 0])
    """

    _held = ("_nvec", "mask")
    _event_dims = 1

    def __init__(
        self,
        nvec: Sequence[int] | torch.Tensor | Any,
        shape: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = torch.int64,
        mask: torch.Tensor | None = None,
        remove_singleton: bool = True,
    ) -> None:
        self._device = as_device(device)
        self._dtype = torch.int64 if dtype is None else dtype
        self.domain = "discrete"
        counts = torch.as_tensor(nvec, dtype=torch.int64, device=self.device)
        # The numbers of outcomes in one row, where all rows have the same.
        self._counts = counts.reshape(1) if counts.ndim == 0 else counts
        self._shape = self._counts.shape if shape is None else as_size(shape)
        self._check_shape(self._shape)
        self._nvec = self._counts.expand(concrete(self._shape))
        self.remove_singleton = remove_singleton
        self.mask: torch.Tensor | None = None
        self._settle()
        self.update_mask(mask)

    @property
    def nvec(self) -> torch.Tensor:
        """How many outcomes each element has, in the shape of the spec."""
        return self._nvec

    def _check_shape(self, shape: torch.Size) -> None:
        if shape[-1:] != self._counts.shape[-1:]:
            raise ValueError(f"{self._counts.shape[-1]} numbers of outcomes for a spec of shape {tuple(shape)}")

    def _in_shape(self, shape: torch.Size) -> Self:
        return self._with_tensors(lambda tensor: tensor, _shape=shape, _nvec=self._counts.expand(concrete(shape)))

    def _settle(self) -> None:
        super()._settle()
        counts = self._nvec
        while counts.ndim > 1 and bool((counts == counts[:1]).all()):
            counts = counts[0]
        self._counts = counts
        self.space = BoxList.from_nvec(counts)
        self._drops_last = self.remove_singleton and tuple(self.shape) == (1,)

    def update_mask(self, mask: torch.Tensor | None) -> None:
        """Allow only some outcomes from now on; None allows all."""
        if mask is not None and self._counts.ndim > 1:
            raise ValueError("a mask needs the same numbers of outcomes in all rows")
        self.mask = checked_mask(mask, torch.Size([*self.shape[:-1], int(self._counts.sum())]), self.device)

    def _masks(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        masks: tuple[torch.Tensor, ...] = mask.split(self._counts.tolist(), -1)
        return masks

    def split(self) -> list[Categorical]:
        """One spec per element along the last dim."""
        masks = [None] * len(self._flat_counts()) if self.mask is None else self._masks(self.mask)
        return [
            Categorical(n, shape=self.shape[:-1], device=self.device, dtype=self._kind, mask=mask)
            for n, mask in zip(self._flat_counts(), masks, strict=True)
        ]

    def __getitem__(self, index: Any) -> MultiCategorical:
        """The spec of some elements; the last dim can be indexed too, and is kept as 1 for a single element."""
        parts = explicit_index(index, self.shape)
        is_whole = bool(parts) and isinstance(parts[-1], slice) and parts[-1] == slice(None)
        if sum(dims_used(part) for part in parts) < len(self.shape) or parts[-1] is None or is_whole:
            rows: MultiCategorical = super().__getitem__(parts[:-1] if is_whole else index)
            return rows
        counts = self._nvec[parts]
        return MultiCategorical(
            counts.reshape(counts.shape or 1),
            device=self.device,
            dtype=self.dtype,
            mask=None if self.mask is None else self._mask_at(self.mask, parts),
            remove_singleton=self.remove_singleton,
        )

    def _mask_at(self, mask: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
        """The concatenated masks of some elements, for an index that reaches the last dim."""
        *lead, last = parts
        masks, chosen = self._masks(mask), torch.arange(self.shape[-1])[last]
        if chosen.ndim:
            return torch.cat([masks[at] for at in chosen.tolist()], -1)[tuple(lead)]
        own = masks[int(chosen)][tuple(lead)]
        return own if own.ndim == 1 else own.flatten(-2)

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Random outcomes, uniform over those that are allowed."""
        size = self._full_shape(shape)
        if self.mask is None:
            part = torch.rand(size, dtype=torch.float64, device=self.device)
            drawn = torch.minimum((part * self._nvec).long(), self._nvec - 1)
        else:
            drawn = torch.stack([draw(mask, size[:-1]) for mask in self._masks(self.mask)], -1)
        drawn = drawn.to(self.dtype)
        return drawn.squeeze(-1) if self._drops_last else drawn

    def is_in(self, val: Any) -> bool:
        """Whether this is a value of the spec, or a batch of values: dtype, shape and contents are checked."""
        if self._drops_last and isinstance(val, torch.Tensor) and not fits(val.shape, self.shape):
            val = val.unsqueeze(-1)
        return super().is_in(val)

    def _holds(self, val: torch.Tensor) -> bool:
        if not bool(((val >= 0) & (val < self._nvec)).all()):
            return False
        if self.mask is None:
            return True
        columns = zip(self._masks(self.mask), val.unbind(-1), strict=True)
        return all(bool(allowed(mask, column).all()) for mask, column in columns)

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        val = val.round() if val.dtype.is_floating_point else val
        val = torch.clamp(val.long(), torch.zeros_like(self._nvec), self._nvec - 1)
        if self.mask is not None:
            columns = zip(self._masks(self.mask), val.unbind(-1), strict=True)
            mended = [torch.where(allowed(mask, column), column, draw(mask, column.shape)) for mask, column in columns]
            val = torch.stack(mended, -1)
        return val.to(self.dtype)

    def cardinality(self) -> torch.Tensor:
        """The number of combinations, as a tensor."""
        return self._counts.prod()

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """All combinations, the last element changing fastest."""
        ranges = [torch.arange(int(n), device=self.device) for n in self._counts.reshape(-1)]
        if use_mask and self.mask is not None:
            if self.mask.ndim > 1:
                raise RuntimeError("values can be listed with a mask only when there is one mask for all rows")
            ranges = [values[mask] for values, mask in zip(ranges, self._masks(self.mask), strict=True)]
        rows = torch.cartesian_prod(*ranges).reshape(-1, *self._counts.shape).to(self.dtype)
        size = self._full_shape(None)
        return rows.reshape(-1, *[1] * (len(size) - self._counts.ndim), *self._counts.shape).expand(-1, *size).clone()

    def index(self, index: torch.Tensor, tensor_to_index: torch.Tensor) -> torch.Tensor:
        """The entries along the last dim of a tensor that the outcomes point at, each of them into the whole tensor."""
        if self._drops_last and not fits(index.shape, self.shape):
            return self.index(index.unsqueeze(-1), tensor_to_index).squeeze(-1)
        lead = torch.broadcast_shapes(index.shape[:-1], tensor_to_index.shape[:-1])
        rows = tensor_to_index.expand(*lead, tensor_to_index.shape[-1])
        return rows.gather(-1, index.long().expand(*lead, index.shape[-1]))

    def to_one_hot(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """Outcomes as one-hot vectors of bools, concatenated along the last dim."""
        if safe:
            self.assert_is_in(val)
        counts = self._flat_counts()
        columns = zip(val.unbind(-1), counts, strict=True)
        return torch.cat([torch.nn.functional.one_hot(column.long(), n) for column, n in columns], -1).bool()

    def to_one_hot_spec(self) -> MultiOneHot:
        """The same outcomes as one-hot vectors."""
        counts = self._flat_counts()
        shape = (*self.shape[:-1], sum(counts))
        return MultiOneHot(counts, shape=shape, device=self.device, mask=self.mask)

    def to_categorical(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """The outcomes themselves."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> MultiCategorical:
        """The spec itself."""
        return self

    def _flat_counts(self) -> list[int]:
        if self._counts.ndim > 1:
            raise ValueError(
                f"one-hot vectors need the same numbers of outcomes in all rows, got {self._counts.tolist()}"
            )
        return [int(n) for n in self._counts]


class _WrongNumber(ValueError, RuntimeError):
    """There are more or fewer choices than the spec has vectors; errors of shapes are of both classes in torch."""


class MultiOneHot(TensorSpec):
    """Several one-hot vectors, concatenated along the last dim.

    Args:
        nvec: The length of each vector.
        shape: The shape, whose last dim is the sum of ``nvec``; ``(sum(nvec),)`` if none is given.
        device: The device, torch's default if none is given.
        dtype: The dtype.
        use_register: Not supported for several vectors: must be False.
        mask: Which choices are allowed: bools that can be expanded to ``shape``.

    Example:
        >>> MultiOneHot((3, 2)).encode([2, 1]).long()
        tensor([0, 0, 1, 0, 1])
    """

    _held = ("mask",)
    _told = ("nvec",)
    _event_dims = 1

    def __init__(
        self,
        nvec: Sequence[int],
        shape: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = torch.bool,
        use_register: bool = False,
        mask: torch.Tensor | None = None,
    ) -> None:
        if use_register:
            raise NotImplementedError("MultiOneHot encodes integers only")
        self.nvec = tuple(int(n) for n in nvec)
        self._shape = torch.Size([sum(self.nvec)]) if shape is None else as_size(shape)
        self._check_shape(self._shape)
        self._device = as_device(device)
        self._dtype = torch.bool if dtype is None else dtype
        self.domain = "discrete"
        self.mask: torch.Tensor | None = None
        self.update_mask(mask)

    def update_mask(self, mask: torch.Tensor | None) -> None:
        """Allow only some choices from now on; None allows all."""
        self.mask = checked_mask(mask, self.shape, self.device)
        self._settle()

    def _check_shape(self, shape: torch.Size) -> None:
        if not shape or shape[-1] != sum(self.nvec):
            raise ValueError(f"the last dim of MultiOneHot's shape is {sum(self.nvec)}, got shape {tuple(shape)}")

    def _settle(self) -> None:
        super()._settle()
        self.space = BoxList.from_nvec(torch.tensor(self.nvec))
        masks = [None] * len(self.nvec) if self.mask is None else self.mask.split(self.nvec, -1)
        self._vectors = [
            OneHot(n, shape=(*self.shape[:-1], n), device=self.device, dtype=self.dtype, mask=mask)
            for n, mask in zip(self.nvec, masks, strict=True)
        ]

    def split(self) -> list[OneHot]:
        """One spec per vector."""
        return list(self._vectors)

    def rand(self, shape: Any = None) -> torch.Tensor:
        """Random one-hot vectors, uniform over those that are allowed."""
        return torch.cat([part.rand(shape) for part in self._vectors], -1)

    def _holds(self, val: torch.Tensor) -> bool:
        return all(part.is_in(vector) for part, vector in self._pairs(val))

    def _mend(self, val: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.project(vector) for part, vector in self._pairs(val)], -1)

    def _pairs(self, val: torch.Tensor) -> list[tuple[OneHot, torch.Tensor]]:
        return list(zip(self._vectors, val.split(self.nvec, -1), strict=True))

    def encode(self, val: Any, *, ignore_device: bool = False) -> torch.Tensor:
        """Choices, given as integers along the last dim, as one-hot vectors."""
        choices = val if isinstance(val, torch.Tensor) else torch.from_numpy(np.array(val, dtype=np.int64))
        if choices.shape[-1:] != (len(self.nvec),):
            got = f"choices of shape {tuple(choices.shape)}"
            raise _WrongNumber(f"MultiOneHot of widths {self.nvec} encodes {len(self.nvec)} choices, got {got}")
        columns = zip(self._vectors, choices.unbind(-1), strict=True)
        vectors = torch.cat([part._encoded(column.long()) for part, column in columns], -1)
        if vectors.shape != self.shape and vectors.numel() == math.prod(self.shape):
            vectors = vectors.reshape(self.shape)
        if CHECK_SPEC_ENCODE:
            self.assert_is_in(vectors)
        return vectors.cpu() if ignore_device else vectors

    def to_numpy(self, val: torch.Tensor, safe: bool | None = None) -> Any:
        """One-hot vectors as integers."""
        return self.to_categorical(val, CHECK_SPEC_ENCODE if safe is None else safe).numpy(force=True)

    def cardinality(self) -> torch.Tensor:
        """The number of combinations, as a tensor."""
        return torch.tensor(self.nvec, device=self.device).prod()

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """All combinations, the last vector changing fastest."""
        return self.to_categorical_spec().to_one_hot(self.to_categorical_spec().enumerate(use_mask)).to(self.dtype)

    def index(self, index: torch.Tensor, tensor_to_index: torch.Tensor) -> torch.Tensor:
        """The entries along the last dim of a tensor that the vectors point at, one per vector."""
        starts = torch.tensor([0, *self.nvec[:-1]], device=index.device).cumsum(0)
        at = self.to_categorical(index) + starts
        return tensor_to_index.expand(*at.shape[:-1], tensor_to_index.shape[-1]).gather(-1, at)

    def to_categorical(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """One-hot vectors as integers, one per vector along the last dim."""
        if safe:
            self.assert_is_in(val)
        return torch.stack([vector.to(torch.int8).argmax(-1) for vector in val.split(self.nvec, -1)], -1)

    def to_categorical_spec(self) -> MultiCategorical:
        """The same choices as integers."""
        shape = (*self.shape[:-1], len(self.nvec))
        return MultiCategorical(self.nvec, shape=shape, device=self.device, mask=self.mask)

    def to_one_hot(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """The vectors themselves."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> MultiOneHot:
        """The spec itself."""
        return self
