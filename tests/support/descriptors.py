"""File descriptors, for tests of who closes them."""

from __future__ import annotations

import os


def is_open(fd: int) -> bool:
    """Whether a descriptor stands for a file."""
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False
