"""What a full disk is to a writer, without filling one."""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_ROOM = "File too large"  # as the error says it


@contextlib.contextmanager
def no_room(most_bytes: int = 3) -> Iterator[None]:
    """Let no file of this process grow larger. For the call alone: what pytest prints may go to a file, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
