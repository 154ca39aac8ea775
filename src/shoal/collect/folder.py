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
from shoal.collect.formats import disk_errors, draft_of, rows_in
from shoal.errors import ArgumentError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Existing = Literal["refuse", "resume", "overwrite"]
EXISTING = ("refuse", "resume", "overwrite")
_DRAFT = re.compile(rf"\.({PART_NAME.pattern}|{re.escape(STORY)})\.draft")


def find_story(folder: Path, existing: Existing) -> Story | None:
    """The dataset to resume, or None to begin a new one; changes nothing.

    Raises:
        ArgumentError: If there is a dataset that must not be touched, or the folder holds something else, or the
            dataset to resume lacks a part or some of its rows.
    """
    check_choice("existing", existing, EXISTING)
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ArgumentError(f"{folder}: a dataset is a folder, and this is a file")
    has_story = (folder / STORY).exists()
    # A folder that holds other things and no dataset was probably named by mistake.
    if not holds_dataset(folder) and (strangers := _strangers(folder)):
        raise ArgumentError(
            f"{folder}: there is no dataset here but something else ({strangers[0]}); name a new folder"
        )
    if existing == "overwrite":
        return None
    if is_minari(folder) and not has_story:  # with a story, it is from a run that was killed before the end
        raise ArgumentError(f"{folder}: there is a Minari dataset already; overwrite it (--overwrite) or name another")
    if not has_story:
        return None
    story = Story.load(folder)
    if not story.parts and not is_minari(folder):
        return None  # left by a run that failed before its first part, so no work is lost
    if existing == "refuse":
        raise ArgumentError(
            f"{folder}: there is a dataset already, of {story.rows:,} rows; "
            "go on with it (--resume), overwrite it (--overwrite) or name another folder"
        )
    _check_parts(folder, story)
    return story


def _check_parts(folder: Path, story: Story) -> None:
    for part in story.parts:
        if (found := rows_in(folder / part.file, story.config.format)) != part.rows:
            raise ArgumentError(f"{folder / part.file}: has {found:,} rows, and {STORY} says {part.rows:,}")


def holds_dataset(folder: Path) -> bool:
    """Whether a folder has a dataset, ours or Minari's, whatever its state."""
    return (folder / STORY).exists() or is_minari(folder)


def begin(folder: Path, story: Story) -> None:
    """Make a folder ready for the parts to come: what the story does not list was left by a run that was killed."""
    with disk_errors(folder):
        _remove_all_but(folder, {STORY, *(part.file for part in story.parts)})
    if not story.parts:
        story.save(folder)


def clear(folder: Path) -> None:
    """Remove a dataset, but not a Minari dataset that was made from it."""
    with disk_errors(folder):
        # First of all, so that from then on there is no dataset, and nobody reads half of one.
        (folder / STORY).unlink(missing_ok=True)
        _remove_all_but(folder, set())


def supersede(folder: Path, story: Story, first_part: Path) -> None:
    """Remove an old dataset in favour of a new one, whose first part is complete but for its name.

    Whenever the process is killed meanwhile, there is a dataset that can be read: the old one, or the new one without
    parts.
    """
    story.save(folder)
    clear_minari(folder)
    with disk_errors(folder):
        _remove_all_but(folder, {STORY, draft_of(first_part).name})


def _remove_all_but(folder: Path, kept: set[str]) -> None:
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
    """Keep other writers out of a folder, which is created if it does not exist.

    Raises:
        StateError: If another process is writing to it.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY)
    try:
        # The kernel releases the lock when the process ends, however it ends, and no lock file can be left behind.
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
