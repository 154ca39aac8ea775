"""Trying a task with options in a process of its own.

EnvPool checks few of its options: a size of zero may well end the process, and so may drawing without a display. So
what a user has chosen runs there first, for the beginning of an episode; if it dies, it was only a trial.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess  # noqa: S404
import sys
import warnings
from functools import cache
from typing import Any

import numpy as np

from shoal.errors import ArgumentError

_STEPS = 4
_DEADLINE_S = 120.0


def try_out(task_id: str, arguments: dict[str, Any]) -> None:
    """Raise ``ArgumentError`` unless EnvPool survives a task with these arguments. Each is tried once.

    Raises:
        ArgumentError: If it does not, or an argument is not plain data.
    """
    try:
        wish = json.dumps([task_id, arguments], sort_keys=True, default=_plain)
    except TypeError as error:
        raise ArgumentError(f"{task_id}: an option has to be plain data: {error}") from None
    trouble = _trouble(wish)
    if trouble:
        raise ArgumentError(f"{task_id} with {arguments}: EnvPool fails, as a trial in another process shows: {trouble}")


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"got {value!r}")


@cache
def _trouble(wish: str) -> str:
    """How it ended, in words; empty if well."""
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
    said = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    how = f"it ended with {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "it raised"
    return ": ".join([how, *said])


def main() -> None:
    """Make one env of what stdin says, begin an episode, and draw it if it can be drawn."""
    import envpool

    from shoal.envs.envpool.layout import layout_of

    task_id, arguments = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    pool = envpool.make_gymnasium(task_id, num_envs=1, num_threads=1, **arguments)
    pool.reset()
    space = layout_of(task_id, pool.spec, tells_discount=False).action.space
    space.seed(0)
    for _ in range(_STEPS):
        pool.step(np.asarray([space.sample()]))
    if "render_mode" in arguments:
        pool.render(env_ids=[0])


if __name__ == "__main__":
    main()
