"""Starting worker processes, and explaining how they ended."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from dataclasses import replace
from multiprocessing import forkserver
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shoal.arguments import check_choice
from shoal.arrays import Arena
from shoal.cgroups import oom_kills
from shoal.engines.process import worker as worker_module
from shoal.engines.process.surroundings import single_threaded_libraries, unset_thread_variables
from shoal.engines.process.threads import foreign_threads
from shoal.engines.process.wire import Channel, FrameError, WireError
from shoal.engines.process.worker import Boot, SharedFd
from shoal.errors import ResourceError
from shoal.machine import descendants, peak_resident_bytes, resident_bytes
from shoal.streams import keep_streams_taken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.engines.process.stderr import StderrRelay

METHODS = ("forkserver", "fork", "spawn")
_FORCED_FORK = "fork!"
_CAREFUL_FORK = "fork?"
_GRACE_S = 0.3
_STACKS_BYTES = 1 << 16
_UNKNOWN_CODE = 255  # multiprocessing's word for it too
# What every worker needs, loaded once in the fork server instead of once per worker.
_PRELOAD = ["shoal.engines.process.last_out", "shoal.engines.process.worker", "gymnasium"]
# What users of some part of shoal need as well: that part says so when it is imported.
_preload_if_loaded: list[str] = []
_starting = threading.Lock()
_running: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


class WorkerProcess:
    """A worker as its pool sees it: the process, the channel to it, and the pipe that ties it to our life.

    Another thread may close the pool at any time: what it has closed is told as such, and not touched any more.

    Attributes:
        peak_bytes: The most memory it was seen to hold.
    """

    def __init__(self, boot: Boot, method: str, relay: StderrRelay) -> None:
        self.index = boot.worker
        self.env_ids = tuple(boot.env_ids)
        self.peak_bytes: int | None = None
        self.process: Any = None
        self._relay = relay
        self._is_own_child = method != "forkserver"
        self._oom_kills = oom_kills()
        self._closing = threading.RLock()
        try:
            # All that is ours is closed if anything fails, and what is the worker's in any case.
            with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
                self.process = self._open_and_start(boot, method, ours, theirs)
                self._ours = ours.pop_all()
        except ResourceError:
            raise
        except OSError as error:
            raise _cannot_start(boot.worker, error) from error
        self.pid: int = self.process.pid

    def _open_and_start(self, boot: Boot, method: str, ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> Any:
        keep_streams_taken()
        mine, other = socket.socketpair()
        theirs.callback(other.close)
        self.channel = Channel(mine)
        ours.callback(self.channel.close)
        end_of_life, self._lifeline = os.pipe()
        theirs.callback(os.close, end_of_life)
        ours.callback(os.close, self._lifeline)
        self._stacks = Arena.open_file()
        ours.callback(os.close, self._stacks)
        stacks = os.dup(self._stacks)
        theirs.callback(os.close, stacks)
        heard, spoken = os.pipe()
        theirs.callback(os.close, spoken)
        with contextlib.ExitStack() as until_taken:
            until_taken.callback(os.close, heard)
            self._stderr = self._relay.add(heard)
            until_taken.pop_all()
        ours.callback(self._relay.remove, self._stderr)
        # From here on a process that is forked from ours, this worker included, lets go of our ends.
        _running.add(self)
        ours.callback(_running.discard, self)
        boot = replace(
            boot,
            channel=SharedFd(other.fileno()),
            lifeline=SharedFd(end_of_life),
            stacks=SharedFd(stacks),
            stderr=SharedFd(spoken),
        )
        return _start(boot, method)

    def is_alive(self) -> bool:
        """Whether the process runs."""
        try:
            return bool(self.process.is_alive()) and not self._was_reaped_by_another()
        except ValueError:  # another thread has closed the pool
            return False

    def _was_reaped_by_another(self) -> bool:
        """Whether somebody else took its exit code, with ``os.wait`` or by ignoring SIGCHLD.

        For ``multiprocessing`` it then runs for ever. The fork server's children are its own to wait for.
        """
        if self._is_own_child:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                self.process._popen.returncode = _UNKNOWN_CODE
                return True
            except PermissionError:  # an env has made it another user's
                return False
        return False

    def look(self) -> None:
        """Note how much memory it holds; once it is dead, nobody can tell any more."""
        self.peak_bytes = peak_resident_bytes(self.pid) or self.peak_bytes

    def end_after(self, error: WireError) -> str:
        """End a worker with which there is no talking any more; in words, what happened."""
        told = f"it was ended: {error.args[-1]}" if isinstance(error, FrameError) else self.how_it_ended()
        self.kill()
        return told

    def how_it_ended(self) -> str:
        """The exit code in words, with the signal's name where there was one, and what is known of its memory."""
        told = self._exit_in_words()
        if self.peak_bytes is not None:
            told += f"; it was last seen to have used up to {self.peak_bytes / 2**20:.0f} MiB"
        killed = oom_kills()
        if killed is not None and self._oom_kills is not None and killed > self._oom_kills:
            told += "; the system has killed for want of memory meanwhile"
        return told

    def last_words(self) -> str:
        """Where a crash found it, if Python could still tell, and the last lines of its stderr."""
        parts = [self._read_stacks().rstrip()]
        if lines := self._relay.last_lines(self._stderr):
            parts.append(f"Last lines of its stderr:\n{lines}")
        return "\n".join(part for part in parts if part)

    def _exit_in_words(self) -> str:
        try:
            self.join(0.5)
            code = self.process.exitcode
        except ValueError:
            return "it was closed"
        if code is None:
            return "its end of the channel closed, though it still runs"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
            return f"killed by signal {-code}"
        return "exited, and its exit code is not known" if code == _UNKNOWN_CODE else f"exited with code {code}"

    def stacks(self, timeout_s: float = 0.5) -> str:
        """The Python stacks of the worker's threads, even if C code holds its GIL. Only for a worker about to end."""
        if not self.is_alive():
            return self._read_stacks()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        end = time.monotonic() + timeout_s
        told, size = "", -1
        # The dump is complete when it has stopped growing.
        while time.monotonic() < end and (size <= 0 or len(told) != size):
            size = len(told)
            time.sleep(0.02)
            told = self._read_stacks()
        return told

    def _read_stacks(self) -> str:
        with self._closing:
            is_open = self in _running
            return os.pread(self._stacks, _STACKS_BYTES, 0).decode(errors="replace") if is_open else ""

    def kill(self) -> None:
        """End the process now, and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, ValueError):
            if self.process.is_alive():
                _end_tree(descendants(self.pid))
            self.process.kill()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        with contextlib.suppress(ValueError):  # released, so it has ended
            self.process.join(timeout_s)
        return not self.is_alive()

    def disown(self) -> None:
        """Forget a worker that belongs to the process we were forked from."""
        popen = getattr(self.process, "_popen", None)  # none in the worker itself, if it is being forked
        # It closes them in the process that made it, and nowhere else.
        theirs = popen.finalizer._args or () if popen is not None else ()
        for fd in (self._lifeline, self._stacks, *theirs):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.channel.close()
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]

    def release(self) -> None:
        """Close every descriptor of ours. The process must have ended or be about to."""
        with self._closing, contextlib.suppress(OSError):  # somebody who closes every file has closed ours too
            self._ours.close()
        if not self.is_alive():
            self.process.close()


def _end_tree(pids: list[int]) -> None:
    """Ask processes to end, and end those that do not within a moment."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        end = time.monotonic() + _GRACE_S
        while pids and time.monotonic() < end:
            pids = [pid for pid in pids if resident_bytes(pid) is not None]  # a zombie holds no memory
            time.sleep(0.005)


def _disown_in_forked_child() -> None:
    """In a copy of this process the workers are somebody else's: it must neither keep them alive nor wait for them."""
    while _running:  # each once: in a copy of the copy their numbers may be somebody else's
        _running.pop().disown()
    # Held by the thread that forks a worker, and perhaps by one that is not here.
    _starting._at_fork_reinit()  # type: ignore[attr-defined]
    _disown_fork_server()


def _disown_fork_server() -> None:
    """Have this process start a fork server of its own, if it needs one.

    The other is no child of ours: ``multiprocessing`` would fail to ask whether it lives. And it would live for as
    long as we hold our copy of the pipe that ties it to its owner. Its folder is for its owner to remove.
    """
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        with contextlib.suppress(OSError):
            os.close(server._forkserver_alive_fd)
    kept = server._preload_modules, server._inherited_fds
    server.__init__()  # in place: the module's functions are methods of this very object
    server._preload_modules, server._inherited_fds = kept


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_in_forked_child)


def start_method(requested: str | None) -> str:
    """The start method to use: forkserver unless asked otherwise.

    Raises:
        ResourceError: If the process is to be forked while other threads run in it: a lock that one of them holds
            stays locked in the copy for ever. ``"fork!"`` does it all the same; ``"fork?"`` leaves it to the fork
            server then, and while a GPU is in use, which no fork can go on using.
    """
    available = multiprocessing.get_all_start_methods()
    if requested is None or (requested == _CAREFUL_FORK and (foreign_threads() or _uses_gpu())):
        return "forkserver" if "forkserver" in available else "spawn"
    if requested in (_FORCED_FORK, _CAREFUL_FORK):
        requested = "fork"
    elif requested == "fork" and (running := foreign_threads(patience_s=0.2)):
        raise ResourceError(
            f"start_method 'fork' is not safe while other threads run in this process ({running}): a lock that one "
            "of them holds would stay locked in every worker. Use start_method='forkserver', make the pool before "
            "the threads, or insist with start_method='fork!'"
        )
    check_choice("start_method", requested, METHODS)
    if requested not in available:
        raise ResourceError(f"start_method {requested!r} does not exist on this platform")
    return requested


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def why_no_workers() -> str:
    """Why this process can have no worker processes, in words; nothing if it can."""
    if multiprocessing.current_process().daemon:
        return "this process is daemonic, as are the workers of a DataLoader, and may have no children"
    return ""


def require_workers() -> None:
    """See that this process can have worker processes.

    Raises:
        ResourceError: If it cannot.
    """
    if why := why_no_workers():
        raise ResourceError(
            f"no worker process can be started: {why}. Use engine='thread' or engine='serial', or make the pool in a "
            "process that is not daemonic"
        )


def _start(boot: Boot, method: str) -> Any:
    context = multiprocessing.get_context(method)
    with _starting, _without_main():
        # Not before: what another pool sets while it starts its workers is not the user's.
        boot = replace(boot, limited=unset_thread_variables(), environ=dict(os.environ))
        # Not daemonic: envs may start processes of their own. The lifeline ends workers that nobody closes.
        process = context.Process(  # type: ignore[attr-defined]
            target=worker_module.main, args=(boot,), name=f"shoal-worker-{boot.worker}"
        )
        if method == "forkserver":
            _preload()
        with single_threaded_libraries(boot.limited):
            process.start()
    return process


def _cannot_start(worker: int, error: OSError) -> ResourceError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "raise the limit on open files (ulimit -n) or use fewer workers"
    elif "AF_UNIX" in str(error):  # the socket of the fork server
        advice = f"set TMPDIR to a shorter path, it is {tempfile.gettempdir()!r}, or use start_method='spawn'"
    else:
        advice = "use fewer workers or free memory and processes"
    told = f"worker {worker} could not be started ({error.strerror or error}); {advice}"
    return ResourceError(told) if error.errno is None else ResourceError(error.errno, told)


def _preload() -> None:
    """Have the fork server import what workers need, if it has not started yet and nobody else chose a list."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(_PRELOAD + [name for name in _preload_if_loaded if name in sys.modules])


def preload_if_loaded(*modules: str) -> None:
    """Have fork servers that start from now on load these modules as well, if they are loaded here by then."""
    _preload_if_loaded.extend(name for name in modules if name not in _preload_if_loaded)


def warm_up(requested: str | None) -> None:
    """Have the fork server start loading what workers need, without waiting for it, if workers would come from it."""
    if why_no_workers() or start_method(requested) != "forkserver":
        return
    with _starting, _without_main():
        _preload()
        with single_threaded_libraries(unset_thread_variables()):
            forkserver.ensure_running()


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
