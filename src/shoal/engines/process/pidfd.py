"""A descriptor that stands for a process, whoever its parent is, and never for another one with the same number."""

from __future__ import annotations

import contextlib
import os
import select
import signal


class Pidfd:
    """A process that is not our child, so that nobody else has to live to tell whether it does.

    If the system has no such descriptors, nothing is known about it.

    Example:
        >>> me = Pidfd(os.getpid())
        >>> me.lives()
        True
        >>> me.close()
    """

    def __init__(self, pid: int) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._fd = os.pidfd_open(pid)

    def lives(self, wait_s: float = 0.0) -> bool:
        """Whether the process is known to live, even after waiting ``wait_s`` for its end."""
        if self._fd is None:
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(wait_s * 1000)

    def kill(self) -> None:
        """End the process now."""
        if self._fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the process."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
