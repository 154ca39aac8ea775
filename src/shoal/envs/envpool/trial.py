"""Trying out a task with options in a process of its own.

EnvPool checks few of its options: a size of zero may well end the process, and so may drawing without a display. So
what a user has chosen first runs in another process, for the beginning of an episode; if that dies, no harm is done.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from functools import cache
from typing import Any

import numpy as np

from shoal.errors import ArgumentError

_ENVS, _STEPS = 3, 50
_DEADLINE_S = 120.0


def try_out(task_id: str, arguments: dict[str, Any]) -> None:
    """Check that EnvPool survives a task with these arguments; each combination is tried once.

    Raises:
        ArgumentError: If it does not, or an argument is not plain data.
    """
    try:
        wish = json.dumps([task_id, arguments], sort_keys=True, default=_plain)
    except TypeError as error:
        raise ArgumentError(f"{task_id}: an option has to be plain data: {error}") from None
    trouble = _trouble(wish)
    if trouble:
        raise ArgumentError(f"{task_id} with {arguments}: a trial of it in another process failed: {trouble}")


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"got {value!r}")


@cache
def _trouble(wish: str) -> str:
    """How the trial failed, in words; empty if it did not."""
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", __name__],
            input=wish,
            env=here,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it was not done after {_DEADLINE_S:.0f} s"
    if done.returncode == 0:
        return ""
    # Without the frames of a C++ stack.
    said = [line for line in done.stderr.splitlines() if line.strip() and not line.strip().startswith(("@", "***"))]
    code = done.returncode
    how = f"it ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    return ": ".join([how, *said[-1:]])


def main() -> None:
    """Make a few envs as described on stdin, take some steps in them, and draw one if a ``render_mode`` is given."""
    from shoal.envs.envpool import library
    from shoal.envs.envpool.layout import layout_of

    task_id, arguments = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    spec = library().make_spec(task_id, num_envs=_ENVS, **_of_env(arguments))
    layout = layout_of(task_id, spec, tells_discount=False)  # first, because it refuses some options that cannot run
    pool = library().make_gymnasium(task_id, num_envs=_ENVS, num_threads=1, **arguments)
    pool.reset()
    space = layout.action.space
    space.seed(0)
    for _ in range(_STEPS):
        pool.step(np.asarray([space.sample() for _ in range(_ENVS)]))
    if "render_mode" in arguments:
        pool.render(env_ids=[0])


def _of_env(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if not name.startswith("render_")}


if __name__ == "__main__":
    main()
