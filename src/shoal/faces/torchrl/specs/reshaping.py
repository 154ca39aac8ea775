"""expand, reshape, index and the other operations on the shape of a spec, as tensors have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from shoal.faces.torchrl.specs import shapes

if TYPE_CHECKING:
    import torch


class Reshaping:
    """Each method checks and normalises its arguments, and leaves the rest to ``_map``.

    The last ``_event_dims`` dims belong to one value (the bits of a one-hot vector): no operation touches them.
    """

    shape: torch.Size
    _event_dims: ClassVar[int] = 0

    def _map(self, op: shapes.ShapeOp, lead: int) -> Self:
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    def ndimension(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def _lead(self) -> int:
        """How many dims may be changed."""
        return len(self.shape) - self._event_dims

    def expand(self, *shape: Any) -> Self:
        """The spec with more dims in front, and dims of size 1 enlarged.

        Raises:
            ValueError: The spec cannot be expanded to that shape.
        """
        target = shapes.varargs_size(shape)
        own = self.shape
        extra = len(target) - len(own)
        pairs = list(zip(target[max(extra, 0) :], own, strict=False))
        kept = len(own) - self._event_dims
        allowed = (new in (old, -1) or (old == 1 and at < kept) for at, (new, old) in enumerate(pairs))
        if extra < 0 or any(dim < 0 for dim in target[:extra]) or not all(allowed):
            raise ValueError(f"{type(self).__name__} of shape {tuple(own)} cannot be expanded to {tuple(target)}")
        return self._map(shapes.expand_op(target[: len(target) - self._event_dims], kept), kept)

    def reshape(self, *shape: Any) -> Self:
        """The spec in another shape with as many elements."""
        target = shapes.varargs_size(shape)
        if self._event_dims:
            target = self._without_event_dims(target)
        return self._map(shapes.reshape_op(target, self._lead), self._lead)

    def view(self, *shape: Any) -> Self:
        """The same as ``reshape``."""
        return self.reshape(*shape)

    def _without_event_dims(self, target: torch.Size) -> torch.Size:
        event = self.shape[-self._event_dims :]
        if target[-self._event_dims :] != event:
            raise ValueError(f"the last dims {tuple(event)} of {type(self).__name__} stay as they are: {tuple(target)}")
        return target[: -self._event_dims]

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The spec with neighbouring dims merged into one; a spec without dims gets one, as a tensor does."""
        if not self.shape:
            dims = [shapes.wrap_dim(dim, 1, "flatten") for dim in (start_dim, end_dim)]
            return self.unsqueeze(max(dims))
        start, end = self._free_dim(start_dim, "flatten"), self._free_dim(end_dim, "flatten")
        return self._map(shapes.flatten_op(start, end), self._lead)

    def unflatten(self, dim: int, sizes: Any) -> Self:
        """The spec with one dim split into several."""
        return self._map(shapes.unflatten_op(self._free_dim(dim, "unflatten"), sizes), self._lead)

    def squeeze(self, dim: int | None = None) -> Self:
        """The spec without its dims of size 1, or without this one if its size is 1."""
        if dim is None:
            dims = [at for at in range(self._lead) if self.shape[at] == 1]
        else:
            at = shapes.wrap_dim(dim, len(self.shape), "squeeze")
            dims = [self._free_dim(at, "squeeze")] if self.shape[at] == 1 else []
        if not dims:
            return self
        return self._map(shapes.squeeze_op(dims), self._lead)

    def unsqueeze(self, dim: int) -> Self:
        """The spec with a new dim of size 1."""
        at = shapes.wrap_dim(dim, len(self.shape) + 1, "unsqueeze")
        if at > self._lead:
            raise ValueError(f"the last dim of {type(self).__name__} stays the last: unsqueeze({dim})")
        return self._map(shapes.unsqueeze_op(at), self._lead)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The specs along a dim."""
        at = self._free_dim(dim, "unbind")
        if self.shape[at] < 0:
            raise ValueError(f"dim {dim} can be of any size: {type(self).__name__} cannot be unbound along it")
        return tuple(self._map(shapes.select_op(at, position), self._lead) for position in range(self.shape[at]))

    def __getitem__(self, index: Any) -> Any:
        return self._map(shapes.index_op(index, self.shape[: self._lead]), self._lead)

    def _free_dim(self, dim: int, what: str) -> int:
        """The dim counted from the front, if it may be changed."""
        at = shapes.wrap_dim(dim, len(self.shape), what)
        if at >= self._lead:
            raise ValueError(f"{what}: the last dim of {type(self).__name__} stays as it is")
        return at
