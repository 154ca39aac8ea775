"""How a workspace keeps one variable.

    Recorded    one tensor [capacity, batch, ...] that grows by doubling; for values without gradients
    Tracked     a list of tensors that autograd tracks; writing them into one tensor would break their graphs
    Fixed       a Recorded in shared memory, of fixed size

Values are copied in and out. What a caller holds never changes, and what a caller changes never reaches a workspace.

Tensors made under ``torch.inference_mode`` cannot be written outside of it, so no variable is kept in one.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from shoal.errors import WorkspaceError

_LEAST_CAPACITY = 8
# Types that numpy has too, with the same bytes in every tensor: tensors of other types may be conjugated lazily.
_NUMPYS = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64),
    )
)


class Variable(Protocol):
    """What a workspace needs from a variable."""

    @property
    def length(self) -> int:
        """How many time steps there are."""

    def set(self, t: int, value: torch.Tensor) -> None:
        """Write a copy of one time step; a gap between the end and ``t`` is filled with zeros."""

    def get(self, t: int) -> torch.Tensor:
        """A copy of one time step; negative ones count from the end. The caller has made sure that it exists."""

    def whole(self) -> torch.Tensor:
        """All time steps, for reading only."""

    def cut(self, length: int) -> None:
        """Drop everything after the first ``length`` time steps."""

    def check(self, name: str, value: torch.Tensor) -> None:
        """Raise ``WorkspaceError`` if a value for one time step does not fit."""


class _Checked:
    """A variable whose first value fixes the shape, dtype and device of all later ones."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    def check(self, name: str, value: torch.Tensor) -> None:
        """Raise ``WorkspaceError`` if a value for one time step does not fit."""
        if value.shape == self.shape and value.dtype == self.dtype and value.device == self.device:
            return
        expected = f"{self.dtype} of shape {tuple(self.shape)} on {self.device}"
        got = f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
        raise WorkspaceError(f"{name}: the first value was {expected}, and this one is {got}")


class Recorded(_Checked):
    """Time steps in one tensor with room for more.

    Attributes:
        length: How many time steps there are.
    """

    def __init__(self, buffer: torch.Tensor, length: int) -> None:
        super().__init__(buffer.shape[1:], buffer.dtype, buffer.device)
        self.length = length
        self._take(buffer)

    @classmethod
    def like(cls, value: torch.Tensor) -> Recorded:
        """An empty variable for values like this one."""
        return cls(_room(value, (_LEAST_CAPACITY, *value.shape)), 0)

    def _take(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer = ordinary(buffer)
        # Reading and writing single rows through numpy takes a fifth of the time that it takes through torch.
        self._rows: Any = None
        if buffer.device.type == "cpu" and buffer.dtype in _NUMPYS:
            self._rows = buffer.numpy()

    def __getstate__(self) -> dict[str, Any]:
        # Buffer and rows are the same memory; a copy of both would have two memories.
        return {name: value for name, value in vars(self).items() if name != "_rows"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._take(self._buffer)

    def set(self, t: int, value: torch.Tensor) -> None:
        """Write a copy of one time step; a gap between the end and ``t`` is filled with zeros."""
        if t >= self.length:
            self._grow(t + 1)
        if self._rows is None or value.is_neg():  # numpy knows no values that are to be negated when they are read
            self._buffer[t] = value
        else:
            self._rows[t] = value.numpy()

    def _grow(self, length: int) -> None:
        capacity = len(self._buffer)
        if length > capacity:
            larger = _room(self._buffer, (max(length, 2 * capacity, _LEAST_CAPACITY), *self.shape))
            larger[: self.length] = self._buffer[: self.length]
            self._take(larger)
        if length - 1 > self.length:
            self._buffer[self.length : length - 1] = 0
        self.length = length

    def get(self, t: int) -> torch.Tensor:
        """A copy of one time step."""
        # Negative times must not reach into the unused room behind the last time step.
        if t < 0:
            t += self.length
        return self._buffer[t].clone() if self._rows is None else torch.from_numpy(self._rows[t].copy())

    def whole(self) -> torch.Tensor:
        """All time steps, for reading only."""
        return self._buffer[: self.length]

    def cut(self, length: int) -> None:
        """Drop everything after the first ``length`` time steps."""
        self.length = min(self.length, length)


class Fixed(Recorded):
    """Time steps in shared memory."""

    def __init__(self, name: str, buffer: torch.Tensor) -> None:
        super().__init__(buffer, len(buffer))
        self._name = name

    def _take(self, buffer: torch.Tensor) -> None:
        super()._take(ordinary(buffer).share_memory_())  # has an effect only on a new or copied buffer

    def _grow(self, length: int) -> None:
        raise no_time(self._name, length - 1, self.length, "; a shared workspace keeps its size")

    def cut(self, length: int) -> None:
        """Write zeros over everything after the first ``length`` time steps: the size is fixed."""
        self._buffer[length:] = 0


class Tracked(_Checked):
    """Time steps that keep their graphs: one tensor each, as they were written, or one for all."""

    def __init__(self, full: torch.Tensor) -> None:
        super().__init__(full.shape[1:], full.dtype, full.device)
        self._full: torch.Tensor | None = ordinary(full)
        self._steps: list[torch.Tensor] = []

    @property
    def length(self) -> int:
        """How many time steps there are."""
        return len(self._steps) if self._full is None else len(self._full)

    def _apart(self) -> list[torch.Tensor]:
        if self._full is not None:
            self._steps, self._full = list(self._full.unbind(0)), None
        return self._steps

    def set(self, t: int, value: torch.Tensor) -> None:
        """Write a copy of one time step; a gap between the end and ``t`` is filled with zeros."""
        steps = self._apart()
        while len(steps) <= t:
            steps.append(torch.zeros(self.shape, dtype=self.dtype, device=self.device))
        steps[t] = value.clone()

    def get(self, t: int) -> torch.Tensor:
        """A copy of one time step."""
        return (self._steps[t] if self._full is None else self._full[t]).clone()

    def whole(self) -> torch.Tensor:
        """All time steps, for reading only."""
        if self._full is not None:
            return self._full
        # The stacked tensor is not kept: steps are still written one by one.
        return torch.stack(self._steps)

    def cut(self, length: int) -> None:
        """Drop everything after the first ``length`` time steps."""
        del self._apart()[length:]


def no_time(name: str, t: int, length: int, more: str = "") -> WorkspaceError:
    """The error for a time that a variable does not have."""
    known = f"times 0 to {length - 1}" if length else "no times"
    return WorkspaceError(f"{name}: there is no time {t}; it has {known}{more}")


def ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it if it was made under ``torch.inference_mode``."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


def _room(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode(False):
        return like.new_empty(shape)


def variable_of(full: torch.Tensor) -> Variable:
    """A variable that takes ownership of a tensor."""
    return Tracked(full) if full.requires_grad else Recorded(full, len(full))
