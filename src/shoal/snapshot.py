"""The state of envs at one moment, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.engines.base import KEEP, PUT_BACK
from shoal.errors import ArgumentError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.arrays import Rows
    from shoal.engines.base import Call

    Ask = Callable[[dict[int, Call]], tuple[Any, ...]]

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Snapshot:
    """What ``Pool.snapshot`` returns: one row per env, as data that can be pickled and kept.

    Attributes:
        env: The id of the env.
        arrays: The complete state of the envs, by name. The state that a Python env gives is an object.
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
            raise ArgumentError(f"restore: the snapshot is of a {env} made with other options or for another engine")


class TakesSnapshots(Protocol):
    """An engine that can take snapshots of its envs."""

    def snapshot(self, ids: list[int], block: int) -> Arrays:
        """The complete state of these envs, as copies."""

    def restore(self, ids: list[int], block: int, state: Arrays) -> None:
        """Put these envs into the states of others."""


class Whole:
    """Snapshots that an engine takes itself."""

    def __init__(self, engine: TakesSnapshots) -> None:
        self.snapshot = engine.snapshot
        self.restore = engine.restore

    def like(self, ids: list[int], block: int) -> Arrays:
        """Arrays of the same dtypes and row shapes as those of a snapshot of these envs."""
        return self.snapshot(ids[:1], block)


class OneByOne:
    """Snapshots of Python envs, wherever they run: each env is asked for its state, and the rows are here.

    Args:
        rows: The last rows of all envs.
        ask: Calls into envs and returns their answers.
        objects: The parts of each env's last observation that no column holds.
    """

    def __init__(self, rows: Rows, ask: Ask, objects: dict[int, list[Any]]) -> None:
        self._rows = rows
        self._ask = ask
        self._objects = objects

    def like(self, ids: list[int], block: int) -> Arrays:
        """Arrays like those of a snapshot, without asking the envs, which may never have been reset."""
        names = ["slot", "env", *["objects"] * self._has_objects]
        return {**dict.fromkeys(names, np.empty(1, object)), **self._rows.of_block(block)}

    def snapshot(self, ids: list[int], block: int) -> Arrays:
        """The complete state of these envs."""
        answers = self._told(ids, {i: (KEEP, "", (), {}) for i in ids})
        objects = {"objects": _column([self._objects[i] for i in ids])} if self._has_objects else {}
        return {
            "slot": _column([slot for slot, _ in answers]),
            "env": _column([kept for _, kept in answers]),
            **objects,
            **{name: column[ids] for name, column in self._rows.of_block(block).items()},
        }

    def restore(self, ids: list[int], block: int, state: Arrays) -> None:
        """Put these envs into the states of others."""
        own = {name: np.broadcast_to(state[name], len(ids)) for name, column in state.items() if column.dtype == object}
        self._told(ids, {i: (PUT_BACK, "", (own["slot"][k], own["env"][k]), {}) for k, i in enumerate(ids)})
        for name, column in self._rows.of_block(block).items():
            column[ids] = state[name]
        if self._has_objects:
            self._objects.update(zip(ids, own["objects"], strict=True))

    @property
    def _has_objects(self) -> bool:
        return self._rows.spec.observation.has_objects

    def _told(self, ids: list[int], calls: dict[int, Call]) -> tuple[Any, ...]:
        answers = self._ask(calls)
        for env_id, answer in zip(ids, answers, strict=True):
            if isinstance(answer, str):
                hint = "compiled envs (engine='kernel') and native ones need none"
                raise StateError(f"env {env_id} cannot take part in snapshots: {answer}; {hint}")
        return answers


def _column(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    column = np.empty(len(values), object)
    for k, value in enumerate(values):
        column[k] = value
    return column
