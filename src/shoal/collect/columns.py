"""From epochs to columns: one row per transition, one column per leaf of a space.

    env_id  episode  step   obs.camera  obs.inner.mode   action   reward   next_obs.camera ...   terminated  truncated
    0       0        0      [..]        1                2        0.5      [..]                  False       False

A nested space is written with dots: ``obs.inner.mode``, ``obs.pair.0``. A plain one is the column ``obs``.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shoal.collect.segment import Epoch, Segment
    from shoal.spec import EnvSpec, Leaf, SpaceTree

Columns = dict[str, npt.NDArray[Any]]
TEXT = "str"


@dataclass(frozen=True, slots=True)
class Column:
    """What one column holds.

    Attributes:
        name: Its name.
        dtype: numpy's name for the type of a value, or ``"str"``.
        shape: The shape of one row's value; ``()`` for a single number.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many numbers one row has."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def row_bytes(self) -> int:
        """About how much memory a row takes."""
        return 64 if self.dtype == TEXT else self.size * np.dtype(self.dtype).itemsize


def columns_of(spec: EnvSpec) -> list[Column]:
    """The columns of a dataset of such envs, in the order in which they are stored.

    Raises:
        ArgumentError: If a leaf of a space is neither an array nor text, or two leaves have the same name.
    """
    obs, action = _leaf_columns(spec.observation, "obs"), _leaf_columns(spec.action, "action")
    after = [Column(f"next_{column.name}", column.dtype, column.shape) for column in obs]
    columns = [
        Column("env_id", "int32"),
        Column("episode", "int32"),
        Column("step", "int32"),
        *obs,
        *action,
        Column("reward", "float64"),
        *after,
        Column("terminated", "bool"),
        Column("truncated", "bool"),
    ]
    names = [column.name for column in columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ArgumentError(f"two leaves of a space would both be the column {twice[0]!r}; rename a key of the space")
    return columns


def _leaf_columns(tree: SpaceTree, prefix: str) -> list[Column]:
    return [_column(name, leaf) for name, leaf in zip(_names(tree.space, prefix), tree.leaves, strict=True)]


def _names(space: Space[Any], name: str) -> Iterator[str]:
    """A name for each leaf, in the order of ``SpaceTree.leaves``."""
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _names(child, f"{name}.{key}")
    elif isinstance(space, spaces.Tuple):
        for i, child in enumerate(space.spaces):
            yield from _names(child, f"{name}.{i}")
    else:
        yield name


def _column(name: str, leaf: Leaf) -> Column:
    if leaf.is_array:
        return Column(name, leaf.dtype.name, leaf.shape)
    # Not only Text: MiniGrid's missions are texts in its own kind of space. A copy, because sampling changes a space.
    if isinstance(deepcopy(leaf.space).sample(), str):
        return Column(name, TEXT)
    raise ArgumentError(
        f"{leaf.path}: values of {leaf.space} are neither arrays of one shape nor text, and have no column in a "
        "dataset; wrap the env so that it observes arrays"
    )


class Counters:
    """Which episode each env is in, how far it has come, and its return so far."""

    def __init__(self, next_episode: npt.NDArray[np.int32]) -> None:
        self.next_episode = next_episode.copy()
        self._step_N = np.zeros(len(next_episode), np.int32)
        self._return_N = np.zeros(len(next_episode))

    def count(self, segment: Segment) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """For each step of a segment: its episode, its place in the episode, and the return up to and including it."""
        ids, executed = segment.env_id, segment.executed
        over = segment.terminated | segment.truncated
        gained = np.where(executed, segment.reward, 0.0)
        episode, step = (np.empty(executed.shape, np.int32) for _ in range(2))
        total = np.empty(executed.shape)
        number, at, sums = self.next_episode[ids], self._step_N[ids], self._return_N[ids]
        for t in range(len(segment)):
            episode[t], step[t] = number, at
            sums += gained[t]
            total[t] = sums
            at += executed[t]
            if over[t].any():
                # An episode that failed before its first step has left no row, so the next one gets its number.
                number += over[t] & (at > 0)
                at[over[t]], sums[over[t]] = 0, 0.0
        self.next_episode[ids], self._step_N[ids], self._return_N[ids] = number, at, sums
        return episode, step, total


@dataclass(frozen=True)
class Rows:
    """Some rows of a dataset.

    Attributes:
        columns: The rows, by column.
        totals: For each row, the return of its episode up to and including it.
    """

    columns: Columns
    totals: npt.NDArray[np.float64]

    @property
    def ends(self) -> npt.NDArray[np.bool_]:
        """Which rows are the last of their episodes."""
        return self.columns["terminated"] | self.columns["truncated"]

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """The return of each episode that ends in these rows."""
        return self.totals[self.ends]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How many steps each of these episodes took."""
        return self.columns["step"][self.ends].astype(np.int64) + 1

    def cut(self, env_ids: Iterable[int]) -> None:
        """Note that a fault came right after the last row of each of these envs: it was the last of its episode."""
        for env_id in env_ids:
            own = np.flatnonzero(self.columns["env_id"] == env_id)
            if own.size and not self.ends[own[-1]]:
                self.columns["truncated"][own[-1]] = True

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.columns["reward"])


def rows_of(epoch: Epoch, counters: Counters, most: int) -> Rows:
    """The first ``most`` transitions of an epoch, as columns."""
    counted = [counters.count(segment) for segment in epoch.segments]
    masks = [segment.executed for segment in epoch.segments]
    episode, step, total = (
        np.concatenate([part[mask] for part, mask in zip(parts, masks, strict=True)])[:most]
        for parts in zip(*counted, strict=True)
    )
    data, segment = epoch.transitions(), epoch.segments[0]
    columns: Columns = {"env_id": data.env_id, "episode": episode, "step": step}
    columns |= _named(segment.obs_tree, "obs", data.obs)
    columns |= _named(segment.action_tree, "action", data.action)
    columns["reward"] = data.reward
    columns |= _named(segment.obs_tree, "next_obs", data.next_obs)
    columns |= {"terminated": data.terminated, "truncated": data.truncated}
    return Rows({name: values[:most] for name, values in columns.items()}, total)


def _named(tree: SpaceTree, prefix: str, value: Any) -> Columns:
    return dict(zip(_names(tree.space, prefix), tree.flatten(value), strict=True))
