"""What the control groups of this process allow, and what has happened in them.

A process is in one group (version 2) or one per resource (version 1), and every group above it has a say too. In a
container the path that the kernel reports may be the host's; the files to read are then at the root of the mount.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as a huge number


def cpu_quota() -> float | None:
    """Cores that the strictest group allows; None if none of them sets a quota."""
    quotas = []
    for folder in _folders("cpu"):
        words = (_text(folder / "cpu.max") or "").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit_bytes() -> int | None:
    """Memory that the strictest group allows; None if none of them sets a limit."""
    return _least("memory", "memory.max", "memory.limit_in_bytes")


def memory_left_bytes() -> int | None:
    """Memory left in the group that has least of it left; None if none of them sets a limit."""
    left = []
    for folder in _folders("memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                left.append(limit - used)
    return min(left, default=None)


def oom_kills() -> int | None:
    """Processes of this group, or of one below it, that were killed for lack of memory; None if that is not counted."""
    for folder in _folders("memory"):
        for name in ("memory.events", "memory.oom_control"):
            kills = _entry(folder / name, "oom_kill")
            if kills is not None:
                return kills
    return None


def swapped_bytes() -> int:
    """Memory of this group that has been moved to disk."""
    for folder in _folders("memory"):
        for swapped in (_number(folder / "memory.swap.current"), _entry(folder / "memory.stat", "swap")):
            if swapped is not None:
                return swapped
    return 0


def tasks_left() -> int | None:
    """Processes and threads that may still be started; None if no group limits them."""
    left = []
    for folder in _folders("pids"):
        most, now = _number(folder / "pids.max"), _number(folder / "pids.current")
        if most is not None and now is not None:
            left.append(most - now)
    return min(left, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """The group of this process for one resource, and those above it, innermost first."""
    for line in (_text(_OWN) or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        mounts = [_ROOT, _ROOT / "unified"] if number == "0" else [_ROOT / controllers, _ROOT / controller]
        for mount in dict.fromkeys(mounts):
            inner = mount / path.lstrip("/")
            while inner != mount and mount in inner.parents:
                if inner.is_dir():
                    yield inner
                inner = inner.parent
            if mount.is_dir():
                yield mount


def _least(controller: str, *names: str) -> int | None:
    limits = [_number(folder / name) for folder in _folders(controller) for name in names]
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


def _entry(path: Path, key: str) -> int | None:
    words = [line.split() for line in (_text(path) or "").splitlines()]
    return next((int(line[1]) for line in words if len(line) == 2 and line[0] == key and line[1].isdigit()), None)


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no file, or it says "max"."""
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
