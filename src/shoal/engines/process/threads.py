"""Finds threads that a fork would leave behind, possibly holding a lock that would then stay locked forever."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from itertools import product
from pathlib import Path

_TASKS = Path("/proc/self/task")
_MAPS = Path("/proc/self/maps")
_PTHREADS = 1  # what OpenBLAS answers if its threads are its own, rather than OpenMP's
# How a build of OpenBLAS may decorate the names of its functions, so that several builds can be loaded.
_PREFIXES, _SUFFIXES = ("", "scipy_"), ("", "64_", "_64_", "_")


def foreign_threads(patience_s: float = 0.0) -> str:
    """Threads besides the caller's and shoal's own, in words; those of C libraries are only counted.

    A thread that Python has joined lingers for a moment, without a name. With some patience, threads that disappear
    meanwhile are not counted.
    """
    end = time.monotonic() + patience_s
    while (found := _foreign_threads_now()) and time.monotonic() < end:
        time.sleep(0.001)
    return found


def _foreign_threads_now() -> str:
    known = threading.enumerate()
    names = [t.name for t in known if t is not threading.current_thread() and not t.name.startswith("shoal-")]
    # Threads that were started without the threading module run Python too.
    nameless = len(sys._current_frames().keys() - {thread.ident for thread in known})
    native = max(0, _native_threads({thread.native_id for thread in known}) - nameless)
    counted = [(nameless, "of Python without a name"), (native, "of libraries")]
    return ", ".join([*names, *(f"{count} {whose}" for count, whose in counted if count > 0)])


def _native_threads(known: set[int | None]) -> int:
    """How many threads there are besides these, not counting those that a fork does not harm."""
    try:
        tasks = [task for task in _TASKS.iterdir() if int(task.name) not in known]
    except OSError:  # no such folder on this system, so nobody can tell
        return 0
    # The watchdog holds no lock but its own, which Python makes anew in the child. There is at most one.
    watchdogs = min(1, sum(_blocks_all_signals(task) for task in tasks))
    return len(tasks) - watchdogs - _threads_of_openblas()


def _blocks_all_signals(task: Path) -> bool:
    """Whether a thread blocks all signals, as faulthandler's watchdog does and hardly any other."""
    blockable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    try:
        found = re.search(r"^SigBlk:\s*(\w+)", (task / "status").read_text(), re.MULTILINE)
    except OSError:  # it has ended meanwhile
        return False
    mask = int(found[1], 16) if found else 0
    return all(mask >> (number - 1) & 1 for number in blockable)


def _threads_of_openblas() -> int:
    """How many threads OpenBLAS has: it ends them itself before a fork, and starts others when it needs them.

    How many it would use is not what counts: it starts none on one core, and has none between a fork and its next
    large product, so that threads of other libraries would pass for its own.
    """
    try:
        paths = set(re.findall(r"/\S*openblas\S*\.so\S*", _MAPS.read_text()))
    except OSError:
        return 0
    return sum(_running_in(path) for path in paths)


def _running_in(path: str) -> int:
    try:
        library = ctypes.CDLL(path, os.RTLD_NOLOAD)
        called = (f"{a}openblas_get_parallel{b}" for a, b in product(_PREFIXES, _SUFFIXES))
        kind = next((getattr(library, name)() for name in called if hasattr(library, name)), None)
        is_running = ctypes.c_int.in_dll(library, "blas_server_avail").value
        threads = ctypes.c_int.in_dll(library, "blas_num_threads").value - 1  # the calling thread is one of them
    except (OSError, ValueError):  # not loaded after all, or another library of that name
        return 0
    return max(0, threads) if kind == _PTHREADS and is_running else 0
