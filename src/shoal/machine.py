"""What this machine lets us use."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import cgroups

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    children: dict[int, list[int]] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no such folder here, or no descriptor left to read it with
        return []
    for name in names:
        try:
            # The name in parentheses may contain anything; the parent's id is the second word after it.
            parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
        except (OSError, ValueError, IndexError):
            continue  # it has ended in the meantime
    found, seen = [pid], {pid}
    for each in found:
        new = [child for child in children.get(each, ()) if child not in seen]
        seen.update(new)
        found += new
    return found[1:]
