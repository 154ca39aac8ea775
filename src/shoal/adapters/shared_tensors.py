"""Tensors that several owners may share, whichever processes they are in.

As long as they are private, they are plain tensors. Once they are mapped from files, whoever takes them maps the same
files, and the lock of one of these files keeps two owners from changing them at once:

    with shared.locked() as tensors:
        tensors["count"].add_(1)        in place: a new tensor would not be shared
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

if TYPE_CHECKING:
    from collections.abc import Iterator


class SharedTensors:
    """A TensorDict and the right to change it.

    Args:
        tensors: What it holds at first; private, unless it is mapped from files.
    """

    def __init__(self, tensors: TensorDictBase | None = None) -> None:
        self.tensors: TensorDictBase = TensorDict({}, []) if tensors is None else tensors
        self._fd: int | None = None
        self._opened_by = 0

    @property
    def is_shared(self) -> bool:
        """Whether the tensors are mapped from files."""
        return bool(self.tensors.is_memmap())

    def take(self, tensors: TensorDictBase) -> None:
        """Hold other tensors from now on.

        Tensors that are mapped from files are shared with whoever has them. Others are copied: into the files, if the
        tensors held here are shared, so that all other owners get the values too.
        """
        if tensors.is_memmap():
            self._close()
            self.tensors = tensors
        elif self.is_shared:
            with self.locked() as mine:
                mine.update_(tensors)
        else:
            self.tensors = tensors.clone()

    @contextlib.contextmanager
    def locked(self) -> Iterator[TensorDictBase]:
        """The tensors, with nobody else changing them meanwhile."""
        if not self.is_shared:
            yield self.tensors
            return
        fd = self._lock_file()
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield self.tensors
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _lock_file(self) -> int:
        # A file that is opened twice has two locks that exclude each other, even in one process. A descriptor that a
        # fork has duplicated shares one lock, which would let both processes in.
        if self._fd is None or self._opened_by != os.getpid():
            first = next(value for value in self.tensors.values(True, True) if isinstance(value, torch.Tensor))
            self._fd, self._opened_by = os.open(first.filename, os.O_RDONLY | os.O_CLOEXEC), os.getpid()
        return self._fd

    def _close(self) -> None:
        if self._fd is not None and self._opened_by == os.getpid():
            os.close(self._fd)
        self._fd = None

    def __getstate__(self) -> dict[str, Any]:
        return {"tensors": self.tensors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.tensors = state["tensors"]
        self._fd, self._opened_by = None, 0

    def __del__(self) -> None:
        self._close()
