"""How well a pool is used by the code that receives from it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class RecvCounts:
    """Counts receives, and the time around them.

    Args:
        num_envs: How many envs there are.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._handed_out: dict[int, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._since = perf_counter()
        self._batches = self._items = self._partial = self._answers = 0
        self._waiting_s = self._deciding_s = 0.0

    def note_send(self, ids: Sequence[int]) -> None:
        """Note that these envs have been sent a command."""
        now = perf_counter()
        for i in ids:
            before = self._handed_out.pop(i, None)
            if before is not None:
                self._answers += 1
                self._deciding_s += now - before

    def note_recv(self, ids: Sequence[int], began: float) -> None:
        """Note that rows of these envs have been received, by a call that began at ``began``."""
        now = perf_counter()
        self._batches += 1
        self._items += len(ids)
        self._partial += len(ids) < self._num_envs
        self._waiting_s += now - began
        self._handed_out.update(dict.fromkeys(ids, now))

    def take(self, *, reset: bool) -> dict[str, float]:
        """The counts so far; with ``reset``, they start over."""
        batches, items = max(1, self._batches), self._items
        age = max(perf_counter() - self._since, 1e-9)
        counts = {
            "batches": self._batches,
            "items": items,
            "avg_batch_size": items / batches,
            "batch_fill_ratio": items / batches / self._num_envs,
            "partial_batch_fraction": self._partial / batches,
            "avg_observation_to_batch_ms": 1e3 * self._waiting_s / batches,
            "avg_batch_to_action_ms": 1e3 * self._deciding_s / max(1, self._answers),
            "consumer_busy_fraction": max(0.0, 1.0 - self._waiting_s / age),
        }
        if reset:
            self._begin()
        return counts
