"""For the fork server alone, which imports it: has it clear away what a killed program has left.

``multiprocessing`` keeps the fork server's socket in a folder for temporary files, and removes that when the program
ends in good order. If the program is killed, the last one out is the fork server.
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
        return  # a process that it has forked
    end = monotonic() + _PATIENCE_S
    while os.getppid() == program:
        if monotonic() > end:
            return  # the program lives, and will do it
        sleep(0.01)
    with suppress(OSError):  # there is nothing left, or something of somebody else
        address.unlink()
        address.parent.rmdir()


if (_address := _own_socket()) is not None:
    atexit.register(_clear_away, _address, os.getpid(), os.getppid())
