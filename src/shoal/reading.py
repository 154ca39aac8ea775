"""Copying rows out of an engine's memory into batches that belong to the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.arrays import ordered_span
from shoal.batch import NOTHING, Batch
from shoal.quick import quick
from shoal.slot import copy_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.engines.base import Engine, Extra
    from shoal.fault_rows import FaultRows


class RowReader:
    """Makes batches from rows.

    With ``copy=False`` and several blocks, whole batches are views of one block. The next step goes to another block,
    so a view keeps its values until its block comes round again. Rewards and flags are always copies.

    Attributes:
        is_bare: Whether a row is all there is to an answer, unless an episode ends or the engine keeps something
            besides it.
        rows_read: Rows handed out so far.
        has_blocks: Whether results go to more than one block.
        has_ends: Whether some row of the last batch of all envs may end an episode.
    """

    def __init__(self, engine: Engine, *, copy: bool, fault_rows: FaultRows | None = None) -> None:
        self._fault_rows = fault_rows
        self.block = 0
        self.rows_read = 0
        self.episodes = 0
        self.batches = 0
        self.has_ends = True
        self._ends: int | None = None
        self._engine = engine
        rows = engine.rows
        self._final = rows.final
        self._has_final = rows.layout.with_final
        self._final_info = rows.final_info
        self._finals_are_columns = engine.finals_are_columns and rows.layout.with_final
        self._counts = engine.episodes is None or self._finals_are_columns
        self._tree = engine.spec.observation
        self._blocks = rows.layout.blocks
        self.has_blocks = self._blocks > 1
        self._views = not copy and self._blocks > 1
        self._is_plain = self._tree.is_single and not self._tree.has_objects
        self.objects: dict[int, list[Any]] = {}
        self.is_bare = fault_rows is None and not self._tree.has_objects
        self._num_envs = rows.layout.num_envs
        self._env_id_N = np.arange(self._num_envs, dtype=np.int32)
        # Indexing a column by its block takes as long as copying a small column, so it is done once.
        scalars = (rows.reward, rows.terminated, rows.truncated, rows.elapsed, rows.first)
        self._scalars_of_block = [tuple(column[block] for column in scalars) for block in range(self._blocks)]
        self._obs_of_block: list[list[Any]] = [
            [None if column is None else column[block] for column in rows.obs] for block in range(self._blocks)
        ]
        # What a batch of all envs is a copy of.
        self._whole_of_block = [
            (*scalars, self._env_id_N, *(c for c in obs if c is not None and not self._views))
            for scalars, obs in zip(self._scalars_of_block, self._obs_of_block, strict=True)
        ]
        self._fields_of_block = [
            {name: column[block] for name, column in rows.info.items()} for block in range(self._blocks)
        ]
        self._has_fields = bool(rows.info)

    def release(self) -> None:
        """Let go of the memory. The counters stay."""
        self._scalars_of_block, self._obs_of_block, self._final = [], [], []
        self._whole_of_block, self._fields_of_block, self._final_info = [], [], {}

    def next_block(self, *, keep_rows: bool = False) -> None:
        """Turn to the block for the next results; ``keep_rows`` carries the rows over if only some envs will write."""
        if self._blocks == 1:
            return
        last, self.block = self.block, (self.block + 1) % self._blocks
        if keep_rows:
            for new, old in zip(self._columns(self.block), self._columns(last), strict=True):
                new[:] = old

    def read_all(self) -> Batch:
        """The rows of all envs, in order, with what the engine keeps for them besides the rows."""
        block = self.block
        reward, terminated, truncated, elapsed, first, env_id, *obs = _copies(self._whole_of_block[block])
        nested = obs[0] if self._is_plain and obs else self._nested(self._leaves(obs, block))
        batch = Batch(nested, reward, terminated, truncated, env_id, elapsed, first, (), NOTHING, NOTHING)
        if self._has_fields:
            batch.fields = {name: column.copy() for name, column in self._fields_of_block[block].items()}
        self.batches += 1
        self.rows_read += self._num_envs
        extras, ends = self._engine.extras, self._engine.ends
        self.has_ends = ends is None or ends != self._ends
        if not self.is_bare or extras:
            told = sorted(extras)
            self._complete(batch, zip(told, told, strict=True))
        elif self._counts and self.has_ends:
            self._count(batch)
        self._ends = ends  # last: what an interrupt has cut short is read again
        return batch

    def _leaves(self, copies: list[Any], block: int) -> list[Any]:
        """Observations leaf by leaf: copies or views, and None for object leaves."""
        columns = self._obs_of_block[block]
        if self._views:
            return columns
        rest = iter(copies)
        return [None if column is None else next(rest) for column in columns]

    def read(self, ids: Sequence[int]) -> Batch:
        """The rows of ``ids``, in this order, as copies."""
        self.batches += 1
        self.rows_read += len(ids)
        return self._complete(self._gather(ids), enumerate(ids))

    def _gather(self, ids: Sequence[int]) -> Batch:
        rows = np.array(ids, np.int32)
        pick = _copier(ids, rows)
        reward, terminated, truncated, elapsed, first = self._scalars_of_block[self.block]
        return Batch(
            self._nested([None if c is None else pick(c) for c in self._obs_of_block[self.block]]),
            pick(reward),
            pick(terminated),
            pick(truncated),
            rows,
            pick(elapsed),
            pick(first),
            fields={name: pick(column) for name, column in self._fields_of_block[self.block].items()},
        )

    def latest(self, ids: Sequence[int] | None = None) -> Batch:
        """The last row of every env, or of ``ids``, whether or not it has just answered."""
        batch = self._gather(range(self._num_envs) if ids is None else ids)
        if self._tree.has_objects:
            self._put_objects(batch)
        if self._fault_rows is not None:
            self._fault_rows.write_again(batch)
        return batch

    def note_restore(self, ids: Sequence[int]) -> None:
        """Note that these envs took on the states of others: a fault that cut one short is no longer in its past."""
        if self._fault_rows is None:
            return
        batch = self._gather(ids)
        if self._tree.has_objects:
            self._put_objects(batch)
        self._fault_rows.note_given(batch, False)

    @property
    def cuts(self) -> int:
        """Episodes that faults have cut short."""
        return 0 if self._fault_rows is None else self._fault_rows.cuts

    def _columns(self, block: int) -> list[Any]:
        obs = [column for column in self._obs_of_block[block] if column is not None]
        return [*self._scalars_of_block[block], *obs, *self._fields_of_block[block].values()]

    def _complete(self, batch: Batch, rows: Iterable[tuple[int, int]]) -> Batch:
        """Add what the columns do not hold; ``rows`` are those that may have an extra, with their env ids."""
        if self._engine.extras:
            self._add_extras(batch, rows)
        if self._tree.has_objects:
            self._put_objects(batch)
        if self._fault_rows is not None:
            self._fault_rows.write(batch)
        if self._counts:
            self._count(batch)
        if self._fault_rows is not None:
            if self._has_final:
                self._fault_rows.write_finals(batch)
            self._fault_rows.close_dropped(batch)
        return batch

    def note_given(self, batch: Batch, is_everyone: bool) -> None:
        """Note that a batch is the caller's: what the engine kept for its rows has been handed out with them.

        ``is_everyone`` says that they are the rows of all envs, in order.
        """
        extras = self._engine.extras
        if extras and is_everyone:
            extras.clear()
        elif extras:
            for i in batch.env_id.tolist():
                extras.pop(i, None)
        if self._fault_rows is not None:
            self._fault_rows.note_given(batch, is_everyone)

    def _count(self, batch: Batch) -> None:
        ends = batch.terminated.tobytes()
        if b"\1" in batch.truncated.tobytes():
            ends = (batch.terminated | batch.truncated).tobytes()  # a row may be both
        elif b"\1" not in ends:
            return
        if self._finals_are_columns:
            batch.finals = self._column_finals(batch)
        self.episodes += ends.count(1)

    def _nested(self, leaves: list[Any]) -> Any:
        # Object leaves are only known once the extras are taken, so their places are filled later.
        return leaves if self._tree.has_objects else self._tree.unflatten(leaves)

    def _put_objects(self, batch: Batch) -> None:
        """Complete the observations of a space with object leaves."""
        places = [j for j, leaf in enumerate(self._tree.leaves) if not leaf.is_array]
        for place, j in enumerate(places):
            batch.obs[j] = column = np.empty(len(batch), object)
            for row, env_id in enumerate(batch.env_id.tolist()):
                objects = self.objects.get(env_id)
                if objects:
                    column[row] = copy_leaves(objects[place])  # the same may be handed out again
        batch.obs = self._tree.unflatten(batch.obs)

    def _add_extras(self, batch: Batch, rows: Iterable[tuple[int, int]]) -> None:
        infos, finals = [], {}
        extras = self._engine.extras
        for row, env_id in rows:
            extra = extras.get(env_id)
            if extra is None:
                continue
            if extra.objects is not None:
                self.objects[env_id] = extra.objects
            if extra.has_final:
                finals[row] = (self._final_obs(env_id, extra), extra.final_info or {})
            if extra.info:
                infos.append((row, extra.info))
        batch.infos, batch.finals = infos, finals

    def _column_finals(self, batch: Batch) -> dict[int, tuple[Any, dict[str, Any]]]:
        rows = np.flatnonzero(batch.terminated | batch.truncated)
        env_ids = batch.env_id[rows]
        obs = [column[env_ids] for column in self._final if column is not None]
        # As a list, because Gymnasium batches Python's own bools, but takes numpy's for objects.
        infos = {
            name: column[env_ids].tolist() if column.dtype == bool and column.ndim == 1 else column[env_ids]
            for name, column in self._final_info.items()
        }
        return {
            row: (self._tree.unflatten([leaf[k] for leaf in obs]), {name: info[k] for name, info in infos.items()})
            for k, row in enumerate(rows.tolist())
        }

    def _final_obs(self, env_id: int, extra: Extra) -> Any:
        if self._is_plain and (column := self._final[0]) is not None:
            return column[env_id].copy()
        objects = iter(extra.final_objects or ())
        return self._tree.unflatten(
            [next(objects) if column is None else column[env_id].copy() for column in self._final]
        )


def _copies_in_python(columns: tuple[npt.NDArray[Any], ...]) -> list[npt.NDArray[Any]]:
    return [column.copy() for column in columns]


_copies: Callable[[tuple[npt.NDArray[Any], ...]], list[Any]] = _copies_in_python if quick is None else quick.copies


def _copier(ids: Sequence[int], rows: npt.NDArray[np.int32]) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """A function that copies these rows of a column; neighbours go in one piece, in a third of the time."""
    part = ordered_span(ids)
    if part is not None:
        return lambda column: column[part].copy()
    # With numpy's own kind of index, and for rows of several numbers with ``take``, in a third of the time, too.
    index = rows.astype(np.intp)
    return lambda column: column.take(index, axis=0)
