"""The process that hosts one contender; the harness starts it and talks to it in lines of JSON.

    harness ── {"do": "open", "load": ...} ──> stdin   host ── one pool ── its workers
            <── {"open_s": ...} ── the former stdout

Each contender has a process of its own, so that its threads, memory and CPU time can be told from the others', so
that it can be frozen while another one is measured, and so that it may run in another Python environment.
The top of this file imports next to nothing: the "spawn" start method runs it again in every worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from contenders import AsyncSession, Contender, Session
    from loads import Load

NUM_ACTION_BATCHES = 64
WARM_UP_PART = 0.1


def main() -> None:
    answers = _claim_stdout()
    import importlib

    import atari_contenders  # noqa: F401
    import compiled_contenders  # noqa: F401 (adds its contenders and loads to the others)
    import mujoco_contenders  # noqa: F401
    from contenders import CONTENDERS

    contender = CONTENDERS[sys.argv[1]]
    try:
        library = importlib.import_module(contender.library.split(".")[0])
        importlib.import_module(contender.library)
    except ImportError as error:
        _answer(answers, {"skipped": f"{type(error).__name__}: {error}"})
        return
    _answer(answers, {"version": getattr(library, "__version__", "")})
    _serve(contender, answers)


def _claim_stdout() -> TextIO:
    """Keep stdout for answers alone: whatever libraries and envs print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _serve(contender: Contender, answers: TextIO) -> None:
    served = _Host(contender)
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "open": served.open,
        "slice": served.slice,
        "close": served.close,
    }
    for line in sys.stdin:
        command = json.loads(line)
        try:
            message = commands[command.pop("do")](**command)
        except Exception as error:
            import traceback

            traceback.print_exc()
            message = {"error": f"{type(error).__name__}: {error}"}
        _answer(answers, message)


class _Host:
    """At most one open session of one contender."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._session: Session | AsyncSession | None = None
        self._advance: Callable[[], int] = lambda: 0

    def open(self, load: str, turns_per_us: float, num_envs: int | None = None) -> dict[str, Any]:
        from dataclasses import replace

        from loads import LOADS

        chosen = LOADS[load]
        if num_envs is not None:
            chosen = replace(chosen, num_envs=num_envs)
        fns = chosen.env_fns(turns_per_us)
        start = time.perf_counter()
        self._session = self._contender.open(chosen, fns)
        open_s = time.perf_counter() - start
        self._advance = _loop(chosen, self._session)
        return {"open_s": open_s}

    def slice(self, seconds: float) -> dict[str, Any]:
        # Envs that slept through the freeze are all ready at once: that first harvest must not count.
        warm_up_steps, _, _ = _run(self._advance, seconds * WARM_UP_PART)
        steps, calls, wall_s = _run(self._advance, seconds)
        return {"steps": steps, "calls": calls, "wall_s": wall_s, "warm_up_steps": warm_up_steps}

    def close(self) -> dict[str, Any]:
        session, self._session, self._advance = self._session, None, lambda: 0
        if session is not None:
            session.close()
        return {}


def _run(advance: Callable[[], int], seconds: float) -> tuple[int, int, float]:
    """Env steps, calls and seconds until the time is up."""
    calls = steps = 0
    start = now = time.perf_counter()
    end = start + seconds
    while now < end:
        steps += advance()
        calls += 1
        now = time.perf_counter()
    return steps, calls, now - start


def _loop(load: Load, session: Session | AsyncSession) -> Callable[[], int]:
    """One turn of the caller's loop, as a function that returns how many env steps it made."""
    from contenders import AsyncSession

    if isinstance(session, AsyncSession):
        return session.exchange
    return _policy_loop(load, session) if load.has_policy else _bare_loop(load, session)


def _bare_loop(load: Load, session: Session) -> Callable[[], int]:
    import itertools

    import numpy as np

    # Drawn in advance: random actions end CartPole's episodes, and no contender is to pay for drawing them.
    drawn = np.random.default_rng(0).integers(0, 2, (NUM_ACTION_BATCHES, load.num_envs))
    batches = itertools.cycle(list(drawn))
    step, num_envs = session.step, load.num_envs

    def advance() -> int:
        step(next(batches))
        return num_envs

    return advance


def _policy_loop(load: Load, session: Session) -> Callable[[], int]:
    from policy import make_policy

    obs = session.obs
    act, step, num_envs = make_policy(obs), session.step, load.num_envs

    def advance() -> int:
        nonlocal obs
        obs = step(act(obs))
        return num_envs

    return advance


if __name__ == "__main__":
    main()
