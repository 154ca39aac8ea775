"""Returns and lengths of any number of episodes, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_RECENT_EPISODES = 100


class EpisodeStatistics:
    """Means over all episodes, and over the last hundred; None before the first.

    Attributes:
        episodes: How many there were.

    Example:
        >>> seen = EpisodeStatistics()
        >>> seen.add([1.0, 3.0], [10, 20])
        >>> seen.mean_return, seen.std_return, seen.mean_length
        (2.0, 1.0, 15.0)
    """

    def __init__(self) -> None:
        self.episodes = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT_EPISODES)
        self._mean = self._squares = 0.0
        self._length_sum = 0

    def add(self, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Add episodes, by Welford's method, so that a large mean costs no precision.

        In plain Python, because few episodes end at a time: for three of them, numpy takes five times as long.
        """
        self._recent.extend(zip(returns, lengths, strict=True))
        self._length_sum += sum(lengths)
        for value in returns:
            self.episodes += 1
            off = value - self._mean
            self._mean += off / self.episodes
            self._squares += off * (value - self._mean)

    @property
    def mean_return(self) -> float | None:
        """Mean return."""
        return self._mean if self.episodes else None

    @property
    def std_return(self) -> float | None:
        """Standard deviation of the returns."""
        return math.sqrt(self._squares / self.episodes) if self.episodes else None

    @property
    def mean_length(self) -> float | None:
        """Mean length."""
        return self._length_sum / self.episodes if self.episodes else None

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last episodes."""
        return sum(value for value, _ in self._recent) / len(self._recent) if self._recent else None

    @property
    def recent_length(self) -> float | None:
        """Mean length of the last episodes."""
        return sum(length for _, length in self._recent) / len(self._recent) if self._recent else None
