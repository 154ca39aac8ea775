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
from multiprocessing import forkserver, spawn
from typing import TYPE_CHECKING, Any

from shoal.arguments import check_choice
from shoal.arrays import Arena
from shoal.cgroups import oom_kills
from shoal.engines.process import worker as worker_module
from shoal.engines.process.pidfd import Pidfd
from shoal.engines.process.stderr import Tail
from shoal.engines.process.surroundings import single_threaded_libraries, unset_thread_variables
from shoal.engines.process.threads import foreign_threads
from shoal.engines.process.wire import Channel, FrameError, WireError
from shoal.engines.process.worker import Boot, SharedFd
from shoal.errors import ResourceError
from shoal.machine import followers, peak_resident_bytes, resident_bytes
from shoal.streams import keep_streams_taken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.engines.process.stderr import StderrRelay

METHODS = ("forkserver", "fork", "spawn")
_FORCED_FORK = "fork!"
_CAREFUL_FORK = "fork?"
_GRACE_S = 0.3
_SCRIPT = ("init_main_from_name", "init_main_from_path")  # what tells a new process of the script
_STACKS_BYTES = 1 << 16
_UNKNOWN_CODE = 255  # multiprocessing uses it too
# What every worker needs, loaded once in the fork server instead of once per worker.
_PRELOAD = ["shoal.engines.process.last_out", "shoal.engines.process.worker", "gymnasium"]
# What only some parts of shoal need: each part adds its own when it is imported.
_preload_if_loaded: list[str] = []
_starting = threading.Lock()
_running: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


class WorkerProcess:
    """A worker as its pool sees it: the process, the channel to it, and the pipe that ties its life to ours.

    Another thread may close the pool at any time: what it has closed is reported as such, and no longer touched.

    Attributes:
        peak_bytes: The most memory the worker was seen to hold.
    """

    def __init__(self, boot: Boot, method: str, relay: StderrRelay) -> None:
        self.index = boot.worker
        self.env_ids = tuple(boot.env_ids)
        self.peak_bytes: int | None = None
        self.process: Any = None
        self._relay = relay
        # If the fork server is killed, multiprocessing takes all it has started for dead.
        self._pidfd: Pidfd | None = None
        self._oom_kills = oom_kills()
        self._closing = threading.RLock()
        try:
            # Our descriptors are closed if anything fails, and the worker's in any case.
            with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
                self.process = self._open_and_start(boot, method, ours, theirs)
                self._ours = ours.pop_all()
        except ResourceError:
            raise
        except OSError as error:
            raise _cannot_start(boot.worker, error) from error
        self.pid: int = self.process.pid
        if method == "forkserver":
            self._pidfd = Pidfd(self.pid)
            self._ours.callback(self._pidfd.close)

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
        self._stderr = Tail(heard)
        ours.callback(self._relay.remove, self._stderr)
        self._relay.add(self._stderr)
        # From here on, any process forked from ours, this worker included, lets go of our ends.
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
        """Whether the process is running."""
        try:
            if self.process.is_alive():
                return not self._was_reaped_by_another()
            return self._pidfd is not None and self._pidfd.lives()
        except ValueError:  # another thread has closed the pool
            return False

    def _was_reaped_by_another(self) -> bool:
        """Whether somebody else took its exit code, with ``os.wait`` or by ignoring SIGCHLD.

        ``multiprocessing`` then believes it runs forever. Only the fork server can wait for its own children.
        """
        if self._pidfd is None:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                self.process._popen.returncode = _UNKNOWN_CODE
                return True
            except PermissionError:  # an env has switched it to another user
                return False
        return False

    def look(self) -> None:
        """Note how much memory it holds, which nobody can tell once it is dead."""
        self.peak_bytes = peak_resident_bytes(self.pid) or self.peak_bytes

    def end_after(self, error: WireError | None = None) -> str:
        """End a worker that is dead, or cannot be talked to, with all it has started; says what happened, in words."""
        told = f"it was ended: {error.args[-1]}" if isinstance(error, FrameError) else self._how_it_ended()
        self.kill()
        return told

    def _how_it_ended(self) -> str:
        """The exit code in words, with the signal's name if there was one, and what is known about its memory."""
        told = self._exit_in_words()
        if self.peak_bytes is not None:
            told += f"; it was last seen to have used up to {self.peak_bytes / 2**20:.0f} MiB"
        killed = oom_kills()
        if killed is not None and self._oom_kills is not None and killed > self._oom_kills:
            told += "; the system has killed for want of memory meanwhile"
        return told

    def last_words(self) -> str:
        """Where it crashed, if Python could still tell, and the last lines of its stderr."""
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
        """End the process now, and every process it has started, even if it is dead itself."""
        with contextlib.suppress(ProcessLookupError, ValueError):
            _end_all(followers(self.pid, is_alive=self.is_alive()))
            self.process.kill()
            if self._pidfd is not None:
                self._pidfd.kill()

    def join(self, timeout_s: float) -> bool:
        """Wait for the process to end; returns whether it did."""
        with contextlib.suppress(ValueError):  # released, so it has ended
            self.process.join(timeout_s)
            if self._pidfd is not None and self.process.exitcode is not None:
                self._pidfd.lives(timeout_s)
        return not self.is_alive()

    def disown(self) -> None:
        """Forget a worker that belongs to the process we were forked from."""
        popen = getattr(self.process, "_popen", None)  # none in the worker itself, if it is being forked
        # The finalizer closes these only in the process that made it.
        theirs = popen.finalizer._args or () if popen is not None else ()
        for fd in (self._lifeline, self._stacks, *theirs):
            with contextlib.suppress(OSError):
                os.close(fd)
        if self._pidfd is not None:
            self._pidfd.close()
        self.channel.close()
        multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]

    def release(self) -> None:
        """Close every descriptor of ours. The process must have ended or be about to."""
        with self._closing, contextlib.suppress(OSError):  # code that closes every file has closed ours too
            self._ours.close()
        if not self.is_alive():
            self.process.close()


def _end_all(pids: list[int]) -> None:
    """Ask processes to end, and kill those that do not within a moment."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        end = time.monotonic() + _GRACE_S
        while pids and time.monotonic() < end:
            pids = [pid for pid in pids if resident_bytes(pid) is not None]  # a zombie holds no memory
            time.sleep(0.005)


def _disown_in_forked_child() -> None:
    """Disown workers, which belong to the process we were forked from: neither keep them alive nor wait for them."""
    while _running:  # each once: in a copy of the copy, their descriptors may stand for other files
        _running.pop().disown()
    # Held by the thread that forks a worker, and perhaps by one that does not exist here.
    _starting._at_fork_reinit()  # type: ignore[attr-defined]
    _disown_fork_server()


def _disown_fork_server() -> None:
    """Have this process start a fork server of its own, if it needs one.

    The inherited one is no child of ours, so ``multiprocessing`` would fail to ask whether it lives. It would also live
    as long as we hold our copy of the pipe that ties it to its owner. Removing its folder is left to its owner.
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
            stays locked in the copy forever. ``"fork!"`` does it all the same; ``"fork?"`` turns to the fork server
            in that case, and while a GPU is in use, which a forked process cannot go on using.
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
    """Says why this process can have no worker processes; empty if it can."""
    if multiprocessing.current_process().daemon:
        return "this process is daemonic, as are the workers of a DataLoader, and may have no children"
    return ""


def require_workers() -> None:
    """Make sure that this process can have worker processes.

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
    with _starting, _without_script():
        # Not earlier: variables that another pool sets while it starts its workers are not the user's.
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
    """Have the fork server start loading what workers need, without waiting, if workers would come from it."""
    if why_no_workers() or start_method(requested) != "forkserver":
        return
    with _starting, _without_script():
        _preload()
        with single_threaded_libraries(unset_thread_variables()):
            forkserver.ensure_running()


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Have processes that this thread starts meanwhile not run the user's script again.

    Nothing is lost: what a factory needs from the script travels by value. So notebooks, ``python -c``, stdin and
    scripts without an ``if __name__ == "__main__"`` guard all work.
    """
    original, starter = spawn.get_preparation_data, threading.get_ident()

    def prepared(name: str) -> dict[str, Any]:
        data = original(name)
        if threading.get_ident() == starter:  # another thread's processes are no business of ours
            for key in _SCRIPT:
                data.pop(key, None)
        return data

    spawn.get_preparation_data = prepared
    try:
        yield
    finally:
        spawn.get_preparation_data = original
