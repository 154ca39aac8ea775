"""Envs at one moment, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from shoal.errors import ArgumentError, StateError

if TYPE_CHECKING:
    from shoal.engines.base import Engine

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Snapshot:
    """What ``Pool.snapshot`` returns: one row per env. It is data, so it can be pickled and kept.

    Attributes:
        env: The id of the env.
        arrays: Every number that the envs consist of, by name.
    """

    env: str
    arrays: Arrays = field(repr=False)

    def __len__(self) -> int:
        """How many envs it holds."""
        return len(next(iter(self.arrays.values())))


def check_snapshot(snapshot: Any, env: str, count: int, like: Arrays) -> None:
    """Raise ``ArgumentError`` unless a snapshot can be restored into ``count`` envs of this id with such arrays."""
    if not isinstance(snapshot, Snapshot) or not snapshot.arrays:
        raise ArgumentError(f"restore: expected what snapshot() returned, got {snapshot!r}")
    if env != snapshot.env:
        raise ArgumentError(f"restore: the snapshot is of {snapshot.env}, the pool has {env}")
    if len(snapshot) not in (1, count):
        raise ArgumentError(f"restore: {len(snapshot)} snapshots do not fit {count} envs")
    for name, array in like.items():
        given = snapshot.arrays.get(name)
        if given is None or (given.dtype, given.shape[1:]) != (array.dtype, array.shape[1:]):
            raise ArgumentError(f"restore: the snapshot is of a {env} that was made with other options")


class TakesSnapshots(Protocol):
    """An engine that can tell what its envs are."""

    def snapshot(self, ids: list[int], block: int) -> Arrays:
        """Everything these envs are, as arrays of their own."""

    def restore(self, ids: list[int], block: int, state: Arrays) -> None:
        """Make these envs what others were."""


def snapshots(engine: Engine) -> TakesSnapshots:
    """The engine, if it can take snapshots.

    Raises:
        StateError: If it cannot.
    """
    if not hasattr(engine, "snapshot"):
        raise StateError(
            f"the {engine.name} engine cannot take snapshots; compiled envs (engine='kernel') and native ones can"
        )
    return cast("TakesSnapshots", engine)
