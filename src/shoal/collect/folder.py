"""The folder of a dataset: what may be in it, who may write to it, and what is cleared away."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from shoal.arguments import check_choice
from shoal.collect.dataset import PART_NAME, STORY, Story
from shoal.collect.formats import disk_errors
from shoal.errors import ArgumentError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Existing = Literal["refuse", "resume", "overwrite"]
EXISTING = ("refuse", "resume", "overwrite")
_DRAFT = re.compile(rf"\.({PART_NAME.pattern}|{re.escape(STORY)})\.draft")


def find_story(folder: Path, existing: Existing) -> Story | None:
    """The dataset to go on with, or None if one is to be begun. Changes nothing.

    Raises:
        ArgumentError: If there is one that must not be touched, or the folder holds something else.
    """
    check_choice("existing", existing, EXISTING)
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ArgumentError(f"{folder}: a dataset is a folder, and this is a file")
    has_story = (folder / STORY).exists()
    # Where there is no dataset, a folder with other things in it is one that somebody has named by mistake.
    if not (has_story or is_minari(folder)) and (strangers := _strangers(folder)):
        raise ArgumentError(
            f"{folder}: there is no dataset here but something else ({strangers[0]}); name a new folder"
        )
    if existing == "overwrite":
        return None
    if is_minari(folder) and not has_story:  # with one, it is from a run that was killed before the end
        raise ArgumentError(f"{folder}: there is a Minari dataset already; overwrite it (--overwrite) or name another")
    if not has_story:
        return None
    story = Story.load(folder)
    if not story.parts and not is_minari(folder):
        return None  # of a run that failed before its first part, and so of nobody's work
    if existing == "refuse":
        raise ArgumentError(
            f"{folder}: there is a dataset already, of {story.rows:,} rows; "
            "go on with it (--resume), overwrite it (--overwrite) or name another folder"
        )
    return story


def clear(folder: Path, story: Story | None, *, but_minari: bool = False) -> None:
    """Remove what a dataset does not list: all of an old one if there is no story, else what a kill has left."""
    kept = {STORY, *(part.file for part in story.parts)} if story else set()
    with disk_errors(folder):
        if story is None:
            # First of all: from then on there is no dataset, and nobody reads half of one.
            (folder / STORY).unlink(missing_ok=True)
            if not but_minari:
                clear_minari(folder)
        for path in folder.iterdir():
            if _is_ours(path.name) and path.name not in kept:
                path.unlink()


def is_minari(folder: Path) -> bool:
    """Whether a folder is a Minari dataset."""
    return (folder / "data" / "metadata.json").is_file()


def clear_minari(folder: Path) -> None:
    """Remove a Minari dataset, if there is one."""
    if is_minari(folder):
        with disk_errors(folder):
            shutil.rmtree(folder / "data")


def _is_ours(name: str) -> bool:
    return name == STORY or bool(PART_NAME.fullmatch(name) or _DRAFT.fullmatch(name))


def _strangers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder, which is made if it is not there.

    Raises:
        StateError: If another process is writing to it.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY)
    try:
        # The kernel lets go of the lock when the process ends, however it ends, and there is no file to be left over.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StateError(f"{folder}: another process is writing to it") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(fd)
