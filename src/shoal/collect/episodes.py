"""Whole episodes, cut out of epochs, and evaluations that count every env alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.collect.segment import Epoch, Segment


@dataclass(frozen=True)
class Episode:
    """One whole episode of ``L`` steps.

    Attributes:
        env_id: Whose it was.
        obs: ``[L + 1, ...]``, from the first observation to the true last.
        action: ``[L, ...]``.
        reward: ``[L]``.
        terminated: Whether the task ended it.
        truncated: Whether it was cut.
    """

    env_id: int
    obs: Any
    action: Any
    reward: npt.NDArray[np.float64]
    terminated: bool
    truncated: bool

    @property
    def total(self) -> float:
        """The sum of its rewards."""
        return float(self.reward.sum())

    def __len__(self) -> int:
        """How many steps it took."""
        return len(self.reward)


@dataclass(frozen=True)
class Evaluation:
    """How a policy did: one entry per episode, and equally many episodes from each env, give or take one.

    Taking the first episodes that end would favour short ones.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    env_id: npt.NDArray[np.int32]

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return float(self.returns.std())

    def __len__(self) -> int:
        """How many episodes there were."""
        return len(self.returns)


class Tally:
    """Adds up the rewards and steps of episodes, and keeps nothing else; starts where all envs begin an episode."""

    def __init__(self, num_envs: int) -> None:
        self._return_N = np.zeros(num_envs)
        self._length_N = np.zeros(num_envs, np.int64)

    def count(self, epoch: Epoch) -> Iterator[tuple[int, float, int]]:
        """Env, return and length of each episode that ended in this epoch."""
        for segment in epoch.segments:
            ids, over = segment.env_id, segment.terminated | segment.truncated
            reward = np.where(segment.executed, segment.reward, 0.0)
            for t in range(len(segment)):
                self._return_N[ids] += reward[t]
                self._length_N[ids] += segment.executed[t]
                for i in ids[over[t]].tolist():
                    if self._length_N[i]:  # unless a fault came before its first step
                        yield i, float(self._return_N[i]), int(self._length_N[i])
                    self._return_N[i] = self._length_N[i] = 0


class EpisodeCutter:
    """Cuts epochs into episodes; what an epoch leaves unfinished is finished by the next."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[Segment, int, int, int]]] = {}
        # Envs whose last episode ended with the last row, so that the next row begins another.
        self._between: set[int] = set()

    def forget(self) -> None:
        """Drop unfinished episodes, because the next epoch does not go on where the last one ended."""
        self._parts.clear()
        self._between.clear()

    def cut(self, epoch: Epoch) -> Iterator[Episode]:
        """The episodes that ended in this epoch, in the order of their ends within each segment."""
        for segment in epoch.segments:
            over = segment.terminated | segment.truncated
            ids = segment.env_id.tolist()
            # An episode whose beginning was not seen is not whole, so it is left out.
            headless = {n for n, i in enumerate(ids) if not (segment.first[0, n] or self._knows(i))}
            starts = [0] * len(ids)
            for t, n in np.argwhere(over).tolist():
                if n in headless:
                    headless.discard(n)
                else:
                    yield from self._finish(segment, n, starts[n], t + 1)
                starts[n] = t + 1
            for n, start in enumerate(starts):
                self._between.discard(ids[n])
                if start == len(segment):
                    self._between.add(ids[n])
                elif n not in headless:
                    self._keep(segment, n, start, len(segment))

    def _knows(self, env_id: int) -> bool:
        return env_id in self._parts or env_id in self._between

    def _keep(self, segment: Segment, n: int, start: int, stop: int) -> None:
        if stop > start:
            self._parts.setdefault(int(segment.env_id[n]), []).append((segment, n, start, stop))

    def _finish(self, segment: Segment, n: int, start: int, stop: int) -> Iterator[Episode]:
        env_id = int(segment.env_id[n])
        self._keep(segment, n, start, stop)
        if env_id not in self._parts:
            return
        episode = _join(env_id, self._parts.pop(env_id))
        if episode is not None:
            yield episode


def _join(env_id: int, parts: list[tuple[Segment, int, int, int]]) -> Episode | None:
    """One episode from its parts; None if a fault came before its first step."""
    last, n, _, stop = parts[-1]
    taken = [segment.executed[start:end, k] for segment, k, start, end in parts]
    if not any(mask.any() for mask in taken):
        return None

    def gather(pick: Any) -> list[np.ndarray[Any, Any]]:
        columns = zip(*(pick(segment) for segment, *_ in parts), strict=True)
        return [
            np.concatenate([c[a:b, k][mask] for c, mask, (_, k, a, b) in zip(column, taken, parts, strict=True)])
            for column in columns
        ]

    before = gather(lambda segment: [leaf[:-1] for leaf in segment.obs_leaves])
    final = last.finals.get((stop - 1, n)) or [leaf[stop, n] for leaf in last.obs_leaves]
    whole = [np.concatenate([leaf, np.asarray(end)[None]]) for leaf, end in zip(before, final, strict=True)]
    return Episode(
        env_id,
        last.obs_tree.unflatten(whole),
        last.action_tree.unflatten(gather(lambda segment: segment.action_leaves)),
        gather(lambda segment: [segment.reward])[0],
        bool(last.terminated[stop - 1, n]),
        bool(last.truncated[stop - 1, n]),
    )
