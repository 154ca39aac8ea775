"""What one env was told up to a fault, in a folder: enough to do it again.

    fault.json      the env, the rules it ran under, what failed, and the script: resets with their seeds, steps
    actions.npz     the actions of those steps, one array per leaf of the action space

Both are plain data. Loading them imports nothing, unpickles nothing, and refuses a folder that was changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMAT = 1
_STORY, _ACTIONS = "fault.json", "actions.npz"


@dataclass(frozen=True)
class Origin:
    """How an env was made, as far as words can say it.

    Attributes:
        kind: Whether ``name`` is a registered id, or the place of a callable as ``module:name``.
        name: What to call.
        kwargs: What to call it with; only what JSON can hold.
        lost: Arguments that JSON cannot hold.
        wrappers: Places of the wrappers around it, innermost first.
    """

    kind: Literal["id", "callable"]
    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()

    @classmethod
    def of(cls, factory: Callable[[], Any]) -> Origin:
        """What can be told of one of a pool's factories."""
        given = dict(getattr(factory, "kwargs", {}))
        kwargs = {name: value for name, value in given.items() if is_json(value)}
        lost = tuple(name for name in given if name not in kwargs)
        wrappers = tuple(_place(wrapper) for wrapper in getattr(factory, "wrappers", ()))
        registered = getattr(factory, "spec", None)
        if registered is not None:
            return cls("id", registered.id, kwargs, lost, wrappers)
        return cls("callable", _place(getattr(factory, "function", factory)), kwargs, lost, wrappers)


def _place(thing: Any) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def is_json(value: Any) -> bool:
    """Whether JSON holds a value, and gives it back as it was."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True)
class Recording:
    """One env's script and what became of it.

    Attributes:
        env_id: Which env of its pool it was.
        origin: How it was made.
        autoreset: The boundary rule it ran under.
        max_episode_steps: The pool's own time limit.
        script: ``["reset", seed, options]`` and ``["step", how many]``, in order.
        actions: The actions of all steps, one array per leaf.
        gaps: Why doing it again may not lead to the same fault; empty if it should.
        fault: ``info["fault"]``, if there was one.
    """

    env_id: int
    origin: Origin
    autoreset: str
    max_episode_steps: int | None
    script: list[list[Any]]
    actions: list[np.ndarray[Any, Any]]
    gaps: tuple[str, ...] = ()
    fault: dict[str, Any] | None = None

    @property
    def num_steps(self) -> int:
        """How many steps the script has."""
        return sum(entry[1] for entry in self.script if entry[0] == "step")

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the folder, readable for its owner alone: observations and actions may be nobody else's business."""
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
        _write(path / _ACTIONS, data)
        _write(path / _STORY, json.dumps(story, indent=1, default=repr).encode())
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Recording:
        """Read a folder.

        Raises:
            ArgumentError: If it is no recording, or was changed or cut off.
        """
        path = Path(folder)
        try:
            story = json.loads((path / _STORY).read_bytes())
            data = (path / _ACTIONS).read_bytes()
            if story.pop("format") != _FORMAT:
                raise ArgumentError(f"{path}: a recording of another version of shoal")
            if story.pop("actions_sha256") != hashlib.sha256(data).hexdigest():
                raise ArgumentError(f"{path}: {_ACTIONS} is not the file that was recorded")
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                story["actions"] = [arrays[f"leaf{j}"] for j in range(len(arrays.files))]
            origin = story.pop("origin")
            origin = Origin(**{**origin, "lost": tuple(origin["lost"]), "wrappers": tuple(origin["wrappers"])})
            return cls(origin=origin, gaps=tuple(story.pop("gaps")), **story)
        except ArgumentError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise ArgumentError(f"{path}: not a recording of a fault ({error})") from error


def _write(path: Path, data: bytes) -> None:
    """All of the file or none of it, also if the process is killed meanwhile."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    draft.replace(path)
