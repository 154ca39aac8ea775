"""Callables as transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from shoal.errors import ArgumentError
from shoal.faces.torchrl.transforms.base import Transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase


class NotATransform(ArgumentError, TypeError):
    """What was given as a transform is neither one nor callable."""


class CallableTransform(Transform):
    """A function of a TensorDict, called on what every reset and every step returns.

    Args:
        function: Changes the TensorDict that it gets, and may return another one to use instead.
    """

    def __init__(self, function: Callable[[TensorDictBase], TensorDictBase | None]) -> None:
        super().__init__()
        if isinstance(function, nn.Module):
            self.function: Callable[[TensorDictBase], TensorDictBase | None] = function
        else:
            self.__dict__["function"] = function

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        returned = self.function(next_tensordict)
        return next_tensordict if returned is None else returned

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the function to data outside an env."""
        return self._call(tensordict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.function!r})"


def as_transform(given: Any) -> Transform:
    """A transform from a transform or a callable."""
    if isinstance(given, Transform):
        return given
    if callable(given):
        return CallableTransform(given)
    raise NotATransform(f"expected a Transform or a callable, got {type(given).__name__}")
