"""Recording a pool whose envs move in step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.collect.segment import Epoch, Leaves, Segment
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batch import Batch
    from shoal.pool import Pool


_SOME_STEPS = 64  # to begin with, if the number of steps is not known


class InStep:
    """Steps all envs together, and keeps the last row, with which the next segment begins."""

    def __init__(self, pool: Pool, act: Callable[[Any, int], Any]) -> None:
        self._pool = pool
        self._act = act
        self._obs_tree, self._action_tree = pool.spec.observation, pool.spec.action
        self._last: Leaves | None = None
        self._first_N = np.ones(pool.num_envs, np.bool_)

    def forget(self) -> None:
        """Have the next run begin with a reset, whatever came before."""
        self._last = None

    def run(self, steps: int | None, seed: Any = None) -> Epoch:
        """Step every env ``steps`` times, or until an episode has ended in each."""
        if self._last is None:
            batch = self._pool.reset(seed=seed)
            self._last, self._first_N = self._obs_tree.flatten(batch.obs), batch.first
        segment = self._blank(steps or _SOME_STEPS)
        for leaf, last in zip(segment.obs_leaves, self._last, strict=True):
            leaf[0] = last
        segment.first[0] = self._first_N
        done, has_ended_N = 0, np.zeros(self._pool.num_envs, np.bool_)
        while done < steps if steps else not has_ended_N.all():
            if done == len(segment):
                segment = _resized(segment, 2 * done)
            self._step(segment, done)
            if not steps:
                has_ended_N |= segment.terminated[done] | segment.truncated[done]
                has_ended_N[list(self._pool.dropped)] = True
            done += 1
        segment = segment if done == len(segment) else _resized(segment, done)
        self._last = [leaf[done].copy() for leaf in segment.obs_leaves]
        self._first_N = segment.first[done].copy()
        return Epoch([segment])

    def _step(self, segment: Segment, t: int) -> None:
        # A copy, because a policy may do with it as it likes.
        obs = self._obs_tree.unflatten([leaf[t].copy() for leaf in segment.obs_leaves])
        count = self._pool.num_envs
        action = self._act(obs, count)
        for column, leaf in zip(segment.action_leaves, self._pool.fit_actions(action, count), strict=True):
            column[t] = leaf
        batch = self._pool.step(action)
        over = batch.terminated | batch.truncated
        segment.reward[t] = batch.reward
        segment.terminated[t] = batch.terminated
        segment.truncated[t] = batch.truncated
        # A first row that ends no episode is a reset in place of a step; a row that reports a fault is no step either.
        segment.executed[t] = ~batch.first | over
        segment.executed[t, failed_rows(batch, self._pool.dropped)] = False
        segment.first[t + 1] = batch.first
        for leaf, new in zip(segment.obs_leaves, self._obs_tree.flatten(batch.obs), strict=True):
            leaf[t + 1] = new
        for row, (final, _) in batch.finals.items():
            segment.finals[t, row] = self._obs_tree.flatten(final)
        if self._pool.autoreset is Autoreset.DISABLED and over.any():
            self._reset(segment, t, np.flatnonzero(over))

    def _reset(self, segment: Segment, t: int, rows: np.ndarray[Any, Any]) -> None:
        """Begin the next episodes of envs that no autoreset has reset."""
        for row in rows.tolist():
            segment.finals[t, row] = [np.array(leaf[t + 1, row]) for leaf in segment.obs_leaves]
        batch = self._pool.reset(env_id=rows)
        for leaf, new in zip(segment.obs_leaves, self._obs_tree.flatten(batch.obs), strict=True):
            leaf[t + 1, rows] = new
        segment.first[t + 1, rows] = True

    def _blank(self, steps: int) -> Segment:
        count = self._pool.num_envs
        return Segment(
            [np.empty((steps + 1, count, *leaf.shape), leaf.dtype) for leaf in self._obs_tree.leaves],
            [np.empty((steps, count, *leaf.shape), leaf.dtype) for leaf in self._action_tree.leaves],
            reward=np.empty((steps, count)),
            terminated=np.empty((steps, count), np.bool_),
            truncated=np.empty((steps, count), np.bool_),
            executed=np.empty((steps, count), np.bool_),
            first=np.empty((steps + 1, count), np.bool_),
            env_id=np.arange(count, dtype=np.int32),
            obs_tree=self._obs_tree,
            action_tree=self._action_tree,
        )


def _resized(segment: Segment, steps: int) -> Segment:
    """The segment at another length: with room at the end, or with its end cut off."""

    def fit(array: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
        fitted = np.empty((rows, *array.shape[1:]), array.dtype)
        fitted[: len(array)] = array[:rows]
        return fitted

    return replace(
        segment,
        obs_leaves=[fit(leaf, steps + 1) for leaf in segment.obs_leaves],
        action_leaves=[fit(leaf, steps) for leaf in segment.action_leaves],
        reward=fit(segment.reward, steps),
        terminated=fit(segment.terminated, steps),
        truncated=fit(segment.truncated, steps),
        executed=fit(segment.executed, steps),
        first=fit(segment.first, steps + 1),
    )


def failed_rows(batch: Batch, dropped: frozenset[int]) -> list[int]:
    """Rows that are not steps: those that report a fault, and all rows of dropped envs."""
    failed = [row for row, info in batch.infos if "fault" in info and batch.truncated[row]]
    if dropped:
        failed += [row for row, i in enumerate(batch.env_id.tolist()) if i in dropped]
    return failed
