"""Transforms of pictures in plain torch; all but ToTensorImage expect the channels before the picture's own dims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from shoal.errors import ArgumentError
from shoal.faces.torchrl.transforms.keyed import KeyTransform, bounded, unbounded

if TYPE_CHECKING:
    from shoal.faces.torchrl.specs import TensorSpec
    from shoal.faces.torchrl.transforms.base import Keys

# How bright red, green and blue look to the eye.
_WEIGHTS = (0.2989, 0.587, 0.114)
_SMOOTH = ("bilinear", "bicubic")


class _PictureTransform(KeyTransform):
    def __init__(self, in_keys: Keys | None, out_keys: Keys | None) -> None:
        super().__init__(in_keys=["pixels"] if in_keys is None else in_keys, out_keys=out_keys)

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return bounded(leaf, self._apply_transform)


class ToTensorImage(_PictureTransform):
    """Pictures the way torch expects them: channels first, floats between 0 and 1.

    Args:
        from_int: Whether values are divided by 255; None divides all but floats.
        unsqueeze: Whether a dim of size 1 is put before the channels.
        dtype: The dtype, torch's default float if none is given.
        in_keys: The pictures with the channels last, ``"pixels"`` by default.
        out_keys: Where the results are written; in place by default.
        shape_tolerant: Whether the dims of pictures whose last dim is not 3 stay in place; values are still converted.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import ToTensorImage
        >>> picture = torch.full((6, 8, 3), 255, dtype=torch.uint8)
        >>> image = ToTensorImage()(TensorDict({"pixels": picture}))["pixels"]
        >>> image.shape, image.max()
        (torch.Size([3, 6, 8]), tensor(1.))
    """

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        *,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        shape_tolerant: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.from_int = from_int
        self.unsqueeze = unsqueeze
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.shape_tolerant = shape_tolerant

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        scaled = not value.is_floating_point() if self.from_int is None else self.from_int
        if not self.shape_tolerant or value.shape[-1] == 3:
            value = value.movedim(-1, -3)
        value = value.to(self.dtype)
        value = value / 255 if scaled else value
        value = value.unsqueeze(-4) if self.unsqueeze else value
        return value.contiguous()


class GrayScale(_PictureTransform):
    """RGB pictures turned grey: one channel instead of three.

    Args:
        in_keys: The pictures, ``"pixels"`` by default.
        out_keys: Where the results are written; in place by default.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import GrayScale
        >>> GrayScale()(TensorDict({"pixels": torch.ones(3, 6, 8)}))["pixels"].shape
        torch.Size([1, 6, 8])
    """

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__(in_keys, out_keys)

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        if value.shape[-3] != 3:
            raise ArgumentError(
                f"GrayScale: expected three channels before the picture's dims, got {tuple(value.shape)}"
            )
        red, green, blue = (value.narrow(-3, at, 1) * weight for at, weight in enumerate(_WEIGHTS))
        return (red + green + blue).to(value.dtype)


class Resize(_PictureTransform):
    """Pictures resized to a given size.

    Args:
        w: The size of the picture's first dim.
        h: The size of the second, ``w`` if not given.
        interpolation: ``"bilinear"``, ``"bicubic"``, ``"nearest"``, ``"nearest-exact"`` or ``"area"``.
        in_keys: The pictures, ``"pixels"`` by default.
        out_keys: Where the results are written; in place by default.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import Resize
        >>> Resize(3, 4)(TensorDict({"pixels": torch.ones(3, 6, 8)}))["pixels"].shape
        torch.Size([3, 3, 4])
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        interpolation: str = "bilinear",
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        mode = getattr(interpolation, "value", interpolation)
        if mode not in ("bilinear", "bicubic", "nearest", "nearest-exact", "area"):
            raise ArgumentError(f"Resize: unknown interpolation {interpolation!r}")
        self.w = int(w)
        self.h = int(w if h is None else h)
        self.interpolation = mode

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        if value.shape[-2:] == (self.w, self.h):
            return value
        flat = value.reshape(-1, *value.shape[-3:])
        is_float = value.is_floating_point()
        flat = flat if is_float else flat.to(torch.float32)
        smooth = self.interpolation in _SMOOTH
        resized = functional.interpolate(
            flat,
            size=(self.w, self.h),
            mode=self.interpolation,
            align_corners=False if smooth else None,
            antialias=smooth,
        )
        if not is_float:
            limits = torch.iinfo(value.dtype)
            resized = resized.round().clamp(limits.min, limits.max).to(value.dtype)
        return resized.reshape(*value.shape[:-2], self.w, self.h)

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        # Cubic curves overshoot the values that they pass through.
        change = unbounded if self.interpolation == "bicubic" else bounded
        return change(leaf, self._apply_transform)


class CenterCrop(_PictureTransform):
    """The centre of pictures; one that is too small is padded with zeros on all sides.

    Args:
        w: The size of the picture's first dim.
        h: The size of the second, ``w`` if not given.
        in_keys: The pictures, ``"pixels"`` by default.
        out_keys: Where the results are written; in place by default.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import CenterCrop
        >>> CenterCrop(2)(TensorDict({"pixels": torch.arange(16.0).reshape(1, 4, 4)}))["pixels"]
        tensor([[[ 5.,  6.],
                 [ 9., 10.]]])
    """

    def __init__(self, w: int, h: int | None = None, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__(in_keys, out_keys)
        self.w = w
        self.h = w if h is None else h

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        first, second = value.shape[-2:]
        return functional.pad(value, [*_margins(second, self.h), *_margins(first, self.w)])


def _margins(size: int, wanted: int) -> tuple[int, int]:
    """How much to pad at both ends; negative where something is cut off."""
    if size >= wanted:
        cut = round((size - wanted) / 2)
        return -cut, cut - (size - wanted)
    return (wanted - size) // 2, (wanted - size + 1) // 2
