"""What the system allows this process to do, and for how many workers that is enough."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from shoal import cgroups
from shoal.doctor.diagnosis import Diagnosis, Verdict, plural, size
from shoal.doctor.trial import Trial
from shoal.engines.process.descriptors import (
    FDS_PER_WORKER,
    descriptors_left,
    fds_for,
    how_to_raise_open_files,
    open_fds,
)
from shoal.machine import usable_cores

_TASKS_PER_WORKER = 2  # the process itself, and a thread that a library may start in it
_ENOUGH_WORKERS = 64  # with room for fewer, a user who wants a worker per env may run into the limit
# Address space is not memory: compilers and torch reserve gigabytes that they never touch.
_AMPLE_ADDRESSES_BYTES = 4 << 30
_SCARCE_ADDRESSES_BYTES = 512 << 20
_MORE_ADDRESSES = (
    "ulimit -v unlimited; if that is refused, raise 'as' in /etc/security/limits.conf\n"
    "to limit memory, use a cgroup or a container: address space is not memory"
)


def address_space() -> Diagnosis:
    """How much address space is left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return Diagnosis("address space", "ok", "not limited")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    left = max(0, soft - used)
    verdict: Verdict = "problem" if left < _SCARCE_ADDRESSES_BYTES else "warning"
    return Diagnosis(
        "address space",
        "ok" if left >= _AMPLE_ADDRESSES_BYTES else verdict,
        f"limited to {size(soft)}, of which {size(left)} are left",
        "" if left >= _AMPLE_ADDRESSES_BYTES else _MORE_ADDRESSES,
    )


def open_files(trial: Trial | Exception) -> Diagnosis:
    """How many workers the limit on open files has room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = trial.fds_per_worker if isinstance(trial, Trial) else FDS_PER_WORKER
    room = max(0, descriptors_left() - fds_for(0)) // each
    limits = " (hard limit ".join(_limit(value) for value in (soft, hard)) + ")"
    found = f"{limits}, {open_fds()} open: room for {plural(room, 'worker')}, {each} each"
    verdict = _verdict_on_room(room)
    needed = open_fds() + fds_for(_ENOUGH_WORKERS, each)
    return Diagnosis("open files", verdict, found, "" if verdict == "ok" else how_to_raise_open_files(needed))


def processes() -> Diagnosis:
    """How many workers the limits on processes have room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    left = []
    # The kernel exempts root from the limit per user.
    if soft != resource.RLIM_INFINITY and os.getuid() != 0:
        left.append(("the limit per user", max(0, soft - _tasks_of_user())))
    if (tasks := cgroups.tasks_left()) is not None:
        left.append(("the cgroup", tasks))
    if not left:
        return Diagnosis("processes", "ok", "not limited" + " for root" * (os.getuid() == 0))
    who, tasks = min(left, key=lambda pair: pair[1])
    room = max(0, tasks - _TASKS_PER_WORKER) // _TASKS_PER_WORKER
    verdict = _verdict_on_room(room)
    fix = "raise it with ulimit -u" if who != "the cgroup" else "raise pids.max (docker run --pids-limit)"
    found = f"{who} allows {tasks:,} more processes and threads: room for {plural(room, 'worker')}"
    return Diagnosis("processes", verdict, found, "" if verdict == "ok" else f"{fix}, or end other programs")


def _verdict_on_room(workers: int) -> Verdict:
    if workers < usable_cores():  # the default pool would not start
        return "problem"
    return "ok" if workers >= _ENOUGH_WORKERS else "warning"


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def _tasks_of_user() -> int:
    """The number of threads in all processes of this user, which is what the kernel counts."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if folder.stat().st_uid == os.getuid():
                    count += len(list((folder / "task").iterdir()))
            except OSError:  # the process has just ended
                continue
    return count
