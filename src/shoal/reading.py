"""Copying rows out of an engine's memory into batches that belong to the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.batch import Batch
from shoal.engines.base import Engine, Extra


class RowReader:
    """Makes batches from rows.

    With ``copy=False`` and several blocks, whole batches are views of one block; the next step goes to another, so
    a view keeps its values until the blocks have gone round. Rewards and flags are always copies.
    """

    def __init__(self, engine: Engine, *, copy: bool) -> None:
        self.block = 0
        self.rows_read = 0
        self.episodes = 0
        self.batches = 0
        self._engine = engine
        self._rows = engine.rows
        self._tree = engine.spec.observation
        self._blocks = engine.rows.layout.blocks
        self._views = not copy and self._blocks > 1
        self._objects: dict[int, list[Any]] = {}
        self._env_id_N = np.arange(engine.rows.layout.num_envs, dtype=np.int32)

    def next_block(self, *, keep_rows: bool = False) -> None:
        """Turn to the block that the next results go to; ``keep_rows`` when only some envs will write to it."""
        if self._blocks == 1:
            return
        last, self.block = self.block, (self.block + 1) % self._blocks
        if keep_rows:
            rows = self._rows
            for column in (*rows.obs, rows.reward, rows.terminated, rows.truncated, rows.elapsed, rows.first):
                if column is not None:
                    column[self.block] = column[last]

    def read(self, ids: Sequence[int] | None) -> Batch:
        """The rows of ``ids`` in this order; None means all envs. Takes what the engine keeps for them beside the rows."""
        batch = self._rows_of(ids)
        extras = self._take_extras(batch.env_id) if self._engine.extras else {}
        if self._tree.has_objects:
            for row, extra in extras.items():
                self._objects[int(batch.env_id[row])] = extra.objects or []
        if ids is not None:
            self._add_obs(batch, lambda column: column[batch.env_id])
        else:
            self._add_obs(batch, _as_is if self._views else np.copy)
        for row, extra in extras.items():
            if extra.has_final:
                batch.finals[row] = (self._final_obs(int(batch.env_id[row]), extra), extra.final_info or {})
            if extra.info:
                batch.infos.append((row, extra.info))
        self.batches += 1
        self.rows_read += len(batch.env_id)
        self.episodes += int(np.count_nonzero(batch.terminated | batch.truncated))
        return batch

    def latest(self) -> Batch:
        """The last row of every env, whether or not it has just answered."""
        batch = self._rows_of(None)
        self._add_obs(batch, np.copy)
        return batch

    def _rows_of(self, ids: Sequence[int] | None) -> Batch:
        rows, block = self._rows, self.block
        columns = (rows.reward, rows.terminated, rows.truncated, rows.elapsed, rows.first)
        if ids is None:
            reward, terminated, truncated, elapsed, first = [column[block].copy() for column in columns]
            return Batch(None, reward, terminated, truncated, self._env_id_N.copy(), elapsed, first)
        env_id = np.array(ids, np.int32)
        reward, terminated, truncated, elapsed, first = [column[block][env_id] for column in columns]
        return Batch(None, reward, terminated, truncated, env_id, elapsed, first)

    def _add_obs(self, batch: Batch, take: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
        leaves: list[Any] = [None if column is None else take(column[self.block]) for column in self._rows.obs]
        if self._tree.has_objects:
            self._fill_objects(leaves, batch.env_id)
        batch.obs = self._tree.unflatten(leaves)

    def _take_extras(self, env_id: npt.NDArray[np.int32]) -> dict[int, Extra]:
        extras = self._engine.extras
        return {row: extras.pop(i) for row, i in enumerate(env_id.tolist()) if i in extras}

    def _fill_objects(self, leaves: list[Any], env_id: npt.NDArray[np.int32]) -> None:
        places = [j for j, leaf in enumerate(self._tree.leaves) if not leaf.is_array]
        for place, j in enumerate(places):
            leaves[j] = column = np.full(len(env_id), None, object)
            for row, i in enumerate(env_id.tolist()):
                objects = self._objects.get(i)
                if objects:
                    column[row] = objects[place]

    def _final_obs(self, env_id: int, extra: Extra) -> Any:
        objects = iter(extra.final_objects or ())
        return self._tree.unflatten(
            [next(objects) if column is None else np.array(column[env_id])[()] for column in self._rows.final]
        )


def _as_is(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column
