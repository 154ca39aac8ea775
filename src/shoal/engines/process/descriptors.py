"""File descriptors: how many a pool of workers takes in the process that starts it, and whether that many are left."""

from __future__ import annotations

import errno
import os
import resource
import sys

from shoal.errors import ResourceError

# A socket, its lifeline, its stderr, a file for its stacks, one that stands for the process, two of multiprocessing's.
FDS_PER_WORKER = 7
FDS_PER_POOL = 5  # the file of the shared memory and its mapping, and three of the thread that reads stderr
FDS_TO_START = 16  # the fork server's own, and what is open only while a worker starts
_ENOUGH = 4096


def open_fds() -> int:
    """File descriptors that are open in this process."""
    return len(os.listdir("/proc/self/fd")) - 1  # the listing has opened one itself


def descriptors_left() -> int:
    """How many files this process may still open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        return max(0, soft - open_fds())
    except OSError as error:
        # Without one to spare, they cannot even be counted. On a system without a count, opening them will tell.
        return 0 if error.errno in (errno.EMFILE, errno.ENFILE) else sys.maxsize


def how_to_raise_open_files(needed: int) -> str:
    """What to type so that this many files can be open at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(_ENOUGH, 2 * needed)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return f"ulimit -n {wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)}"
    return (
        f"raise the hard limit, which is {hard}: nofile in /etc/security/limits.conf, or "
        f"docker run --ulimit nofile={wanted}"
    )


def fds_for(workers: int, each: int = FDS_PER_WORKER) -> int:
    """How many file descriptors a new pool needs until it has started."""
    return FDS_PER_POOL + FDS_TO_START + workers * each


def require_descriptors(needed: int, for_what: str) -> None:
    """Make sure that this many files can be opened.

    Raises:
        ResourceError: If they cannot. Noticed only halfway, it would also be an error in the fork server, which would
            report it on stderr.
    """
    left = descriptors_left()
    if needed > left:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise ResourceError(
            errno.EMFILE,
            # First in the system's own words, which is what people search for.
            f"{os.strerror(errno.EMFILE)}: {for_what} may need {needed}, and this process can open only {left} more: "
            f"its limit is {soft}. Raise that ({how_to_raise_open_files(soft - left + needed)}), or use fewer workers",
        )
