"""Imported only by the fork server, so that it clears away what a killed program left behind.

``multiprocessing`` keeps the fork server's socket in a temporary folder, and removes that when the program ends
normally. If the program is killed, the fork server is the last one out.
"""

from __future__ import annotations

import atexit
import os
import socket
from contextlib import suppress
from pathlib import Path
from stat import S_ISSOCK
from time import monotonic, sleep

_PATIENCE_S = 1.0  # a program that ends closes its pipes a moment before it is gone
_FOLDER_PREFIX = "pymp-"
_OPEN_FILES = Path("/proc/self/fd")


def _own_socket() -> Path | None:
    """The socket that this process listens on."""
    for file in _OPEN_FILES.iterdir() if _OPEN_FILES.is_dir() else ():
        if file.exists() and S_ISSOCK(file.stat().st_mode):
            with socket.socket(fileno=os.dup(int(file.name))) as end:
                address = end.getsockname()
            if isinstance(address, str) and Path(address).parent.name.startswith(_FOLDER_PREFIX):
                return Path(address)
    return None


def _clear_away(address: Path, server: int, program: int) -> None:
    if os.getpid() != server:
        return  # a process that the fork server has forked
    end = monotonic() + _PATIENCE_S
    while os.getppid() == program:
        if monotonic() > end:
            return  # the program lives, and will do this itself
        sleep(0.01)
    with suppress(OSError):  # nothing is left, or something else is in the folder
        address.unlink()
        address.parent.rmdir()


if (_address := _own_socket()) is not None:
    atexit.register(_clear_away, _address, os.getpid(), os.getppid())
