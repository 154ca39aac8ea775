"""Examinations of the machine: what a pool will find when it starts here."""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import sys
import tempfile
import threading
from contextlib import closing
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import cgroups
from shoal.arrays import Arena
from shoal.doctor import limits
from shoal.doctor.diagnosis import Diagnosis, Watch, brief, examined, no_watch, plural, size
from shoal.doctor.trial import Trial, library_threads, own_bytes, try_workers
from shoal.engines.kernel.installed import imports_numba
from shoal.engines.process.launch import start_method
from shoal.engines.process.threads import foreign_threads
from shoal.errors import ShoalError
from shoal.machine import available_memory_bytes, usable_cores
from shoal.quick import PURE_PYTHON, is_compiled

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 1 << 20
_PACKAGES = ("shoal", "gymnasium", "numpy", "cloudpickle")
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_PROBE_BYTES = 16 * _MIB
_SWAP_THAT_HURTS_BYTES = 256 * _MIB


def examine_machine(*, thorough: bool = False, watch: Watch = no_watch) -> list[Diagnosis]:
    """Examine this machine as a pool would find it. Starts a few worker processes, and ends them.

    Args:
        thorough: Try every start method, not only the one that pools use by default.
        watch: Called with each topic before it is examined.

    Example:
        >>> from shoal.doctor import examine_machine
        >>> [d.topic for d in examine_machine() if d.verdict == "problem"]
        []
    """
    watch("worker processes")
    method = start_method(None)
    trial = _try(method)
    ways = [method]
    if thorough:
        ways += [other for other in multiprocessing.get_all_start_methods() if other != method]
    examinations: list[tuple[str, Callable[[], Diagnosis]]] = [
        ("python", _python),
        ("packages", _packages),
        ("extras", _extras),
        ("compiled part", _compiled_part),
        ("cores", _cores),
        ("memory", partial(_memory, trial)),
        ("memory kills", _memory_kills),
        ("shared memory", _shared_memory),
        ("address space", limits.address_space),
        ("open files", partial(limits.open_files, trial)),
        ("processes", limits.processes),
        *((f"workers, {way}", partial(_workers, way, trial if way == method else None)) for way in ways),
        ("threads", _threads),
        ("library threads", partial(_library_threads, trial)),
        ("compiled envs", _compiled_envs),
    ]
    diagnoses = []
    for topic, examination in examinations:
        watch(topic)
        diagnoses.append(examined(topic, examination))
    return diagnoses


def _try(method: str) -> Trial | Exception:
    try:
        return try_workers(method)
    except (ShoalError, OSError, RuntimeError) as error:
        return error


# ------------------------------------------------------------------ what is installed


def _python() -> Diagnosis:
    found = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    if sys.platform != "linux":
        return Diagnosis("python", "warning", found, "worker processes need Linux; use engine='serial' or 'thread'")
    return Diagnosis("python", "ok", found)


def _packages() -> Diagnosis:
    told = (f"{name} {_version(name) or 'unknown'}" for name in _PACKAGES)
    return Diagnosis("packages", "ok", ", ".join(told))


def _extras() -> Diagnosis:
    versions = {name: _version(name) for name in _optional_packages()}
    there = [f"{name} {version}" for name, version in versions.items() if version]
    absent = [name for name, version in versions.items() if not version]
    parts = [", ".join(there)] * bool(there) + [f"not installed: {', '.join(absent)}"] * bool(absent)
    return Diagnosis("extras", "ok", "; ".join(parts))


def _optional_packages() -> list[str]:
    """What the extras of shoal bring along, but for those of its developers, as its own metadata list them."""
    try:
        lines = metadata.requires("shoal") or ()  # such as: ale-py>=0.11; extra == 'atari'
    except metadata.PackageNotFoundError:
        return []
    wanted = (re.match(r"([\w.-]+).*; extra == .(?!dev\b)", line) for line in lines)
    return sorted({found[1] for found in wanted if found} - set(_PACKAGES))


def _version(name: str) -> str | None:
    """The installed version, without the cost of an import."""
    try:
        return metadata.version(name.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------ what the machine has


def _compiled_part() -> Diagnosis:
    topic = "compiled part"
    if is_compiled:
        return Diagnosis(topic, "ok", "in use")
    if os.environ.get(PURE_PYTHON):
        return Diagnosis(topic, "ok", f"not in use, as {PURE_PYTHON} asks for")
    fix = "install a C compiler, and then shoal again: pip install --force-reinstall --no-deps ..."
    return Diagnosis(topic, "warning", "was not built for this Python, so steps of Python envs take longer", fix)


def _cores() -> Diagnosis:
    usable, there, quota = usable_cores(), os.cpu_count() or 1, cgroups.cpu_quota()
    limits = [f"cgroup quota {quota:.2g}"] if quota else []
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) != there:
        limits.insert(0, f"affinity {len(os.sched_getaffinity(0))}")
    found = f"{usable} usable of {there}" + f" ({', '.join(limits)})" * bool(limits)
    found += f", load {os.getloadavg()[0]:.1f}"
    return Diagnosis("cores", "ok", found)


def _memory(trial: Trial | Exception) -> Diagnosis:
    available, limit = available_memory_bytes(), cgroups.memory_limit_bytes()
    per_worker = trial.worker_bytes if isinstance(trial, Trial) else own_bytes()
    found = f"{size(available)} available" + (f" (cgroup limit {size(limit)})" if limit else "")
    found += f"; a worker takes {size(per_worker)} before it has envs" if per_worker else ""
    if swapped := cgroups.swapped_bytes():
        found += f"; {size(swapped)} swapped out"
    less = "use fewer or smaller envs and fewer workers, end other programs, or raise the limit"
    if available < usable_cores() * per_worker:
        return Diagnosis("memory", "problem", found, less)
    if swapped > _SWAP_THAT_HURTS_BYTES or available < 4 * usable_cores() * per_worker:
        return Diagnosis("memory", "warning", found, less)
    return Diagnosis("memory", "ok", found)


def _memory_kills() -> Diagnosis:
    kills = cgroups.oom_kills()
    if kills:
        return Diagnosis(
            "memory kills",
            "warning",
            f"{kills} in this cgroup since it was made: processes that wanted more memory than it allows",
            "if a pool said that a worker was killed by SIGKILL, this is why: use fewer envs, or raise the limit",
        )
    return Diagnosis("memory kills", "ok", "none in this cgroup" if kills == 0 else "not counted here")


def _shared_memory() -> Diagnosis:
    fd = Arena.open_file()
    try:
        with closing(Arena.reserve(fd, _PROBE_BYTES).buffer) as buffer:
            buffer[-1:] = b"x"
    finally:
        os.close(fd)
    room = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None  # noqa: S108 - looked at, not written to
    shm = f"; /dev/shm has {size(room.f_bavail * room.f_frsize)} free, and pools do not use it" if room else ""
    if hasattr(os, "memfd_create"):
        return Diagnosis("shared memory", "ok", f"can be made and reserved{shm}")
    return Diagnosis(
        "shared memory",
        "warning",
        f"this system has no memfd, so pools map a file in {tempfile.gettempdir()}",
        "set TMPDIR to a folder that is in memory",
    )


# ------------------------------------------------------------------ what happens


def _workers(method: str, trial: Trial | Exception | None) -> Diagnosis:
    topic = f"workers, {method}"
    if method == "fork" and (running := foreign_threads()):
        found = f"not tried: other threads run in this process ({running})"
        return Diagnosis(topic, "warning", found, "use start_method=None")
    trial = trial or _try(method)
    if isinstance(trial, Exception):
        # If the error has no errno, only its cause says what happened.
        told = trial.__cause__ if isinstance(trial, OSError) and trial.errno is None and trial.__cause__ else trial
        return Diagnosis(topic, "problem", f"workers cannot be started: {brief(told)}", _start_fix(told))
    default = ", the default" if method == start_method(None) else ""
    found = f"ready after {trial.first_s:.2f} s, the next pool after {trial.next_s:.2f} s{default}"
    return Diagnosis(topic, "ok", found)


def _start_fix(error: BaseException) -> str:
    if "AF_UNIX" in str(error):
        return "the fork server's socket is in the folder for temporary files: set TMPDIR to a short path, such as /tmp"
    return "see open files, processes and memory; until then use engine='serial' or engine='thread'"


def _threads() -> Diagnosis:
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    tasks = Path("/proc/self/task")
    native = len(list(tasks.iterdir())) - 1 - len(others) if tasks.is_dir() else 0
    if not others and native <= 0:
        return Diagnosis("threads", "ok", "none but this one")
    parts = [f"{len(others)} of Python ({', '.join(others[:3])}{', ...' * (len(others) > 3)})"] if others else []
    parts += [f"{native} of libraries"] if native > 0 else []
    found = (
        f"besides this one {' and '.join(parts)}: start_method='fork' would copy locks that they hold and may hang; "
    )
    found += "forkserver, the default, does not"
    return Diagnosis("threads", "ok", found)


def _library_threads(trial: Trial | Exception) -> Diagnosis:
    topic = "library threads"
    chosen = [f"{name}={os.environ[name]}" for name in _THREAD_VARIABLES if name in os.environ]
    variables = ", ".join(chosen) or "no variable set"
    here, there = library_threads(), trial.libraries if isinstance(trial, Trial) else None
    if here is not None and there is not None:
        in_worker = max(there.values(), default=1)
        found = f"{variables}; {_counts(here)} here, {_counts(there)} in a worker"
    else:
        # A worker respects what the user has set.
        in_worker = max((int(os.environ[name]) for name in _THREAD_VARIABLES if _is_number(name)), default=1)
        found = variables if here is not None else f"{variables}; pip install threadpoolctl to see what libraries use"
    if in_worker > 1:
        found += f": {usable_cores()} workers with {in_worker} threads each on {plural(usable_cores(), 'core')}"
        return Diagnosis(topic, "warning", found, "set OMP_NUM_THREADS=1, and the other variables alike")
    return Diagnosis(topic, "ok", found)


def _is_number(variable: str) -> bool:
    return os.environ.get(variable, "").isdigit()


def _counts(threads: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in threads.items()) or "none loaded"


def _compiled_envs() -> Diagnosis:
    topic = "compiled envs"
    if not imports_numba():  # tried anew, whereas pools rely on what was found out before
        version = _version("numba")
        if version is None:
            return Diagnosis(topic, "ok", "run as plain Python, since numba is not installed")
        found = f"numba {version} is installed and cannot be imported, so compiled envs run as plain Python"
        return Diagnosis(topic, "problem", found, "pip install -U numba; python -c 'import numba' tells the reason")
    from shoal.engines.kernel.shelf import cache_folder, last_resort

    own = "set SHOAL_CACHE_DIR to a folder of your own that lasts"
    try:
        folder = cache_folder()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_MIB))
    except (OSError, ShoalError) as error:
        return Diagnosis(topic, "warning", f"compiled anew by every process: {brief(error)}", own)
    if folder == last_resort():
        found = f"kept in {folder}, since the cache folder cannot be written to"
        return Diagnosis(topic, "warning", found, own)
    return Diagnosis(topic, "ok", f"kept in {folder}")
