"""Recordings for ``shoal replay``: listing them, printing their text safely, and matching them with env ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.errors import ArgumentError
from shoal.recording import Origin, Recording, is_recording
from shoal.registry import find
from shoal.replaying import summary_of

_PLAIN_WIDTH = 10_000  # one line per recording can be searched, whatever its length


def recordings_in(folder: Path) -> list[Path]:
    """The recordings in a folder.

    Raises:
        ArgumentError: If there are none.
    """
    if not folder.is_dir():
        raise ArgumentError(f"{folder}: there is no such folder")
    found = sorted(path for path in folder.iterdir() if is_recording(path))
    if not found:
        raise ArgumentError(f"{folder}: neither a recording nor a folder with recordings in it")
    return found


def print_list(folder: Path, found: list[Path], *, as_json: bool) -> None:
    """Print one line for each recording to stdout."""
    rows = [_row(path) for path in found]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in rows[0]:
        # Folder names are meant to be copied, so they stay in one piece.
        is_folder = name == "recording"
        table.add_column(name, justify="right" if name == "steps" else "left", overflow="fold", no_wrap=is_folder)
    for row in rows:
        table.add_row(*(Text(plain(" ".join(str(value).split()))) for value in row.values()))
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
    else:
        wide = Console(highlight=False, width=_PLAIN_WIDTH)
        with wide.capture() as captured:
            wide.print(table)
        # A table pads its lines with blanks, which nobody wants in a file.
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    console.print(Text(f"\nshoal replay {folder / 'RECORDING'} replays one of them."), soft_wrap=True)


def _row(path: Path) -> dict[str, Any]:
    try:
        recording = Recording.load(path)
    except ArgumentError as error:
        return {"recording": path.name, "env": "", "steps": "", "fault": str(error).removeprefix(f"{path}: ")}
    fault = "none" if recording.fault is None else summary_of(recording.fault)
    return {"recording": path.name, "env": str(recording.origin), "steps": recording.num_steps, "fault": fault}


def is_of(env_id: str, origin: Origin) -> bool:
    """Whether the recorded env may have this id, judging by the id itself or by what makes the env."""
    task = find(env_id)
    makers = [task.source, gym.registry.get(env_id)]
    places = [getattr(maker, "entry_point", maker) for maker in makers if maker is not None]
    names = [place if isinstance(place, str) else Origin.of(place).name for place in places]
    # Only the last part of the name counts: a script that was run is imported under another module name.
    return origin.name.rpartition(":")[2] in {name.rpartition(":")[2] for name in (env_id, task.id, *names)}


def plain(text: str) -> str:
    """Text from a recording, without characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
