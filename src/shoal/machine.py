"""What this machine lets us use."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import cgroups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def usable_cores() -> int:
    """Cores this process may use: its CPU affinity, cut down to the CPU quota of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota()
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def pin_thread(cpus: Sequence[int] | None, seat: int) -> None:
    """Pin the calling thread to one of these CPUs, assigned in turn by ``seat``; None leaves it to the system."""
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpus[seat % len(cpus)]})


def available_memory_bytes() -> int:
    """Memory this process may still take: what the system has left, cut down to the limits of its control groups."""
    left = [value for value in (_meminfo_available(), cgroups.memory_left_bytes()) if value is not None]
    return max(0, min(left, default=sys.maxsize))


def _meminfo_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def resident_bytes(pid: int) -> int | None:
    """Memory that a process holds now; None if it is gone or the system does not say."""
    return _status_bytes(pid, "VmRSS:")


def peak_resident_bytes(pid: int) -> int | None:
    """The most memory that a process has ever held; None if it is gone or the system does not say."""
    return _status_bytes(pid, "VmHWM:")


def _status_bytes(pid: int, name: str) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, those that these have started, and so on."""
    return _with_descendants([pid], _processes())[1:]


def followers(pid: int, *, is_alive: bool) -> list[int]:
    """The descendants of a process and of its process group, which it leads, or has led if it is no longer alive.

    What it has started has other parents once it is dead, but is still in its group.
    """
    processes = _processes()
    if not is_alive and pid in processes:
        return []  # a new process has its number, which is not given to any while somebody is in the group
    group = [each for each, (_, leader) in processes.items() if leader == pid != each]
    return _with_descendants([pid, *group], processes)[1:]


def _with_descendants(pids: list[int], processes: dict[int, tuple[int, int]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found, seen = pids.copy(), set(pids)
    for pid in found:
        new = [child for child in children.get(pid, ()) if child not in seen]
        seen.update(new)
        found += new
    return found


def _processes() -> dict[int, tuple[int, int]]:
    """The parent and the process group of every process that has not ended."""
    try:
        return {pid: (int(told[1]), int(told[2])) for pid, told in process_table() if told[0] not in (b"Z", b"X")}
    except OSError:  # no such folder here, or no descriptor left to read it with
        return {}


def process_table() -> Iterator[tuple[int, list[bytes]]]:
    """Every process of this machine, ended ones that nobody has reaped included, as /proc has it.

    With each pid comes what is told after its name: the state, the parent, the process group and so on.

    Raises:
        OSError: If /proc cannot be read.
    """
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            # Unbuffered, because hundreds may be read: a Path takes nearly twice as long.
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                line = file.readall()
        except OSError:
            continue  # it has ended in the meantime
        # The command's name in parentheses may contain anything; what follows the last of them is regular.
        if told := line.rpartition(b")")[2].split():
            yield int(name), told
