"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read. It gets its name once it is complete; until then the old one stays.

    Raises:
        OSError: If it cannot be written; nothing is left behind then.
    """
    # A new file with a name of its own: an existing one, or a link to one, is not ours to write through.
    descriptor, draft = tempfile.mkstemp(".tmp", f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt came after it had got its name
            os.unlink(draft)
        raise
