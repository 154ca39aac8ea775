"""Choice: one of several specs, or of several values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from shoal.faces.torchrl.specs.base import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.specs.shapes import ShapeOp


class Choice(TensorSpec):
    """A value of one of several specs, or one of several values.

    Args:
        choices: Specs that agree in class, shape, dtype and device; or tensors, or non-tensor data; or plain values.

    Raises:
        TypeError: The choices are not of one kind.
        ValueError: They do not agree, or there are none.

    Example:
        >>> from shoal.faces.torchrl import Categorical
        >>> Choice([Categorical(2), Categorical(5)]).cardinality()
        7
    """

    _told = ("_choices",)

    def __init__(self, choices: Sequence[Any]) -> None:
        if not choices:
            raise ValueError("Choice needs something to choose from")
        plain = not isinstance(choices[0], (TensorSpec, torch.Tensor, NonTensorData, NonTensorStack))
        self._choices: list[Any] = [NonTensorData(data=value) for value in choices] if plain else list(choices)
        first = self._choices[0]
        if any(type(choice) is not type(first) for choice in self._choices):
            raise TypeError(f"choices of one kind, got {sorted({type(choice).__name__ for choice in choices})}")
        for name in ("shape", "dtype", "device"):
            found = {str(getattr(choice, name, None)) for choice in self._choices}
            if len(found) > 1:
                raise ValueError(f"choices of one {name}, got {sorted(found)}")
        self._shape = first.shape
        self._device = first.device
        self._dtype = getattr(first, "dtype", None)
        self.domain = getattr(first, "domain", None)
        self.space = None
        self._settle()

    @property
    def num_choices(self) -> int:
        """How many specs or values there are to choose from."""
        return len(self._choices)

    def rand(self, shape: Any = None) -> Any:
        """A value of a random choice, drawn anew for each element of ``shape``."""
        size = torch.Size([] if shape is None else (shape,) if isinstance(shape, int) else shape)
        if not size:
            return self._value(self._pick())
        values = [self._value(self._pick()) for _ in range(math.prod(size))]
        return torch.stack(values).reshape(*size, *values[0].shape)

    def _pick(self) -> Any:
        return self._choices[int(torch.randint(len(self._choices), ()))]

    @staticmethod
    def _value(choice: Any) -> Any:
        return choice.rand() if isinstance(choice, TensorSpec) else choice.clone()

    def zero(self, shape: Any = None) -> Any:
        """Zeros, or the first value."""
        return self._filled("zero", shape)

    def one(self, shape: Any = None) -> Any:
        """Ones, or the first value."""
        return self._filled("one", shape)

    def _filled(self, how: str, shape: Any) -> Any:
        first = self._choices[0]
        if isinstance(first, TensorSpec):
            return getattr(first, how)(shape)
        if isinstance(first, torch.Tensor):
            fill = torch.zeros if how == "zero" else torch.ones
            return fill(self._full_shape(shape), dtype=self.dtype, device=self.device)
        return first.expand(self._full_shape(shape)).clone()

    def is_in(self, val: Any) -> bool:
        """Whether one of the choices is, or has, this value."""
        return any(self._is(choice, val) for choice in self._choices)

    @staticmethod
    def _is(choice: Any, val: Any) -> bool:
        if isinstance(choice, TensorSpec):
            return choice.is_in(val)
        if isinstance(choice, torch.Tensor):
            return isinstance(val, torch.Tensor) and choice.dtype == val.dtype and torch.equal(choice, val)
        return bool(
            choice.tolist() == (val.tolist() if isinstance(val, TensorDictBase) or hasattr(val, "tolist") else val)
        )

    def project(self, val: Any) -> Any:
        """The value itself if it is in one of the choices, else what the first choice makes of it."""
        if self.is_in(val):
            return val
        first = self._choices[0]
        return first.project(val) if isinstance(first, TensorSpec) else first.clone()

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The value as the first choice encodes it."""
        first = self._choices[0]
        if isinstance(first, TensorSpec):
            return first.encode(val, ignore_device=ignore_device)
        if isinstance(first, torch.Tensor):
            return super().encode(val, ignore_device=ignore_device)
        return val if hasattr(val, "tolist") else NonTensorData(data=val)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The value as the first choice converts it to numpy."""
        first = self._choices[0]
        if isinstance(first, (TensorSpec, torch.Tensor)):
            return first.to_numpy(val, safe) if isinstance(first, TensorSpec) else val.numpy(force=True)
        return val.tolist() if hasattr(val, "tolist") else val

    def cardinality(self) -> Any:
        """The number of values of all choices together."""
        return sum(choice.cardinality() if isinstance(choice, TensorSpec) else 1 for choice in self._choices)

    def enumerate(self, use_mask: bool = False) -> Any:
        """The values of all choices, stacked along a new first dim."""
        if isinstance(self._choices[0], TensorSpec):
            return torch.cat([choice.enumerate(use_mask) for choice in self._choices])
        return torch.stack(list(self._choices))

    def clone(self) -> Choice:
        """An equal spec with choices of its own."""
        return Choice([choice.clone() for choice in self._choices])

    def to(self, dest: torch.dtype | torch.device | str | int) -> Any:
        """The spec on another device or with another dtype."""
        return Choice([choice.to(dest) for choice in self._choices])

    def _map(self, op: ShapeOp, lead: int) -> Any:
        return Choice(
            [choice._map(op, lead) if isinstance(choice, TensorSpec) else op(choice) for choice in self._choices]
        )
