"""How long it takes until a pool of compiled envs is there, in fresh processes, with and without compiled code on disk.

The code that numba has compiled goes to a folder of the measurement's own, so the user's cache stays as it is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from report import Grid, met_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUM_ENVS = 1024
READY_AT_MOST_S = 0.3
CHILD_TIMEOUT_S = 120
LAST_LINES = 3

# What every program with Gymnasium imports is imported first; what make() needs beyond that counts as its own.
CHILD = f"""
import json, time
began = time.perf_counter()
import gymnasium.vector, numpy, shoal
imported = time.perf_counter()
envs = shoal.make("CartPole-v1", num_envs={NUM_ENVS})
made = time.perf_counter()
envs.reset()
envs.step(numpy.zeros({NUM_ENVS}, int))
stepped = time.perf_counter()
print(json.dumps({{"import_s": imported - began, "make_s": made - imported, "first_step_s": stepped - made}}))
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the time of one process went."""

    import_s: float
    make_s: float
    first_step_s: float
    """The first reset and step, after which all is as fast as it gets."""

    @property
    def with_imports_s(self) -> float:
        return self.import_s + self.make_s


@dataclass(frozen=True, slots=True)
class StartReport:
    """All tries; empty with a reason if there is none."""

    cold: Sequence[Start] = ()
    warm: Sequence[Start] = ()
    failure: str = ""

    def grid(self) -> Grid:
        columns = ("what", "s", "target", "verdict")
        if self.failure:
            return Grid(f"Start-up, CartPole, {NUM_ENVS} envs", columns, [], (f"not measured: {self.failure}",))
        rows = [
            _row("make, code in the cache", self.warm, lambda start: start.make_s, READY_AT_MOST_S),
            _row("imports and make, code in the cache", self.warm, lambda start: start.with_imports_s),
            _row("first reset and step, code in the cache", self.warm, lambda start: start.first_step_s),
            _row("make, compiling", self.cold, lambda start: start.make_s),
            _row("imports and make, compiling", self.cold, lambda start: start.with_imports_s),
        ]
        return Grid(f"Start-up, CartPole, {NUM_ENVS} envs", columns, rows)


def _row(
    what: str, tries: Sequence[Start], seconds: Callable[[Start], float], at_most_s: float | None = None
) -> tuple[str, ...]:
    value = statistics.median(map(seconds, tries))
    if at_most_s is None:
        return (what, f"{value:.3f}", "", "")
    return (what, f"{value:.3f}", f"at most {at_most_s:g}", met_words(value <= at_most_s))


def measure(python: str, *, is_quick: bool) -> StartReport:
    """Start processes one after another: some with an empty cache, then some with the cache they have filled."""
    num_cold, num_warm = (1, 3) if is_quick else (3, 9)
    cold, warm = [], []
    try:
        for _ in range(num_cold):
            with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
                cold.append(_start(python, folder))
                warm += [_start(python, folder) for _ in range(num_warm // num_cold)]
    except subprocess.SubprocessError as error:
        words = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return StartReport(failure=" / ".join(words[-LAST_LINES:]))
    return StartReport(cold, warm)


def _start(python: str, cache_folder: str) -> Start:
    environment = {**os.environ, "SHOAL_CACHE_DIR": cache_folder}
    child = subprocess.run(
        [python, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=True
    )
    return Start(**json.loads(child.stdout))
