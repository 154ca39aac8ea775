"""Where compiled code is kept between processes: a file for each piece of it, named by all that went into it."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from shoal.errors import SpecError

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
    """Keep something under this name, whole or not at all. A disk that has no room for it costs time, no more."""
    folder = cache_folder()
    try:
        descriptor, written = tempfile.mkstemp(".tmp", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(written, folder / name)
        except BaseException:
            os.unlink(written)
            raise
    except OSError:
        _log.info("no file can be kept in %s", folder, exc_info=True)


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``$SHOAL_CACHE_DIR``, else ``shoal/kernels`` in the user's cache folder."""
    root = os.environ.get("SHOAL_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(root) if root else base / "shoal" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # a home that cannot be written to: the code is kept for this user until the next boot
    folder = Path(tempfile.gettempdir()) / f"shoal-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SpecError(f"{folder} belongs to someone else; set SHOAL_CACHE_DIR to a folder of your own")
    return folder
