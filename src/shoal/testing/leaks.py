"""Catch what a piece of code leaves behind: processes, threads, open files, shared memory.

    with no_leftovers():
        ...                     # anything new that is still there two seconds after this block fails the test

As a fixture for every test of a suite, in `conftest.py`:

    leak_guard = pytest.fixture(autouse=True)(shoal.testing.leak_guard)

The fork server and the resource tracker of `multiprocessing` are not counted: Python starts them at first use and keeps
them as long as the process lives. What the fork server has started is counted. Processes that ended but were not
reaped (zombies) are counted too. A process whose parent died is no longer ours to see and is not found. The folder in
which shoal keeps compiled envs for the next program is not a leftover either, wherever it is.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from shoal.machine import process_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_K = TypeVar("_K")
_Child: TypeAlias = "tuple[int, float]"

DEFAULT_PREFIXES = ("shoal",)
_PROC = Path("/proc")
_SHM = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is there at one moment, or what is new since another; false if that is nothing.

    Attributes:
        children: All descendants, by pid and start time, since pids are reused.
        threads: The Python threads.
        fds: The open file descriptors, by number and what they point to.
        files: The paths in /dev/shm and in the directory for temporary files.
    """

    children: Mapping[_Child, str]
    threads: Mapping[threading.Thread, str]
    fds: Mapping[tuple[int, str], str]
    files: Mapping[str, str]

    def since(self, before: Leftovers) -> Leftovers:
        """What is here and was not there before."""
        return Leftovers(
            _without(self.children, before.children),
            _without(self.threads, before.threads),
            _without(self.fds, before.fds),
            _without(self.files, before.files),
        )

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.children or self.threads or self.fds or self.files)

    def __str__(self) -> str:
        """One line for each thing."""
        groups = (self.children, self.threads, self.fds, self.files)
        return "\n".join(line for group in groups for line in sorted(group.values()))


def leftovers(prefixes: tuple[str, ...] = DEFAULT_PREFIXES, ignore: tuple[str, ...] = ()) -> Leftovers:
    """Look at what this process has now.

    Args:
        prefixes: How the names of the files that count begin. Other processes make files too, so only names that are
            surely yours belong here; add "psm_" for unnamed `multiprocessing.shared_memory` blocks.
        ignore: Leave out things whose description contains one of these.

    Returns:
        What is there; compare two with `Leftovers.since`.
    """
    return Leftovers(
        _wanted(_children(), ignore),
        _wanted({thread: _describe_thread(thread) for thread in _threads()}, ignore),
        _wanted(_fds(), ignore),
        _wanted(_files(prefixes), ignore),
    )


@contextlib.contextmanager
def no_leftovers(
    grace_s: float = 2.0, prefixes: tuple[str, ...] = DEFAULT_PREFIXES, ignore: tuple[str, ...] = ()
) -> Iterator[Leftovers]:
    """Fail if the block leaves anything behind.

    If the block itself raises, its exception is passed on, with what was left behind as a note.

    Args:
        grace_s: How long things may take to go away. If nothing is left, there is no wait.
        prefixes: As for `leftovers`.
        ignore: As for `leftovers`.

    Yields:
        What was there before.

    Raises:
        AssertionError: Something new is still there after the grace period.
    """
    before = leftovers(prefixes, ignore)
    try:
        yield before
    except BaseException as error:
        if left := _wait_until_clean(before, grace_s, prefixes, ignore):
            error.add_note(f"and these were left behind:\n{left}")
        raise
    if left := _wait_until_clean(before, grace_s, prefixes, ignore):
        raise AssertionError(f"left behind, {grace_s} s after the end:\n{left}")


def leak_guard(grace_s: float = 2.0) -> Iterator[None]:
    """`no_leftovers` as a generator function, to be made into a pytest fixture."""
    with no_leftovers(grace_s):
        yield


def _wait_until_clean(
    before: Leftovers, grace_s: float, prefixes: tuple[str, ...], ignore: tuple[str, ...]
) -> Leftovers:
    deadline_s = time.monotonic() + grace_s
    left = leftovers(prefixes, ignore).since(before)
    if left:
        # Things held only by a reference cycle, as a caught exception's frames are, are garbage, not a leak.
        gc.collect()
        left = leftovers(prefixes, ignore).since(before)
    pause_s = _FIRST_PAUSE_S
    while left and time.monotonic() < deadline_s:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        left = leftovers(prefixes, ignore).since(before)
    return left


def _without(items: Mapping[_K, str], others: Mapping[_K, str]) -> dict[_K, str]:
    return {key: text for key, text in items.items() if key not in others}


def _wanted(items: Mapping[_K, str], ignore: tuple[str, ...]) -> dict[_K, str]:
    return {key: text for key, text in items.items() if not any(part in text for part in ignore)}


def _lasting(server: object, *names: str) -> set[int]:
    """Numbers a `multiprocessing` singleton holds for good; the attributes are private, so any may be missing."""
    return {value for name in names if isinstance(value := getattr(server, name, None), int)}


def _lasting_pids() -> set[int]:
    servers = getattr(forkserver, "_forkserver", None), getattr(resource_tracker, "_resource_tracker", None)
    return _lasting(servers[0], "_forkserver_pid") | _lasting(servers[1], "_pid")


def _lasting_fds() -> set[int]:
    servers = getattr(forkserver, "_forkserver", None), getattr(resource_tracker, "_resource_tracker", None)
    return _lasting(servers[0], "_forkserver_alive_fd") | _lasting(servers[1], "_fd")


def _children() -> dict[_Child, str]:
    found = _children_by_proc() if (_PROC / "self" / "stat").exists() else _children_by_psutil()
    lasting = _lasting_pids()
    return {key: text for key, text in found.items() if key[0] not in lasting}


def _children_by_proc() -> dict[_Child, str]:
    born: dict[int, list[tuple[int, float, str]]] = {}
    for pid, told in process_table():
        born.setdefault(int(told[1]), []).append((pid, float(told[19]), told[0].decode()))
    found: dict[_Child, str] = {}
    parents = [os.getpid()]
    while parents:
        for pid, start, state in born.get(parents.pop(), ()):
            found[pid, start] = f"child process {pid}: {_command(pid, state)}"
            parents.append(pid)
    return found


def _command(pid: int, state: str) -> str:
    if state == "Z":
        return "ended, but not reaped"
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "just ended"


def _children_by_psutil() -> dict[_Child, str]:
    try:
        import psutil
    except ImportError:
        # The last resort sees only what multiprocessing started itself.
        return {
            (process.pid or 0, 0.0): f"child process {process.pid}: {process.name}"
            for process in multiprocessing.active_children()
        }
    found: dict[_Child, str] = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[child.pid, child.create_time()] = f"child process {child.pid}: {child.name()} ({child.status()})"
    return found


def _threads() -> list[threading.Thread]:
    # Dummies stand for threads Python did not start; they stay listed after the thread has ended.
    return [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]


def _describe_thread(thread: threading.Thread) -> str:
    return f"thread {thread.name}{' (daemon)' if thread.daemon else ''}"


def _fds() -> dict[tuple[int, str], str]:
    folder = next((path for path in ("/proc/self/fd", "/dev/fd") if os.path.isdir(path)), None)
    lasting = _lasting_fds()
    found: dict[tuple[int, str], str] = {}
    for name in os.listdir(folder) if folder else ():
        # The listing itself opened one that is closed again by now.
        with contextlib.suppress(OSError):
            if (fd := int(name)) not in lasting:
                target = _fd_target(f"{folder}/{name}", fd)
                found[fd, target] = f"file descriptor {fd}: {target}"
    return found


def _fd_target(path: str, fd: int) -> str:
    if os.path.islink(path):
        return os.readlink(path)
    status = os.fstat(fd)
    return f"device {status.st_dev} inode {status.st_ino}"


def _files(prefixes: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in {str(_SHM), tempfile.gettempdir()}:
        with contextlib.suppress(OSError):
            found.update({f"{folder}/{name}": name for name in os.listdir(folder) if name.startswith(prefixes)})
    lasting = _lasting_files()
    return {path: f"file {path}" for path in found if path not in lasting}


def _lasting_files() -> set[str]:
    """Where compiled envs may be kept, and the folders around that."""
    from shoal.engines.kernel.shelf import chosen_folder, last_resort

    places = (chosen_folder().absolute(), last_resort())
    return {str(path) for place in places for path in (place, *place.parents)}
