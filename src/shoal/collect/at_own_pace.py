"""Recording a pool whose envs answer when they are ready: one stream of rows per env."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.collect.in_step import failed_rows
from shoal.collect.segment import Epoch, Segment
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batch import Batch
    from shoal.pool import Pool

Row = list[Any]  # the leaves of one env's observation or action


@dataclass
class Stream:
    """The rows of one env since the epoch began; the first is the last row of the epoch before."""

    obs: list[Row] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)
    action: list[Row] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    executed: list[bool] = field(default_factory=list)
    finals: dict[tuple[int, int], Row] = field(default_factory=dict)

    @property
    def is_waiting(self) -> bool:
        """Whether an action was sent whose row has not arrived yet."""
        return len(self.action) > len(self.reward)

    def begin_again(self) -> None:
        """Keep the last row and the action that is under way, and forget the rest."""
        pending = self.action[len(self.reward) :]
        self.obs, self.first, self.action = self.obs[-1:], self.first[-1:], pending
        self.reward, self.terminated, self.truncated, self.executed, self.finals = [], [], [], [], {}


class AtOwnPace:
    """Answers rows as they arrive; what is under way when an epoch ends is part of the next."""

    def __init__(self, pool: Pool, act: Callable[[Any, int], Any]) -> None:
        self._pool = pool
        self._act = act
        self._obs_tree, self._action_tree = pool.spec.observation, pool.spec.action
        self._streams = [Stream() for _ in range(pool.num_envs)]
        self._has_begun = False

    def forget(self) -> None:
        """Have the next run begin with a reset, whatever came before."""
        self._streams = [Stream() for _ in self._streams]
        self._has_begun = False

    def run(self, steps: int | None, seed: Any = None) -> Epoch:
        """Take as many rows as if every env had been stepped ``steps`` times, or until each has ended an episode."""
        if not self._has_begun:
            self._pool.async_reset(seed=seed)
            self._has_begun = True
        wanted, unended = (steps or 0) * self._pool.num_envs, set(range(self._pool.num_envs))
        while wanted > 0 if steps else unended:
            batch = self._pool.recv()
            wanted -= self._take(batch)
            if not steps:
                unended.difference_update(batch.env_id[batch.terminated | batch.truncated].tolist(), self._pool.dropped)
            self._answer(batch)
        epoch = Epoch([self._segment(i) for i, stream in enumerate(self._streams) if stream.reward])
        for stream in self._streams:
            stream.begin_again()
        return epoch

    def _take(self, batch: Batch) -> int:
        """Add rows to their streams; returns how many of them were answers to actions."""
        leaves = self._obs_tree.flatten(batch.obs)
        failed = failed_rows(batch, self._pool.dropped)
        taken = 0
        for row, env_id in enumerate(batch.env_id.tolist()):
            stream, obs = self._streams[env_id], [leaf[row] for leaf in leaves]
            over = bool(batch.terminated[row] or batch.truncated[row])
            if not stream.is_waiting:  # an explicit reset, whose row replaces the one before
                if stream.obs:
                    if stream.reward:  # otherwise the row before is the last of an epoch already handed out
                        stream.finals[len(stream.reward) - 1, 0] = stream.obs[-1]
                    stream.obs[-1], stream.first[-1] = obs, True
                else:
                    stream.obs.append(obs)
                    stream.first.append(True)
                continue
            if row in batch.finals:
                stream.finals[len(stream.reward), 0] = self._obs_tree.flatten(batch.finals[row][0])
            stream.reward.append(float(batch.reward[row]))
            stream.terminated.append(bool(batch.terminated[row]))
            stream.truncated.append(bool(batch.truncated[row]))
            stream.executed.append((not batch.first[row] or over) and row not in failed)
            stream.obs.append(obs)
            stream.first.append(bool(batch.first[row]))
            taken += 1
        return taken

    def _answer(self, batch: Batch) -> None:
        # A dropped env answers at once: if it were sent actions, its rows would fill the next batch, and all after it.
        is_in = ~np.isin(batch.env_id, list(self._pool.dropped))
        over = (batch.terminated | batch.truncated) & is_in
        if self._pool.autoreset is Autoreset.DISABLED and over.any():
            self._pool.async_reset(env_id=batch.env_id[over])
            is_in &= ~over
        rows = np.flatnonzero(is_in)
        if not len(rows):
            return
        leaves = self._obs_tree.flatten(batch.obs)
        action = self._act(self._obs_tree.unflatten([leaf[rows] for leaf in leaves]), len(rows))
        ids = batch.env_id[rows]
        fitted = self._pool.fit_actions(action, len(rows))
        for k, env_id in enumerate(ids.tolist()):
            self._streams[env_id].action.append([np.copy(leaf[k]) for leaf in fitted])
        self._pool.send(action, ids)

    def _segment(self, env_id: int) -> Segment:
        stream = self._streams[env_id]
        steps = len(stream.reward)

        def column(values: list[Any], dtype: Any) -> np.ndarray[Any, Any]:
            return np.array(values, dtype).reshape(len(values), 1)

        def stack(rows: list[Row], tree: Any) -> list[np.ndarray[Any, Any]]:
            stacked = []
            for j, leaf in enumerate(tree.leaves):
                array = np.empty((len(rows), 1, *leaf.shape), leaf.dtype)
                for t, row in enumerate(rows):
                    array[t, 0] = row[j]
                stacked.append(array)
            return stacked

        return Segment(
            stack(stream.obs, self._obs_tree),
            stack(stream.action[:steps], self._action_tree),
            reward=column(stream.reward, np.float64),
            terminated=column(stream.terminated, np.bool_),
            truncated=column(stream.truncated, np.bool_),
            executed=column(stream.executed, np.bool_),
            first=column(stream.first, np.bool_),
            env_id=np.array([env_id], np.int32),
            obs_tree=self._obs_tree,
            action_tree=self._action_tree,
            finals=stream.finals,
        )
