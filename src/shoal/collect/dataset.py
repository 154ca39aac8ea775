"""Datasets on disk, and how to read them.

    data/cartpole/
        _dataset.json        what it is: config, columns, and every part that is complete
        part-00000.parquet   one row per transition
        part-00001.parquet
        .part-00002.parquet.draft    being written, or left by a run that was killed

``_dataset.json`` is the truth: a file that it does not list is not a part yet. Both it and the parts are plain data.
Loading imports nothing that they name, and unpickles nothing.

Readers of Parquet folders skip names that begin with an underscore or a dot, so they see the parts and nothing else.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.collect.columns import TEXT, Column, Columns
from shoal.collect.formats import FORMATS, atomic_file, read_part
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

FORMAT_VERSION = 1
STORY = "_dataset.json"
PART_NAME = re.compile(r"part-\d{5,}\.(parquet|npz)")
_MOST_BYTES = 256 * 2**20  # of _dataset.json: many times what a million parts take


@dataclass(frozen=True)
class DatasetConfig:
    """How a dataset was made.

    Attributes:
        env: The id, or ``module:callable``.
        env_kwargs: What it was called with; a list with a dict per env, if they differ.
        num_envs: How many envs there were.
        policy: Who acted: ``"random"``, or ``module:callable``, with a digest of the code where that says too little.
        seed: The seed of the dataset, from which those of its parts are derived.
        format: ``"parquet"`` or ``"npz"``.
        part_rows: How many rows a part has; the last one may have fewer.
        observation_space: As Gymnasium writes it.
        action_space: As Gymnasium writes it.
        engine: Where the envs ran; it makes no difference to the data.
        shoal: The version of shoal.
        autoreset: The autoreset mode of the pool: it decides which rows a part has, and in which order. None in
            datasets from before it was recorded.
        max_episode_steps: The time limit of the envs; None if they have none, or it is not known.
    """

    env: str
    env_kwargs: dict[str, Any] | list[dict[str, Any]]
    num_envs: int
    policy: str
    seed: int
    format: str
    part_rows: int
    observation_space: str
    action_space: str
    engine: str
    shoal: str
    autoreset: str | None = None
    max_episode_steps: int | None = None

    def difference(self, other: DatasetConfig) -> str | None:
        """What in another config would lead to other data, in words; None if nothing would."""
        ignored = ("engine", "shoal") if self.autoreset else ("engine", "shoal", "autoreset", "max_episode_steps")
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs and field.name not in ignored:
                return f"{field.name} is {mine!r} there and {theirs!r} here"
        return None


@dataclass(frozen=True)
class Part:
    """One file of a dataset.

    Attributes:
        file: Its name.
        rows: How many rows it has.
        episodes: How many episodes end in it.
        seed: ``Collector(pool, policy, seed=seed)`` collects these rows first.
        mean_return: The mean return of its episodes; None if there are none.
        mean_length: Their mean length.
    """

    file: str
    rows: int
    episodes: int
    seed: int
    mean_return: float | None = None
    mean_length: float | None = None


@dataclass(frozen=True)
class Story:
    """What ``_dataset.json`` says.

    Attributes:
        config: How the data were made.
        columns: What a row has.
        parts: The parts that are complete.
        next_episode: For each env, the number of its next episode.
    """

    config: DatasetConfig
    columns: tuple[Column, ...]
    parts: tuple[Part, ...] = ()
    next_episode: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the parts have."""
        return sum(part.rows for part in self.parts)

    @property
    def episodes(self) -> int:
        """How many episodes end in them."""
        return sum(part.episodes for part in self.parts)

    def with_part(self, part: Part, next_episode: Iterable[int]) -> Story:
        """The same story with one more part."""
        return replace(self, parts=(*self.parts, part), next_episode=tuple(next_episode))

    def save(self, folder: Path) -> None:
        """Write it atomically."""
        told = {"format_version": FORMAT_VERSION, "rows": self.rows, "episodes": self.episodes, **asdict(self)}
        with atomic_file(folder / STORY) as file:
            file.write(_as_text(told).encode())

    @classmethod
    def load(cls, folder: Path) -> Story:
        """Read it.

        Raises:
            ArgumentError: If it is missing or malformed.
        """
        path = folder / STORY
        if not path.is_file():
            raise ArgumentError(f"{folder}: there is no dataset ({STORY} is missing)")
        try:
            return cls._read(path)
        # Anything may be wrong with it, from a comma to a nesting that no parser survives.
        except Exception as error:
            raise ArgumentError(f"{path}: not a dataset that can be read ({error or type(error).__name__})") from error

    @classmethod
    def _read(cls, path: Path) -> Story:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large to be one")
        told = json.loads(path.read_bytes())
        if told["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {told['format_version']}, and this shoal reads {FORMAT_VERSION}")
        columns = (Column(c["name"], c["dtype"], tuple(c["shape"])) for c in told["columns"])
        parts = (Part(**part) for part in told["parts"])
        story = cls(DatasetConfig(**told["config"]), tuple(columns), tuple(parts), tuple(told["next_episode"]))
        _refuse_nonsense(story)
        return story


def _as_text(told: dict[str, Any]) -> str:
    """JSON for human readers too: one line per setting, column and part, but not per env."""
    lines = []
    for name, value in told.items():
        text = json.dumps(value)
        if isinstance(value, dict):
            inner = (f"  {json.dumps(key)}: {json.dumps(own)}" for key, own in value.items())
            text = "{\n" + ",\n".join(inner) + "\n }"
        elif value and isinstance(value, tuple) and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _refuse_nonsense(story: Story) -> None:
    """Raise if some entry is not of the kind that readers rely on."""
    if story.config.format not in FORMATS:
        raise ValueError(f"format: {story.config.format!r}")
    for column in story.columns:
        if not (isinstance(column.name, str) and (column.dtype == TEXT or np.dtype(column.dtype).kind in "biuf")):
            raise ValueError(f"column: {column}")
        if not all(type(n) is int and n >= 0 for n in column.shape):
            raise ValueError(f"column: {column}")
    for part in story.parts:
        # A name and nothing but a name: it must not lead out of the folder.
        if not PART_NAME.fullmatch(part.file) or type(part.rows) is not int or part.rows < 0:
            raise ValueError(f"part: {part}")
    if not all(type(number) is int for number in (story.config.seed, story.config.num_envs, *story.next_episode)):
        raise ValueError("numbers that are none")


class Dataset:
    """A dataset on disk: the parts that were complete when it was loaded.

    Iteration yields one dict of arrays per part, so that a dataset need not fit into memory.

    Attributes:
        path: Its folder.
        config: How it was made.
        columns: What each column holds, by name.
        parts: What there is to know about each part.
    """

    def __init__(self, path: Path, story: Story) -> None:
        self.path = path
        self.config = story.config
        self.columns = {column.name: column for column in story.columns}
        self.parts = story.parts

    @property
    def files(self) -> list[Path]:
        """The files of the parts, for other readers: ``pyarrow.parquet.read_table(dataset.files)``."""
        return [self.path / part.file for part in self.parts]

    @property
    def num_episodes(self) -> int:
        """How many episodes end in it."""
        return sum(part.episodes for part in self.parts)

    def __len__(self) -> int:
        """How many rows it has."""
        return sum(part.rows for part in self.parts)

    def __iter__(self) -> Iterator[Columns]:
        """The parts, one after the other."""
        return (self.part(index) for index in range(len(self.parts)))

    def part(self, index: int, columns: Iterable[str] | None = None) -> Columns:
        """One part as arrays, all columns or some of them.

        Raises:
            ArgumentError: If there is no such column, or the file is not what was written.
        """
        wanted = self._wanted(columns)
        part = self.parts[index]
        found = read_part(self.path / part.file, self.config.format, wanted)
        for column in wanted:
            if found[column.name].shape != (part.rows, *column.shape):
                shape = found[column.name].shape
                raise ArgumentError(f"{self.path / part.file}: {column.name} has shape {shape}, not that of its part")
        return found

    def to_numpy(self, columns: Iterable[str] | None = None) -> Columns:
        """All rows as one array per column, all columns or some of them."""
        wanted = self._wanted(columns)
        names = [column.name for column in wanted]
        parts = [self.part(index, names) for index in range(len(self.parts))]
        return {
            column.name: np.concatenate([part[column.name] for part in parts])
            if parts
            else np.empty((0, *column.shape), object if column.dtype == TEXT else column.dtype)
            for column in wanted
        }

    def _wanted(self, columns: Iterable[str] | None) -> list[Column]:
        names = list(self.columns) if columns is None else list(columns)
        if unknown := [name for name in names if name not in self.columns]:
            raise ArgumentError(f"columns: there is no {unknown[0]!r}; there are {', '.join(self.columns)}")
        return [self.columns[name] for name in names]

    def __repr__(self) -> str:
        return (
            f"<Dataset {str(self.path)!r}: {len(self):,} rows in {len(self.parts)} parts, "
            f"{self.config.num_envs} × {self.config.env}, policy {self.config.policy}>"
        )


def load_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Open a dataset that ``shoal collect`` or ``write_dataset`` has written, or is still writing.

    Raises:
        ArgumentError: If there is none, or it cannot be read.

    Example:
        >>> import tempfile, shoal
        >>> from shoal.collect import load_dataset, write_dataset
        >>> folder = tempfile.mkdtemp()
        >>> with shoal.make_pool("CartPole-v1", 4, engine="serial") as pool:
        ...     written = write_dataset(pool, folder, steps=100, seed=1, format="npz")
        >>> data = load_dataset(folder)
        >>> len(data), data.to_numpy()["obs"].shape
        (100, (100, 4))
    """
    folder = Path(path)
    return Dataset(folder, Story.load(folder))
