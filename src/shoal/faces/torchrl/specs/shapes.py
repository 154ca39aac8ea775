"""Operations on shapes, written once for whatever a spec holds.

A spec has a shape and sometimes tensors of (about) that shape: bounds, a mask, numbers of choices. An operation such as
``expand`` is therefore a function from tensor to tensor that changes the leading dims and leaves any dims after them
alone. It is applied to what the spec holds, and to a tensor without memory to learn the new shape. The same function
serves a Composite, whose children have the Composite's dims in front and their own behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.errors import SpecError

ShapeOp = Callable[[torch.Tensor], torch.Tensor]

# A dim of -1 has any size. While an operation is tried out it has this size, too large for a tensor with memory.
_ANY_SIZE = 1 << 28


def as_size(shape: Any) -> torch.Size:
    """``(3,)``, ``[3]``, ``3`` or a Size as a Size."""
    if isinstance(shape, torch.Size):
        return shape
    if isinstance(shape, int):
        return torch.Size([shape])
    return torch.Size(shape)


def varargs_size(shape: tuple[Any, ...]) -> torch.Size:
    """The shape that ``f(3, 4)`` and ``f((3, 4))`` both pass."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        return as_size(shape[0])
    return torch.Size(shape)


def concrete(shape: Sequence[int]) -> torch.Size:
    """The shape with size 1 for every dim of any size."""
    return torch.Size([1 if dim < 0 else dim for dim in shape])


def new_shape(op: ShapeOp, shape: torch.Size) -> torch.Size:
    """The shape that results from an operation on a shape."""
    blank = torch.empty([_ANY_SIZE if dim < 0 else dim for dim in shape], dtype=torch.bool, device="meta")
    return torch.Size([-1 if dim >= _ANY_SIZE // 2 else dim for dim in op(blank).shape])


def fits(shape: torch.Size, spec_shape: torch.Size) -> bool:
    """Whether a value of this shape can be a (batch of) value(s) of a spec of that shape."""
    if shape == spec_shape:
        return True
    extra = len(shape) - len(spec_shape)
    return extra >= 0 and all(mine in (-1, 1, dim) for dim, mine in zip(shape[extra:], spec_shape, strict=True))


class NoSuchDim(SpecError, IndexError):
    """A spec has no such dim."""


def wrap_dim(dim: int, ndim: int, what: str) -> int:
    """The dim, counted from the front.

    Raises:
        NoSuchDim: There is no such dim.
    """
    if not -ndim <= dim < ndim:
        raise NoSuchDim(f"{what}: dim {dim} of a spec with {ndim} dims that can be used")
    return dim % ndim


def expand_op(shape: Sequence[int], lead: int) -> ShapeOp:
    """Expand the first ``lead`` dims to ``shape``."""
    target = tuple(shape)
    return lambda tensor: tensor.expand((*target, *tensor.shape[lead:]))


def reshape_op(shape: Sequence[int], lead: int) -> ShapeOp:
    """Reshape the first ``lead`` dims."""
    target = tuple(shape)

    def reshape(tensor: torch.Tensor) -> torch.Tensor:
        head, tail = tensor.shape[:lead], tensor.shape[lead:]
        known = math.prod(dim for dim in target if dim >= 0)
        size = tuple(math.prod(head) // known if dim < 0 and known else dim for dim in target)
        return tensor.reshape((*size, *tail))

    return reshape


def flatten_op(start: int, end: int) -> ShapeOp:
    """Flatten the dims from ``start`` to ``end``, both counted from the front."""
    return lambda tensor: tensor.flatten(start, end)


def unflatten_op(dim: int, sizes: Sequence[int]) -> ShapeOp:
    """Split one dim into several."""
    return lambda tensor: tensor.unflatten(dim, tuple(sizes))


def squeeze_op(dims: Sequence[int]) -> ShapeOp:
    """Drop dims of size 1."""
    return lambda tensor: tensor.squeeze(tuple(dims))


def unsqueeze_op(dim: int) -> ShapeOp:
    """Put a dim of size 1 before ``dim``."""
    return lambda tensor: tensor.unsqueeze(dim)


def select_op(dim: int, position: int) -> ShapeOp:
    """One position along a dim."""
    return lambda tensor: tensor.select(dim, position)


def index_op(index: Any, shape: torch.Size) -> ShapeOp:
    """Index leading dims of this shape, the way a tensor is indexed."""
    parts = explicit_index(index, shape)
    return lambda tensor: tensor[parts]


def explicit_index(index: Any, shape: torch.Size) -> tuple[Any, ...]:
    """The index as a tuple without an ellipsis, so that it means the same on a tensor with more dims at the end."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = [_index_part(part) for part in parts]
    used = sum(dims_used(part) for part in plain)
    missing = len(shape) - used
    if missing < 0:
        raise IndexError(f"too many indices ({used}) for a spec with {len(shape)} dims that can be indexed: {index!r}")
    at = next((position for position, part in enumerate(plain) if part is Ellipsis), None)
    if at is not None:
        plain[at : at + 1] = [slice(None)] * missing
    _check_positions(plain, shape)
    return tuple(plain)


def _index_part(part: Any) -> Any:
    """Lists, ranges, arrays and flat masks as tensors of positions; everything else unchanged."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, (bool, int)):
        return part
    tensor = torch.as_tensor(list(part) if isinstance(part, range) else part).cpu()
    if tensor.dtype is torch.bool:
        return tensor if tensor.ndim != 1 else tensor.nonzero().squeeze(-1)
    return int(tensor) if tensor.ndim == 0 else tensor


def dims_used(part: Any) -> int:
    """How many dims a part of an index consumes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    is_mask = isinstance(part, torch.Tensor) and part.dtype is torch.bool
    return int(part.ndim) if is_mask else 1


def _check_positions(parts: Sequence[Any], shape: torch.Size) -> None:
    """Check that positions are in bounds, which torch does not do for a tensor without memory."""
    dim = 0
    for part in parts:
        used = dims_used(part)
        size = shape[dim] if used else -1
        if isinstance(part, slice) and size < 0 and used and part != slice(None):
            raise IndexError(f"dim {dim} can be of any size, so that {part} of it is not known")
        if size >= 0 and used == 1 and not isinstance(part, slice):
            positions = [part] if isinstance(part, int) else part.reshape(-1).tolist()
            outside = [position for position in positions if not -size <= position < size]
            if outside:
                raise IndexError(f"index {outside[0]} is out of bounds for dim {dim} with size {size}")
        dim += used
