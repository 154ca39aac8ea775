"""Rows that report faults: what the engine left in their place is not a valid row, so it is overwritten here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.slot import copy_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.arrays import RowLayout
    from shoal.batch import Batch
    from shoal.recovery import FaultNote, Recovery


class FaultRows:
    """Keeps the last good observation of every env, for rows that have none of their own.

    Attributes:
        cuts: Episodes that faults have cut short.
    """

    def __init__(self, layout: RowLayout, recovery: Recovery) -> None:
        self._recovery = recovery
        self._tree = layout.spec.observation
        self._has_final = layout.with_final
        self._last: list[np.ndarray[Any, Any]] = [
            np.stack([leaf.blank()] * layout.num_envs) if leaf.is_array else np.full(layout.num_envs, None, object)
            for leaf in self._tree.leaves
        ]
        self.cuts = 0
        self._cut_ids: set[int] = set()
        self._elapsed_N = np.zeros(layout.num_envs, np.int32)
        self._first_N = np.ones(layout.num_envs, np.bool_)

    def write(self, batch: Batch) -> None:
        """Give the rows of failed and dropped envs their contents."""
        if not (self._recovery.notes or self._recovery.dropped):
            return
        for row, env_id, note in self._told(batch):
            infos = dict(batch.infos)
            infos[row] = {**infos.get(row, {}), "fault": note.info(env_id)}
            batch.infos = list(infos.items())
            if note.cuts:
                self.cuts += 1
                self._cut(batch, row, env_id, keeps_obs=self._begins_anew(env_id))
        for row, env_id in self._rows(batch, self._recovery.dropped):
            told = self._recovery.notes.get(env_id)
            if told is None or not told.cuts:
                self._cut(batch, row, env_id, keeps_obs=False)
                batch.truncated[row] = False  # until the episodes have been counted, as this row ends none

    def write_finals(self, batch: Batch) -> None:
        """Under ``same_step``, add the last observation of episodes that a fault has cut short, and of dropped envs.

        Every row of a dropped env is truncated, and whoever sees that looks for a last observation.
        """
        if not (self._recovery.notes or self._recovery.dropped):
            return
        finals = dict(batch.finals)
        for row, env_id in self._rows(batch, self._recovery.dropped):
            finals[row] = (self._last_obs(env_id), {})
        for row, env_id, note in self._told(batch):
            if note.cuts:
                finals[row] = (self._last_obs(env_id), {"fault": note.info(env_id)})
        batch.finals = finals

    def close_dropped(self, batch: Batch) -> None:
        """Have every row of a dropped env end an episode, now that episodes have been counted."""
        for row, _ in self._rows(batch, self._recovery.dropped):
            batch.truncated[row] = True

    def note_given(self, batch: Batch, is_everyone: bool) -> None:
        """Remember these rows, which the caller has now, and that their faults have been reported.

        ``is_everyone`` says that they are the rows of all envs, in order.
        """
        rows = slice(None) if is_everyone else batch.env_id
        for column, leaf in zip(self._last, self._tree.flatten(batch.obs), strict=True):
            column[rows] = copy_leaves(leaf) if leaf.dtype == object else leaf
        self._elapsed_N[rows] = batch.elapsed_step
        self._first_N[rows] = batch.first
        notes, dropped = self._recovery.notes, self._recovery.dropped
        if not (notes or dropped or self._cut_ids):
            return
        for row, env_id in enumerate(batch.env_id.tolist()):
            self._cut_ids.discard(env_id)
            if batch.truncated[row] and (env_id in notes or env_id in dropped):
                self._cut_ids.add(env_id)
            notes.pop(env_id, None)

    def write_again(self, batch: Batch) -> None:
        """Give rows that are read once more what they had when they were handed out."""
        for row, env_id in self._rows(batch, self._cut_ids):
            self._cut(batch, row, env_id, keeps_obs=self._begins_anew(env_id))

    def _begins_anew(self, env_id: int) -> bool:
        """Whether the row already has the first observation of the next episode."""
        return self._has_final and env_id not in self._recovery.dropped

    def _cut(self, batch: Batch, row: int, env_id: int, *, keeps_obs: bool) -> None:
        batch.reward[row] = 0.0
        batch.terminated[row] = False
        batch.truncated[row] = True
        batch.elapsed_step[row] = 0 if self._first_N[env_id] else self._elapsed_N[env_id]
        batch.first[row] = keeps_obs
        if keeps_obs:
            return
        for leaf, last in zip(self._tree.flatten(batch.obs), self._last, strict=True):
            leaf[row] = last[env_id]
        for column in batch.fields.values():
            column[row] = 0

    def _last_obs(self, env_id: int) -> Any:
        return self._tree.unflatten([_own(last[env_id]) for last in self._last])

    def _told(self, batch: Batch) -> Iterator[tuple[int, int, FaultNote]]:
        for row, env_id in self._rows(batch, self._recovery.notes):
            yield row, env_id, self._recovery.notes[env_id]

    @staticmethod
    def _rows(batch: Batch, env_ids: Any) -> Iterator[tuple[int, int]]:
        if env_ids:
            yield from ((row, i) for row, i in enumerate(batch.env_id.tolist()) if i in env_ids)


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
