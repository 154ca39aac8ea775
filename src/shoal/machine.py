"""What this machine lets us use."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: its CPU affinity, cut down to the CPU quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def _cgroup_quota() -> float | None:
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def available_memory_bytes() -> int:
    """Memory this process may still take: what the system has left, cut down to the limit of its cgroup."""
    left = [value for value in (_meminfo_available(), _cgroup_memory_left()) if value is not None]
    return min(left, default=sys.maxsize)


def _meminfo_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def _cgroup_memory_left() -> int | None:
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit) - int((root / "memory.current").read_text())
    except (OSError, ValueError):
        return None
