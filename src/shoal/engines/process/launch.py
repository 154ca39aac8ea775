"""Starting worker processes, and explaining how they ended."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import weakref
from dataclasses import replace
from multiprocessing import forkserver
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shoal.arrays import Arena
from shoal.engines.process import worker as worker_module
from shoal.engines.process.wire import Channel
from shoal.engines.process.worker import Boot, SharedFd, single_threaded_libraries
from shoal.errors import ArgumentError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = ("forkserver", "fork", "spawn")
# What every worker needs, loaded once in the fork server instead of once per worker.
_PRELOAD = ["shoal.engines.process.worker", "gymnasium"]
_starting = threading.Lock()
_running: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


class WorkerProcess:
    """A worker as its pool sees it: the process, the channel to it, and the pipe that ties it to our life."""

    def __init__(self, boot: Boot, method: str) -> None:
        self.index = boot.worker
        self.env_ids = tuple(boot.env_ids)
        mine, theirs = socket.socketpair()
        end_of_life, self._lifeline = os.pipe()
        self._stacks = Arena.open_file()
        self.channel = Channel(mine)
        # A forked worker must not hold our ends of its channel and lifeline. Those of its siblings go at the fork.
        inherited = (mine.fileno(), self._lifeline) if method == "fork" else ()
        boot = replace(
            boot,
            channel=SharedFd(theirs.fileno()),
            lifeline=SharedFd(end_of_life),
            stacks=SharedFd(self._stacks),
            inherited_fds=inherited,
        )
        try:
            self.process = _start(boot, method)
            self.pid: int = self.process.pid
            _running.add(self)
        except BaseException:
            self._close_fds()
            raise
        finally:
            os.close(end_of_life)
            theirs.close()

    def is_alive(self) -> bool:
        """Whether the process runs."""
        try:
            return bool(self.process.is_alive())
        except ValueError:  # another thread has closed the pool
            return False

    def how_it_ended(self) -> str:
        """The exit code in words, with the signal's name where there was one."""
        try:
            self.process.join(0.5)
            code = self.process.exitcode
        except ValueError:
            return "it was closed"
        if code is None:
            return "its end of the channel closed, though it still runs"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
            return f"killed by signal {-code}"
        return f"exited with code {code}"

    def stacks(self, timeout_s: float = 0.5) -> str:
        """The Python stacks of the worker's threads, even if C code holds its GIL. Only for a worker about to end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        end = time.monotonic() + timeout_s
        size = -1
        # The dump is complete when it has stopped growing.
        while time.monotonic() < end and (size <= 0 or os.fstat(self._stacks).st_size != size):
            size = os.fstat(self._stacks).st_size
            time.sleep(0.02)
        return os.pread(self._stacks, 1 << 16, 0).decode(errors="replace")

    def kill(self) -> None:
        """End the process now."""
        with contextlib.suppress(ProcessLookupError, ValueError):
            self.process.kill()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        self.process.join(timeout_s)
        return not self.process.is_alive()

    def disown(self) -> None:
        """Forget a worker that belongs to the process we were forked from."""
        with contextlib.suppress(OSError):
            os.close(self._lifeline)
        self.channel.close()
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]

    def release(self) -> None:
        """Close every descriptor of ours. The process must have ended or be about to."""
        _running.discard(self)
        self._close_fds()
        if not self.process.is_alive():
            self.process.close()

    def _close_fds(self) -> None:
        self.channel.close()
        for fd in (self._lifeline, self._stacks):
            os.close(fd)


def _disown_in_forked_child() -> None:
    """In a copy of this process the workers are somebody else's: it must neither keep them alive nor wait for them."""
    for worker in _running:
        worker.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_in_forked_child)


def start_method(requested: str | None) -> str:
    """The start method to use: forkserver unless asked otherwise."""
    available = multiprocessing.get_all_start_methods()
    if requested is None:
        return "forkserver" if "forkserver" in available else "spawn"
    if requested not in METHODS:
        raise ArgumentError(f"start_method: expected one of {METHODS}, got {requested!r}")
    if requested not in available:
        raise ResourceError(f"start_method {requested!r} does not exist on this platform")
    return requested


def _start(boot: Boot, method: str) -> Any:
    context = multiprocessing.get_context(method)
    # Not daemonic: envs may start processes of their own. The lifeline ends workers that nobody closes.
    process = context.Process(  # type: ignore[attr-defined]
        target=worker_module.main, args=(boot,), name=f"shoal-worker-{boot.worker}"
    )
    with _starting, _without_main(), single_threaded_libraries():
        if method == "forkserver":
            _preload()
        try:
            process.start()
        except OSError as error:
            raise ResourceError(
                error.errno, f"worker {boot.worker} could not be started ({error.strerror}); {_advice(error)}"
            ) from error
    return process


def _advice(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        return "raise the limit on open files (ulimit -n) or use fewer workers"
    return "use fewer workers or free memory and processes"


def _preload() -> None:
    """Have the fork server import what workers need, if it has not started yet and nobody else chose a list."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(_PRELOAD)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the user's script while a process starts, so that the worker does not run it again.

    Nothing is lost: what a factory needs from the script travels by value. It makes notebooks, ``python -c``,
    stdin and scripts without an ``if __name__ == "__main__"`` guard work.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
