"""What a pool has done, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counters of a pool since it was made.

    Attributes:
        engine: Name of the engine.
        engine_reason: Why this engine was chosen, when the choice was left to shoal.
        num_envs: How many envs there are.
        num_workers: How many workers run them.
        steps: Rows that answered a step, autoresets included.
        resets: Rows that answered an explicit reset.
        episodes: Episodes that ended.
        batches: Batches handed out.
        faults: How often an env has failed, whatever became of it.
        restarts: How often an env has been built anew.
        dropped: Envs that are out.
        nans: Rows with NaN, or with an infinite reward.
        recycled: Workers that were replaced because they held too much memory.
        worker_rss_bytes: Memory that each worker process holds now; empty where envs run in this process.
        waiting_s: Time spent waiting for envs.
        handling_s: Time spent in the pool itself: checking actions, copying rows, collecting infos.
        age_s: Time since the pool was made.

    Example:
        >>> import shoal
        >>> with shoal.make_pool("CartPole-v1", 2, engine="serial") as pool:
        ...     batch = pool.reset(seed=1)
        ...     stats = pool.stats()
        >>> stats.engine, stats.resets, stats.steps
        ('serial', 2, 0)
    """

    engine: str
    engine_reason: str
    num_envs: int
    num_workers: int
    steps: int
    resets: int
    episodes: int
    batches: int
    faults: int
    restarts: int
    dropped: int
    nans: int
    recycled: int
    worker_rss_bytes: tuple[int, ...]
    waiting_s: float
    handling_s: float
    age_s: float

    @property
    def outside_s(self) -> float:
        """Time spent outside the pool: the policy, the learner, the rest of the program."""
        return max(0.0, self.age_s - self.waiting_s - self.handling_s)

    def as_dict(self) -> dict[str, Any]:
        """All counters by name."""
        return asdict(self)
