"""The replay buffer: a ring of columns of workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import StateError, UnknownVariable, WorkspaceError
from shoal.faces.bbrl.variables import ordinary
from shoal.faces.bbrl.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping


class DoesNotFit(WorkspaceError, RuntimeError):
    """Columns are unlike those that a replay buffer was begun with."""


class ReplayBuffer:
    """Keeps the last ``max_size`` columns of the workspaces that are put into it, normally pairs of transitions.

    The first workspace fixes the variables, their shapes and the number of time steps per column.

    Args:
        max_size: How many columns the buffer holds; the oldest are dropped first.
        device: Where it keeps them.

    Attributes:
        variables: Each variable as ``[max_size, time, ...]``.
        is_full: Whether old columns are being replaced.
        position: Where the next column goes.

    Example:
        >>> buffer, pairs = ReplayBuffer(100), Workspace()
        >>> pairs.set_full("x", torch.arange(6).view(2, 3))
        >>> buffer.put(pairs)
        >>> buffer.size(), buffer.get_shuffled(5)["x"].shape
        (3, torch.Size([2, 5]))
    """

    def __init__(self, max_size: float, device: Any = "cpu") -> None:
        if max_size < 1:
            raise WorkspaceError(f"max_size: expected at least 1, got {max_size}")
        self.max_size = int(max_size)
        self.device = torch.device(device)
        self.variables: dict[str, torch.Tensor] = {}
        self.is_full = False
        self.position = 0

    def put(self, workspace: Workspace) -> None:
        """Add all columns of a workspace, or the last ``max_size`` if there are more."""
        count, time_size = workspace.batch_size(), workspace.time_size()
        if not count or time_size is None:
            return
        columns = {name: workspace.variables[name].whole().detach() for name in workspace}
        self._check(columns)
        kept = min(count, self.max_size)
        # As if the columns came one by one: those left out move the position all the same.
        start = (self.position + count - kept) % self.max_size
        index = (torch.arange(kept, device=self.device) + start) % self.max_size
        for name, column in columns.items():
            self.variables[name].index_copy_(0, index, column[:, count - kept :].to(self.device).transpose(0, 1))
        self.is_full = self.is_full or self.position + count >= self.max_size
        self.position = (self.position + count) % self.max_size

    def _check(self, columns: Mapping[str, torch.Tensor]) -> None:
        if not self.variables:
            for name, column in columns.items():
                shape = (self.max_size, len(column), *column.shape[2:])
                with torch.inference_mode(False):
                    self.variables[name] = torch.zeros(shape, dtype=column.dtype, device=self.device)
        if columns.keys() != self.variables.keys():
            kind = WorkspaceError if columns.keys() < self.variables.keys() else UnknownVariable
            raise kind(f"put: the buffer holds {list(self.variables)}, the workspace has {list(columns)}")
        for name, column in columns.items():
            held = self.variables[name]
            if held.shape[1:] != (len(column), *column.shape[2:]) or held.dtype != column.dtype:
                got = f"{tuple(column.shape[:1] + column.shape[2:])} {column.dtype}"
                raise DoesNotFit(f"put: {name}: the buffer holds {tuple(held.shape[1:])} {held.dtype}, got {got}")

    def size(self) -> int:
        """How many columns there are."""
        return self.max_size if self.is_full else self.position

    def print_obs(self) -> None:
        """Print where the next column goes, and all observations."""
        print(f"position: {self.position}")  # noqa: T201
        print(self.variables["env/env_obs"])  # noqa: T201

    def get_shuffled(self, batch_size: int) -> Workspace:
        """``batch_size`` random columns, with replacement, as a workspace ``[time, batch_size, ...]``.

        Raises:
            StateError: If there is nothing in the buffer.
        """
        if not self.size():
            raise StateError("get_shuffled: the replay buffer is empty; put() something first")
        index = torch.randint(self.size(), (batch_size,), device=self.device)
        work = Workspace()
        for name, held in self.variables.items():
            work.set_full(name, held.index_select(0, index).transpose(0, 1))
        return work

    def to(self, device: Any) -> None:
        """Move the buffer to another device."""
        self.device = torch.device(device)
        self.variables = {name: ordinary(held.to(self.device)) for name, held in self.variables.items()}
