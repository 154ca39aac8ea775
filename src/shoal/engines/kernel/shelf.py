"""Where compiled code is kept between processes: a file for each piece, named after everything that went into it."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from shoal.errors import SpecError
from shoal.files import write_whole

_log = logging.getLogger("shoal")


def find(name: str) -> bytes | None:
    """What is kept under this name."""
    try:
        return (cache_folder() / name).read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        _log.info("%s cannot be read", cache_folder() / name, exc_info=True)
        return None


def keep(name: str, data: bytes) -> None:
    """Keep something under this name, whole or not at all; if the disk has no room for it, that only costs time."""
    folder = cache_folder()
    try:
        write_whole(folder / name, data)
    except OSError:
        _log.info("no file can be kept in %s", folder, exc_info=True)


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``$SHOAL_CACHE_DIR``, else ``shoal/kernels`` in the user's cache folder."""
    folder = chosen_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # an unwritable home: the code is kept for this user until the next boot
    folder = last_resort()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SpecError(f"{folder} belongs to someone else; set SHOAL_CACHE_DIR to a folder of your own")
    return folder


def chosen_folder() -> Path:
    """Where compiled kernels are to be kept, whether or not the folder exists."""
    root = os.environ.get("SHOAL_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(root) if root else base / "shoal" / "kernels"


def last_resort() -> Path:
    """Where they are kept if that cannot be written to."""
    return Path(tempfile.gettempdir()) / f"shoal-kernels-{os.getuid()}"
