"""The commands of one env up to a fault, in a folder: enough to replay it.

    fault.json      the env, the rules it ran under, what failed, and the script: resets with their seeds, steps
    actions.npz     the actions of those steps, one array per leaf of the action space

Both are plain data. Loading them imports nothing and unpickles nothing, and a folder that is damaged, or not what it
claims to be, is refused.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from shoal.errors import ArgumentError
from shoal.files import write_whole
from shoal.recipes import MakeCallable, MakeRegistered
from shoal.slot import Autoreset

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

_FORMAT = 1
_STORY, _ACTIONS = "fault.json", "actions.npz"
_MOST_BYTES = 256 * 2**20  # many times what a black box keeps: a larger file is not one of ours


@dataclass(frozen=True)
class Origin:
    """How an env was made, as far as plain data can say it.

    Attributes:
        kind: Whether ``name`` is a registered id, or the place of a callable as ``module:name``.
        name: What to call.
        kwargs: What to call it with; only what JSON can hold.
        lost: What else went into making it, in words.
        wrappers: Places of the wrappers around it, innermost first.
    """

    kind: Literal["id", "callable"]
    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Origin:
        """What can be said about one of a pool's factories, or another callable that makes an env."""
        if isinstance(factory, MakeRegistered):
            lost = [] if gym.registry.get(factory.spec.id) == factory.spec else ["an EnvSpec that is not registered"]
            return cls("id", factory.spec.id, *_split(factory.kwargs, lost), _places(factory.wrappers))
        if isinstance(factory, MakeCallable):
            return cls(
                "callable",
                place_of(factory.function),
                *_arguments(factory.function, factory.kwargs),
                _places(factory.wrappers),
            )
        return cls("callable", place_of(factory), *_arguments(factory, {}))

    def __str__(self) -> str:
        """``my_envs:Maze(size=5)``, or the id alone if there are no arguments."""
        return self.name + (f"({', '.join(f'{k}={v!r}' for k, v in self.kwargs.items())})" if self.kwargs else "")


def place_of(thing: Any) -> str:
    """Where a function or class is found, or the class of any other object: ``my_envs:Maze``."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def _places(things: Sequence[Any]) -> tuple[str, ...]:
    return tuple(place_of(thing) for thing in things)


def _arguments(function: Any, given: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a function is called with, partial arguments included: what JSON can hold, and what it cannot."""
    lost: list[str] = []
    while isinstance(function, functools.partial):
        lost += [f"a positional {type(value).__name__}" for value in function.args]
        function, given = function.func, {**function.keywords, **given}
    return _split(given, lost)


def _split(given: dict[str, Any], lost: list[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    kwargs = {name: value for name, value in given.items() if is_json(value)}
    return kwargs, (*lost, *(name for name in given if name not in kwargs))


def is_json(value: Any) -> bool:
    """Whether a value survives a round trip through JSON."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


class Told(NamedTuple):
    """One command: a reset with ``seed`` and ``options``, or a step with ``action``, which has a row of each leaf."""

    is_reset: bool
    seed: int | None = None
    options: dict[str, Any] | None = None
    action: tuple[np.ndarray[Any, Any], ...] = ()


@dataclass(frozen=True)
class Recording:
    """One env's script and what became of it.

    Attributes:
        env_id: Which env of its pool it was.
        origin: How it was made.
        autoreset: The boundary rule it ran under.
        max_episode_steps: The time limit that its pool was given.
        script: ``["reset", seed, options]`` and ``["step", how many]``, in order.
        actions: The actions of all steps, one array per leaf.
        check: How often its results were checked.
        bounded_actions: Whether continuous actions outside their space were refused.
        finite_rewards: Whether NaN and infinite rewards were faults that raise.
        gaps: Why a replay may not lead to the same fault; empty if it should.
        fault: ``info["fault"]``, if there was one.
    """

    env_id: int
    origin: Origin
    autoreset: str
    max_episode_steps: int | None
    script: list[list[Any]]
    actions: list[np.ndarray[Any, Any]]
    check: str = "always"
    bounded_actions: bool = True
    finite_rewards: bool = True
    gaps: tuple[str, ...] = ()
    fault: dict[str, Any] | None = None

    @property
    def num_steps(self) -> int:
        """How many steps the script has."""
        return sum(entry[1] for entry in self.script if entry[0] == "step")

    @property
    def num_resets(self) -> int:
        """How many resets the script has; autoresets count as steps."""
        return sum(entry[0] == "reset" for entry in self.script)

    @property
    def num_commands(self) -> int:
        """How many resets and steps there are."""
        return self.num_resets + self.num_steps

    def steps_among(self, num_commands: int) -> int:
        """How many of the first ``num_commands`` commands are steps."""
        steps = 0
        for entry in self.script:
            count = 1 if entry[0] == "reset" else entry[1]
            steps += min(count, num_commands) if entry[0] == "step" else 0
            num_commands = max(0, num_commands - count)
        return steps

    def commands(self) -> Iterator[Told]:
        """The script, one command at a time."""
        at = 0
        for entry in self.script:
            if entry[0] == "reset":
                yield Told(True, entry[1], entry[2])
                continue
            for step in range(at, at + entry[1]):
                yield Told(False, action=tuple(leaf[step : step + 1] for leaf in self.actions))
            at += entry[1]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the folder, readable by its owner only, since what an env was sent may be private."""
        path = Path(folder)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        packed = io.BytesIO()
        leaves: dict[str, Any] = {f"leaf{j}": leaf for j, leaf in enumerate(self.actions)}
        np.savez_compressed(packed, **leaves)
        data = packed.getvalue()
        story = {
            "format": _FORMAT,
            "actions_sha256": hashlib.sha256(data).hexdigest(),
            **{name: value for name, value in asdict(self).items() if name != "actions"},
        }
        write_whole(path / _ACTIONS, data)
        write_whole(path / _STORY, json.dumps(story, indent=1, default=repr).encode())
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Recording:
        """Read a folder.

        Raises:
            ArgumentError: If it is not a recording, or was altered or cut off.
        """
        path = Path(folder)
        try:
            recording = cls._read(path)
            _refuse_nonsense(recording)
            return recording
        # Anything may be wrong with it, from a missing file to a nesting that no parser survives.
        except Exception as error:
            raise ArgumentError(
                f"{path}: not a recording that can be read ({error or type(error).__name__})"
            ) from error

    @classmethod
    def _read(cls, path: Path) -> Recording:
        story = json.loads(_content(path / _STORY))
        data = _content(path / _ACTIONS)
        if story.pop("format") != _FORMAT:
            raise ValueError("it was made by another version of shoal")
        if story.pop("actions_sha256") != hashlib.sha256(data).hexdigest():
            raise ValueError(f"{_ACTIONS} is not the file that was recorded")
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > _MOST_BYTES:
                raise ValueError(f"{_ACTIONS} is too large to be one")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            actions = [arrays[f"leaf{j}"] for j in range(len(arrays.files))]
        origin = story.pop("origin")
        lost, wrappers = tuple(origin.pop("lost")), tuple(origin.pop("wrappers"))
        gaps = tuple(story.pop("gaps"))
        return cls(origin=Origin(**origin, lost=lost, wrappers=wrappers), actions=actions, gaps=gaps, **story)


def is_recording(folder: Path) -> bool:
    """Whether a folder looks like a recording."""
    return (folder / _STORY).is_file()


def _content(path: Path) -> bytes:
    if not path.is_file():  # reading a pipe in its place would block
        raise ValueError(f"there is no file {path.name}")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} is too large to be one")
    return path.read_bytes()


def _refuse_nonsense(recording: Recording) -> None:
    """Raise if some entry is not of the kind that readers rely on."""
    origin, fault = recording.origin, recording.fault
    _want(type(recording.env_id) is int, "env_id")
    _want(origin.kind in ("id", "callable") and isinstance(origin.name, str), "origin")
    _want(isinstance(origin.kwargs, dict), "kwargs")
    _want(all(isinstance(text, str) for text in (*origin.lost, *origin.wrappers, *recording.gaps)), "gaps")
    _want(recording.autoreset in list(Autoreset), "autoreset")
    _want(recording.max_episode_steps is None or _is_count(recording.max_episode_steps), "max_episode_steps")
    _want(isinstance(recording.check, str), "check")
    _want(type(recording.bounded_actions) is type(recording.finite_rewards) is bool, "rules")
    _want(all(_is_reset(entry) or _is_steps(entry) for entry in recording.script), "script")
    _want(not recording.script or recording.script[0][0] == "reset", "script")
    _want(all(leaf.ndim and len(leaf) == recording.num_steps for leaf in recording.actions), "actions")
    told = ("kind", "message", "traceback", "phase")
    _want(fault is None or all(isinstance(fault.get(name), str) for name in told), "fault")


def _want(is_right: bool, name: str) -> None:
    if not is_right:
        raise ValueError(f"{name}: not what it should be")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_steps(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and entry[0] == "step" and _is_count(entry[1])


def _is_reset(entry: Any) -> bool:
    if not (isinstance(entry, list) and len(entry) == 3 and entry[0] == "reset"):
        return False
    _, seed, options = entry
    return (seed is None or (type(seed) is int and seed >= 0)) and (options is None or isinstance(options, dict))
