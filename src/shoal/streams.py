"""File descriptors 0 to 2 belong to the standard streams, even while those are closed.

The system gives a new file the lowest free descriptor. Once somebody has closed stdout, that is 1: a socket or a piece
of shared memory gets it, and the next print goes there.
"""

from __future__ import annotations

import os

_STDERR = 2


def keep_streams_taken() -> None:
    """Put /dev/null where a standard stream was closed, so that nothing opened from now on gets its descriptor."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)  # like a stream, which a program that this process starts has too
    os.close(fd)


def above_streams(fd: int) -> int:
    """The same file under a descriptor that is not a stream's."""
    import fcntl  # not available everywhere, and only workers get here

    if fd > _STDERR:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    os.close(fd)
    return moved
