"""A share of the columns of a shared workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import WorkspaceError
from shoal.faces.bbrl.variables import no_time

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView

    import torch

    from shoal.faces.bbrl.workspace import Workspace


class _SplitSharedWorkspace:
    """The columns in ``batch_dims`` of a workspace, as a workspace of their own.

    Attributes:
        workspace: The workspace.
        batch_dims: The first column, and the one after the last.
    """

    def __init__(self, workspace: Workspace, batch_dims: tuple[int, int]) -> None:
        if not workspace.is_shared:
            raise WorkspaceError("only a shared workspace can be split")
        self.workspace = workspace
        self.batch_dims, self._columns = batch_dims, slice(*batch_dims)
        self.is_shared = True

    def set(self, var_name: str, t: int, v: torch.Tensor) -> None:
        """Write these columns at time ``t``."""
        memory = self._memory(var_name)
        if not 0 <= t < len(memory):
            raise no_time(var_name, t, len(memory), "; a shared workspace keeps its size")
        memory[t, self._columns] = v.detach()

    def get(self, var_name: str, t: int) -> torch.Tensor:
        """These columns at time ``t``."""
        return self.workspace.get(var_name, t, self.batch_dims)

    def set_full(self, var_name: str, value: torch.Tensor) -> None:
        """Write these columns at all times."""
        self._memory(var_name)[:, self._columns] = value.detach()

    def _memory(self, var_name: str) -> torch.Tensor:
        # Writing the whole row is no option: others may be writing the columns beside these.
        return self.workspace._variable(var_name).whole()

    def get_full(self, var_name: str) -> torch.Tensor:
        """These columns at all times."""
        return self.workspace.get_full(var_name, self.batch_dims)

    def get_time_truncated(self, var_name: str, from_time: int, to_time: int) -> torch.Tensor:
        """These columns from ``from_time`` up to, but not including, ``to_time``."""
        return self.workspace.get_time_truncated(var_name, from_time, to_time, self.batch_dims)

    def keys(self) -> KeysView[str]:
        """The names of all variables."""
        return self.workspace.keys()

    def __contains__(self, name: object) -> bool:
        return name in self.workspace

    def __iter__(self) -> Iterator[str]:
        return iter(self.workspace)

    def restart(self) -> None:
        """Do nothing: the size is fixed."""
