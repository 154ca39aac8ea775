"""The driving loop: step a pool, count steps and episodes, and see where the time goes.

reset ─▶ ┌─ actions ─▶ step, or send and recv ─▶ tally ─┐ ─▶ RunResult
         └──────────────────────────────────────────────┘  until enough steps are done, or Ctrl-C
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.batch import Batch
from shoal.cli.actions import Actor
from shoal.collect.random_actions import RandomActions
from shoal.collect.statistics import EpisodeStatistics
from shoal.errors import ArgumentError
from shoal.pool import Pool
from shoal.slot import Autoreset
from shoal.stats import PoolStats


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        steps: Env steps so far.
        total_steps: Env steps asked for.
        elapsed_s: Time since the first step.
        episodes: Episodes finished.
        recent_return: Mean return of the last 100 of them; None before the first.
        recent_length: Mean length of the same episodes.
    """

    steps: int
    total_steps: int
    elapsed_s: float
    episodes: int
    recent_return: float | None
    recent_length: float | None

    @property
    def steps_per_s(self) -> float:
        """Env steps per second so far."""
        return self.steps / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did and what it cost.

    Attributes:
        env: The env's name.
        num_envs: How many envs there were.
        batch_size: Rows per batch.
        autoreset: The boundary rule.
        engine: The engine that ran them.
        engine_reason: Why that engine, if the choice was left to shoal.
        num_workers: Threads or processes.
        steps: Env steps done. A row that only resets an env is not a step.
        elapsed_s: Time from the first step to the last row.
        steps_per_s: Env steps per second.
        episodes: Episodes finished.
        mean_return: Mean return of the finished episodes; None if there are none.
        std_return: Their standard deviation.
        mean_length: Their mean length in steps.
        envs_s: Part of ``elapsed_s`` spent waiting for envs; on the serial engine, running them.
        pool_s: Part spent in the pool itself.
        loop_s: The rest: the policy and this loop.
        interrupted: Whether Ctrl-C ended the run.
    """

    env: str
    num_envs: int
    batch_size: int
    autoreset: str
    engine: str
    engine_reason: str
    num_workers: int
    steps: int
    elapsed_s: float
    steps_per_s: float
    episodes: int
    mean_return: float | None
    std_return: float | None
    mean_length: float | None
    envs_s: float
    pool_s: float
    loop_s: float
    interrupted: bool

    def as_dict(self) -> dict[str, Any]:
        """All fields by name; all values fit into JSON."""
        return for_json(asdict(self))


def for_json(values: dict[str, Any]) -> dict[str, Any]:
    """The same values, with None for numbers that JSON does not have, such as the mean of returns that overflow."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def drive(
    pool: Pool,
    actor: Actor | None = None,
    *,
    steps: int,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    progress_every_s: float = 0.1,
) -> RunResult:
    """Reset a pool and step it until its envs have done at least ``steps`` steps.

    A synchronous pool is driven with ``step``; an asynchronous one with ``send`` and ``recv``, each batch answered
    as it arrives. Ctrl-C ends the run early, and the result says so.

    Args:
        pool: The pool; it is left open.
        actor: Called with observations and their number, returns as many actions. By default actions are random.
        steps: Env steps to do.
        seed: The seed of the envs and of the random actions.
        on_progress: Called now and then.
        progress_every_s: Seconds between two such calls.

    Example:
        >>> import shoal
        >>> from shoal.cli.drive import drive
        >>> with shoal.make_pool("CartPole-v1", 4, engine="serial") as pool:
        ...     result = drive(pool, steps=100, seed=1)
        >>> result.steps >= 100, result.interrupted
        (True, False)
    """
    if steps < 1:
        raise ArgumentError(f"steps: expected at least 1, got {steps}")
    actor = actor or RandomActions(pool.spec.action, seed)
    tally = EpisodeTally(pool.num_envs)
    interrupted = False
    before, start = pool.stats(), perf_counter()
    end = start
    try:
        first = pool.reset(seed)
        before, start = pool.stats(), perf_counter()
        end = due = start
        for batch in _rows(pool, actor, first):
            tally.add(batch)
            end = perf_counter()
            if on_progress is not None and end >= due:
                due = end + progress_every_s
                seen = tally.statistics
                on_progress(
                    Progress(tally.steps, steps, end - start, seen.episodes, seen.recent_return, seen.recent_length)
                )
            if tally.steps >= steps:
                break
    except KeyboardInterrupt:
        interrupted = True
    return _result(pool, tally, before, end - start, interrupted)


class EpisodeTally:
    """Returns and lengths of episodes, added up over batches from any mix of envs.

    The rules are the same in every autoreset mode. A row's reward belongs to the episode that the row's flags describe,
    so a row that ends an episode still counts for it, even under ``same_step``, where the row's observation is already
    the next episode's. A row that is ``first`` and ends nothing begins a new sum: it answers a reset. ``elapsed_step``
    is 0 only in such rows, so every other row is a step.

    Attributes:
        steps: Env steps seen.
        statistics: Statistics of the episodes that ended.
    """

    def __init__(self, num_envs: int) -> None:
        self.steps = 0
        self.statistics = EpisodeStatistics()
        self._returns_N = np.zeros(num_envs)

    def add(self, batch: Batch) -> None:
        """Count the rows of a batch."""
        over = batch.terminated | batch.truncated
        self.steps += int(np.count_nonzero(batch.elapsed_step))
        sums = self._returns_N[batch.env_id] + batch.reward
        begun = batch.first & ~over
        if over.any():
            self.statistics.add(sums[over].tolist(), batch.elapsed_step[over].tolist())
            sums[over] = 0.0
        if begun.any():
            sums[begun] = 0.0
        self._returns_N[batch.env_id] = sums


def _rows(pool: Pool, actor: Actor, first: Batch) -> Iterator[Batch]:
    """Endless batches, each the answer to the actions for the one before."""
    if pool.is_async:
        # All envs get an action; from then on each batch that arrives is answered while the others are busy.
        pool.send(actor(first.obs, len(first)))
        while True:
            batch = pool.recv()
            yield batch
            _answer(pool, actor, batch)
    obs, rows = first.obs, len(first)
    while True:
        batch = pool.step(actor(obs, rows))
        yield batch
        obs = batch.obs
        if pool.autoreset is Autoreset.DISABLED:
            over = batch.terminated | batch.truncated
            if over.any():
                pool.reset(env_id=batch.env_id[over])
                obs = pool.latest().obs


def _answer(pool: Pool, actor: Actor, batch: Batch) -> None:
    """Send the next action of each env in the batch, or reset it if its episode is over and nobody else will."""
    if pool.autoreset is Autoreset.DISABLED:
        over = batch.terminated | batch.truncated
        if over.any():
            pool.async_reset(env_id=batch.env_id[over])
            rest = np.flatnonzero(~over)
            if len(rest):
                pool.send(actor(_take(batch.obs, rest), len(rest)), batch.env_id[rest])
            return
    pool.send(actor(batch.obs, len(batch)), batch.env_id)


def _take(obs: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Some rows of nested observations."""
    if isinstance(obs, dict):
        return {key: _take(value, rows) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_take(value, rows) for value in obs)
    return obs[rows]


def _result(pool: Pool, tally: EpisodeTally, before: PoolStats, elapsed_s: float, interrupted: bool) -> RunResult:
    after = pool.stats()
    envs_s = after.waiting_s - before.waiting_s
    pool_s = after.handling_s - before.handling_s
    # A call that Ctrl-C cut short spent time in the pool after the last row.
    elapsed_s = max(elapsed_s, envs_s + pool_s)
    return RunResult(
        env=pool.spec.id,
        num_envs=pool.num_envs,
        batch_size=pool.batch_size,
        autoreset=str(pool.autoreset),
        engine=after.engine,
        engine_reason=after.engine_reason,
        num_workers=after.num_workers,
        steps=tally.steps,
        elapsed_s=elapsed_s,
        steps_per_s=tally.steps / elapsed_s if elapsed_s > 0 else 0.0,
        episodes=tally.statistics.episodes,
        mean_return=tally.statistics.mean_return,
        std_return=tally.statistics.std_return,
        mean_length=tally.statistics.mean_length,
        envs_s=envs_s,
        pool_s=pool_s,
        loop_s=max(0.0, elapsed_s - envs_s - pool_s),
        interrupted=interrupted,
    )
