"""The result of running a pool: rows over time, and the transitions between them.

    row         0        1        2        3        4
    obs        s0  ──▶  s1  ──▶  s2*      s0' ──▶  s1'        s2* is the last observation of an episode
    action       a0       a1       a2       a3
    executed     yes      yes      no       yes               a2 was ignored: the env was reset instead

That is ``next_step``. Under ``same_step`` row 2 holds s0' already and s2* is kept in ``finals``, so every action is
executed. Either way the transitions are (s0, a0, s1), (s1, a1, s2*), (s0', .., s1'), and none leads from s2* to s0'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.spec import SpaceTree

Leaves = list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Transitions:
    """Steps that were really taken, one row each.

    Attributes:
        obs: Where the step began.
        action: What was done.
        reward: What it brought.
        next_obs: Where it led; at the end of an episode, the true last observation.
        terminated: Whether the task ended there: nothing follows, so a target is the reward alone.
        truncated: Whether the episode was cut there: more would have followed, so a target bootstraps from next_obs.
        env_id: Whose step it was.
    """

    obs: Any
    action: Any
    reward: npt.NDArray[np.float64]
    next_obs: Any
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    env_id: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.reward)


@dataclass(frozen=True)
class Segment:
    """``T`` steps of ``N`` envs.

    Attributes:
        reward: ``[T, N]``; what the action at ``t`` brought.
        terminated: ``[T, N]``; whether the task ended with it.
        truncated: ``[T, N]``; whether the episode was cut with it.
        executed: ``[T, N]``; whether the action was carried out: not so if the env was reset instead, or failed.
        first: ``[T + 1, N]``; whether the observation begins an episode.
        env_id: ``[N]``.
        finals: ``(t, n) ->`` the leaves of the last observation, where ``obs[t + 1, n]`` begins the next episode.
    """

    obs_leaves: Leaves
    action_leaves: Leaves
    reward: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    executed: npt.NDArray[np.bool_]
    first: npt.NDArray[np.bool_]
    env_id: npt.NDArray[np.int32]
    obs_tree: SpaceTree = field(repr=False)
    action_tree: SpaceTree = field(repr=False)
    finals: dict[tuple[int, int], list[Any]] = field(default_factory=dict, repr=False)

    @property
    def obs(self) -> Any:
        """``[T + 1, N, ...]``, nested like the space."""
        return self.obs_tree.unflatten(self.obs_leaves)

    @property
    def action(self) -> Any:
        """``[T, N, ...]``, nested like the space."""
        return self.action_tree.unflatten(self.action_leaves)

    @property
    def next_obs(self) -> Any:
        """``[T, N, ...]``: where each step led, the true last observation at the end of an episode."""
        return self.obs_tree.unflatten(self._next_leaves())

    def __len__(self) -> int:
        """How many steps each env took."""
        return len(self.reward)

    def transitions(self) -> Transitions:
        """The steps that were really taken, in order of time, then of env."""
        return _transitions([self])

    def _cut_after(self) -> npt.NDArray[np.bool_]:
        """``truncated``, but also True for steps after which a fault has cut the episode."""
        failed = self._failed()
        if not failed.any():
            return self.truncated
        cut = self.truncated.copy()
        cut[:-1] |= failed[1:] & self.executed[:-1] & ~self.terminated[:-1]
        return cut

    def _failed(self) -> npt.NDArray[np.bool_]:
        """Rows that report a fault in place of a step."""
        return self.truncated & ~self.executed

    def _next_leaves(self) -> Leaves:
        leaves = [leaf[1:].copy() if self.finals else leaf[1:] for leaf in self.obs_leaves]
        for place, final in self.finals.items():
            for leaf, value in zip(leaves, final, strict=True):
                leaf[place] = value
        return leaves


@dataclass(frozen=True)
class Epoch:
    """The result of one run: one segment of all envs if they move in step, or one per env if each has its own pace."""

    segments: Sequence[Segment]

    @property
    def segment(self) -> Segment:
        """The only segment.

        Raises:
            ArgumentError: If there are several, because the pool is asynchronous.
        """
        if len(self.segments) != 1:
            raise ArgumentError(f"an epoch of {len(self.segments)} segments: an asynchronous pool gives one per env")
        return self.segments[0]

    @property
    def num_steps(self) -> int:
        """How many steps were really taken."""
        return int(sum(np.count_nonzero(segment.executed) for segment in self.segments))

    @property
    def failed_at_once(self) -> list[int]:
        """Envs that failed in the first row: a fault has cut the episode that they brought from the epoch before."""
        return [i for segment in self.segments for i in segment.env_id[segment._failed()[0]].tolist()]

    def transitions(self) -> Transitions:
        """The steps that were really taken."""
        return _transitions(self.segments)


def _transitions(segments: Sequence[Segment]) -> Transitions:
    masks = [segment.executed for segment in segments]
    first = segments[0]

    def gather(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        parts = [array[mask] for array, mask in zip(arrays, masks, strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    before = [[leaf[:-1] for leaf in segment.obs_leaves] for segment in segments]
    after = [segment._next_leaves() for segment in segments]
    actions = [segment.action_leaves for segment in segments]
    return Transitions(
        obs=first.obs_tree.unflatten([gather(leaves) for leaves in zip(*before, strict=True)]),
        action=first.action_tree.unflatten([gather(leaves) for leaves in zip(*actions, strict=True)]),
        reward=gather([segment.reward for segment in segments]),
        next_obs=first.obs_tree.unflatten([gather(leaves) for leaves in zip(*after, strict=True)]),
        terminated=gather([segment.terminated for segment in segments]),
        truncated=gather([segment._cut_after() for segment in segments]),
        env_id=gather([np.broadcast_to(segment.env_id, segment.reward.shape) for segment in segments]),
    )
