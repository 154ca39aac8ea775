"""Collecting into a folder, part by part, so that a run can stop at any moment and be resumed later.

    part k:   seed of part k ─▶ reset all envs ─▶ collect ─▶ draft ─▶ rename to part-0000k ─▶ rewrite _dataset.json

Each part begins with a reset, with a seed that follows from the dataset's seed and the part's number and from nothing
else. So it does not matter whether the parts before it were collected by the same run, or yesterday.
"""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arguments import check_count
from shoal.collect.collector import Collector
from shoal.collect.columns import Column, Counters, Rows, columns_of, rows_of
from shoal.collect.dataset import DatasetConfig, Part, Story
from shoal.collect.folder import begin, find_story, holds_dataset, sole_writer, supersede
from shoal.collect.formats import check_format, part_writer
from shoal.collect.identity import kwargs_of, name_of, plain, time_limit_of
from shoal.collect.statistics import EpisodeStatistics
from shoal.errors import ArgumentError
from shoal.seeding import entropy

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from shoal.collect.collector import Policy
    from shoal.collect.folder import Existing
    from shoal.pool import Pool

_PART_ROWS = 2**17
_STEPS_PER_PART = 2048  # of each env: in most tasks several episodes
_NPZ_BYTES = 512 * 2**20  # an npz is held in memory as a whole before it is written
_EPOCH_S = 0.1  # how long to collect between progress reports, which must not seem to stand still
_EPOCH_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Written:
    """What a run has written, so far or in the end.

    Attributes:
        rows: Rows of this run.
        total_rows: Rows that this run is to write.
        elapsed_s: Time since the first reset.
        episodes: Episodes that ended in this run.
        mean_return: Their mean return; None if there are none.
        std_return: The standard deviation of their returns.
        mean_length: Their mean length.
        recent_return: Mean return of the last 100.
        recent_length: Mean length of the last 100.
    """

    rows: int
    total_rows: int
    elapsed_s: float
    episodes: int
    mean_return: float | None
    std_return: float | None
    mean_length: float | None
    recent_return: float | None
    recent_length: float | None

    @property
    def rows_per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.elapsed_s if self.elapsed_s > 0 else 0.0


def write_dataset(
    pool: Pool | Any,
    folder: str | os.PathLike[str],
    *,
    steps: int,
    policy: Policy | None = None,
    seed: int | None = None,
    format: str = "parquet",
    existing: Existing = "refuse",
    part_rows: int | None = None,
    env: str | None = None,
    env_kwargs: dict[str, Any] | None = None,
    policy_name: str | None = None,
    on_progress: Callable[[Written], None] | None = None,
) -> Written:
    """Collect transitions into a folder until there are ``steps`` of them.

    Args:
        pool: A pool whose envs move in step, or a face with such a ``pool``.
        folder: Where to; it is created if it does not exist.
        steps: How many rows the dataset is to have.
        policy: Takes a batch of observations and returns as many actions; None acts at random.
        seed: Seed of the dataset. None takes that of the dataset being resumed, or else draws one and records it.
        format: ``"parquet"`` or ``"npz"``.
        existing: A dataset that exists: ``"refuse"``, ``"resume"``, or ``"overwrite"`` it once a new part is complete.
        part_rows: Rows per part. All envs are reset when a part begins, so give each env several episodes in it.
        env: What the dataset is to call the env.
        env_kwargs: What the env was made with, for the record; None finds it out.
        policy_name: What the dataset is to call the policy; by default its place, and a digest of code without one.
        on_progress: Called several times a second.

    Raises:
        ArgumentError: If there is a dataset that must not be touched, or one that cannot be resumed.
        BackendUnavailable: If Parquet is asked for and pyarrow is not installed.
        ResourceError: If the disk is full, or the folder cannot be written to. Complete parts stay.

    Example:
        >>> import tempfile, shoal
        >>> with shoal.make_pool("CartPole-v1", 4, engine="serial") as pool:
        ...     shoal.collect.write_dataset(pool, tempfile.mkdtemp(), steps=100, format="npz").rows
        100
    """
    pool, path, seed = getattr(pool, "pool", pool), Path(folder), _seed(seed)
    check_count("steps", steps, may_be_none=False)
    check_count("part_rows", part_rows)
    if pool.is_async:
        raise ArgumentError("pool: its envs must move in step; which rows come first is a matter of chance otherwise")
    columns = columns_of(pool.spec)
    check_format(format, columns)
    with sole_writer(path):
        story = find_story(path, existing)
        named = _names(pool, env, env_kwargs, policy_name or name_of(policy))
        config = _config(pool, columns, story.config if story else None, named, seed, format, part_rows)
        if story is not None and (difference := story.config.difference(config)):
            raise ArgumentError(f"{path}: cannot be resumed: {difference}")
        story = story or Story(config, tuple(columns), next_episode=(0,) * pool.num_envs)
        replaces = existing == "overwrite" and holds_dataset(path)
        if not replaces:
            begin(path, story)
        return _Run(pool, policy, path, story, int(steps), on_progress, replaces=replaces).write()


def _names(pool: Pool, env: str | None, env_kwargs: dict[str, Any] | None, policy: str) -> dict[str, Any]:
    """What a dataset says about who made its rows."""
    kwargs = kwargs_of(pool) if env_kwargs is None else plain(env_kwargs)
    return {"env": env or pool.spec.id, "env_kwargs": kwargs, "policy": policy}


def _config(
    pool: Pool,
    columns: Sequence[Column],
    stored: DatasetConfig | None,
    named: dict[str, Any],
    seed: int | None,
    format: str,
    part_rows: int | None,
) -> DatasetConfig:
    """The config of this run; what the caller left open is as in the dataset being resumed, if there is one."""
    if seed is None:
        seed = stored.seed if stored else entropy()
    if part_rows is None:
        part_rows = stored.part_rows if stored else _rows_per_part(pool, columns, format)
    return DatasetConfig(
        **named,
        num_envs=pool.num_envs,
        seed=seed,
        format=format,
        part_rows=int(part_rows),
        observation_space=str(pool.spec.observation.space),
        action_space=str(pool.spec.action.space),
        engine=pool.stats().engine,
        shoal=sys.modules["shoal"].__version__,
        autoreset=pool.autoreset.value,
        max_episode_steps=time_limit_of(pool),
    )


def _seed(seed: Any) -> int | None:
    if seed is None:
        return None
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise ArgumentError(f"seed: expected an int of at least 0, or None, got {seed!r}")
    return number


def part_seed(seed: int, number: int) -> int:
    """The seed of a part, from that of its dataset and its number.

    Example:
        >>> from shoal.collect.writing import part_seed
        >>> part_seed(7, 0) != part_seed(7, 1)
        True
    """
    # 31 bits, because some envs take no more.
    return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1, np.uint32)[0] >> 1)


def _rows_per_part(pool: Pool, columns: Sequence[Column], format: str) -> int:
    rows = max(_PART_ROWS, _STEPS_PER_PART * pool.num_envs)
    if format == "npz":
        rows = min(rows, _NPZ_BYTES // sum(column.row_bytes for column in columns))
    return max(rows, pool.num_envs)


class _Run:
    """One run of ``write_dataset``, from the story so far to one that has all rows."""

    def __init__(
        self,
        pool: Pool,
        policy: Policy | None,
        folder: Path,
        story: Story,
        steps: int,
        on_progress: Callable[[Written], None] | None,
        *,
        replaces: bool,
    ) -> None:
        self._pool, self._policy, self._folder = pool, policy, folder
        self._story, self._steps, self._on_progress = story, steps, on_progress
        self._replaces = replaces
        self._before = story.rows
        self._tally = _Tally()
        self._start = perf_counter()
        row_bytes = sum(column.row_bytes for column in story.columns)
        self._pace = _Pace(pool.num_envs, row_bytes * pool.num_envs)

    def write(self) -> Written:
        """Write parts until there are enough rows."""
        while (left := self._steps - self._story.rows) > 0:
            self._write_part(min(left, self._story.config.part_rows))
        return self._written()

    def _write_part(self, rows: int) -> None:
        story, number = self._story, len(self._story.parts)
        seed = part_seed(story.config.seed, number)
        collector = Collector(self._pool, self._policy, seed=seed)
        next_episode = np.array(story.next_episode, np.int32)
        counters, tally = Counters(next_episode), _Tally()
        file = f"part-{number:05d}.{story.config.format}"
        path = self._folder / file
        # An old dataset stays until there is something to replace it with.
        make_way = partial(supersede, self._folder, story, path) if self._replaces and not number else None
        with part_writer(path, story.config.format, story.columns, make_way) as writer:
            for new in self._collected(collector, counters, rows):
                writer.add(new.columns)
                np.maximum.at(next_episode, new.columns["env_id"], new.columns["episode"] + 1)
                tally.add(new)
                self._tally.add(new)
                if self._on_progress is not None:
                    self._on_progress(self._written())
        seen = tally.statistics
        part = Part(file, rows, seen.episodes, seed, seen.mean_return, seen.mean_length)
        self._story = story.with_part(part, next_episode.tolist())
        self._story.save(self._folder)

    def _collected(self, collector: Collector, counters: Counters, rows: int) -> Iterator[Rows]:
        """So many rows, epoch by epoch, each held back until the next one says which episodes a fault has cut."""
        held: Rows | None = None
        while rows > 0:
            start = perf_counter()
            epoch = collector.collect(self._pace.steps(rows))
            self._pace.took(perf_counter() - start)
            if held is not None:
                held.cut(epoch.failed_at_once)
                yield held
            held = rows_of(epoch, counters, rows)
            rows -= len(held)
        if held is not None:
            yield held

    def _written(self) -> Written:
        seen = self._tally.statistics
        return Written(
            rows=self._tally.rows,
            total_rows=max(0, self._steps - self._before),
            elapsed_s=perf_counter() - self._start,
            episodes=seen.episodes,
            mean_return=seen.mean_return,
            std_return=seen.std_return,
            mean_length=seen.mean_length,
            recent_return=seen.recent_return,
            recent_length=seen.recent_length,
        )


class _Tally:
    """The number of rows, and statistics of the episodes in them."""

    def __init__(self) -> None:
        self.rows = 0
        self.statistics = EpisodeStatistics()

    def add(self, rows: Rows) -> None:
        self.rows += len(rows)
        self.statistics.add(rows.returns.tolist(), rows.lengths.tolist())


class _Pace:
    """How many steps to collect at a time, which makes no difference to the rows, because epochs are contiguous."""

    def __init__(self, num_envs: int, bytes_per_step: int) -> None:
        self._num_envs = num_envs
        self._most = max(1, _EPOCH_BYTES // max(1, bytes_per_step))
        self._steps = min(8, self._most)

    def steps(self, rows: int) -> int:
        """How many steps of all envs to take next, if ``rows`` more rows are wanted."""
        return min(self._steps, -(-rows // self._num_envs))

    def took(self, elapsed_s: float) -> None:
        """Take more steps next time if this time was short, fewer if it was long."""
        if elapsed_s < _EPOCH_S / 2:
            self._steps = min(self._most, self._steps * 2)
        elif elapsed_s > _EPOCH_S * 2:
            self._steps = max(1, self._steps // 2)
