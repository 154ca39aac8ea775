"""What the tests of tests/faults share: pools with one faulty env, and what must hold once it has failed.

Four envs, of which env 1 is faulty. With two workers, envs 0 and 1 share the first, envs 2 and 3 the second.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from shoal import errors
from shoal.testing import CountingEnv, FaultEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import shoal

FAULTY = 1
NEIGHBOURS = [0, 2, 3]
ZEROS = [0] * 4
SEED = 40
CLOSE_LIMIT_S = 5.0
SOON_S = 10.0
"""Long enough for anything that is going to happen at all."""

ERROR_OF = {"reset": errors.EnvResetError, "step": errors.EnvStepError}
WAYS = [
    "serial",
    "thread",
    "forkserver",
    pytest.param("fork", marks=pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")),
    pytest.param("spawn", marks=pytest.mark.slow),
]
"""Every engine, the process engine with every start method."""

_NEVER = 10**9


def slow_unless(is_quick: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """The cases, with those marked as slow that are only worth their time in the second stage."""
    return [case if is_quick(case) else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def options_of(way: str) -> dict[str, Any]:
    """Pool options for an engine, or for a start method of the process engine."""
    if way in ("serial", "thread"):
        return {"engine": way}
    # A plain fork is refused here: pytest watches over its tests from a thread of its own.
    method = {"process": None, "fork": "fork!"}.get(way, way)
    return {"engine": "process", "num_workers": 2, "start_method": method}


def envs_with(fault: str, where: str, at: int = 1, **settings: Any) -> list[Any]:
    """Four envs of the same spaces; only env 1 is faulty."""
    settings = {"episode_length": 50, **settings}
    if where in ("init", "close"):
        fns: list[Any] = [partial(CountingEnv, tag=i, **settings) for i in range(4)]
    else:
        fns = [partial(FaultEnv, fault, where=where, at=_NEVER, tag=i, **settings) for i in range(4)]
    fns[FAULTY] = partial(FaultEnv, fault, where=where, at=at, tag=FAULTY, **settings)
    return fns


def with_faulty(env_class: Callable[..., Any], sound: Callable[..., Any] = CountingEnv) -> list[Any]:
    """Four envs, of which env 1 is of a class that fails by itself."""
    fns: list[Any] = [partial(sound, tag=i, episode_length=50) for i in range(4)]
    fns[FAULTY] = partial(env_class, tag=FAULTY, episode_length=50)
    return fns


def returning(part: str, value: Any, at: int = 1) -> type[CountingEnv]:
    """A CountingEnv that returns ``value`` as one part of its step number ``at``.

    It is a class of this function's own, so it travels to workers by value and they need not import the tests.
    """
    names = ("obs", "reward", "terminated", "truncated", "info")

    class Returning(CountingEnv):
        def step(self, action: Any) -> Any:
            parts = dict(zip(names, super().step(action), strict=True))
            if self._step == at:
                if part == "all":
                    return value(tuple(parts.values()))
                parts[part] = value
            return tuple(parts.values())

    return Returning


def provoke(pool: shoal.Pool, where: str, at: int = 1) -> errors.FaultError:
    """The error that call number ``at`` of reset or step raises; the calls before it go well."""
    if where == "reset":
        for _ in range(at - 1):
            pool.reset(seed=SEED)
        call: Callable[[], object] = partial(pool.reset, seed=SEED)
    else:
        pool.reset(seed=SEED)
        for _ in range(at - 1):
            pool.step(ZEROS)
        call = partial(pool.step, ZEROS)
    with pytest.raises(ERROR_OF[where]) as caught:
        call()
    assert type(caught.value) is ERROR_OF[where]
    return caught.value


def assert_placed(error: errors.FaultError, pool: shoal.Pool, where: str) -> None:
    """The error names the env, what it was doing, and the worker it ran in."""
    place = error.where
    assert (error.env_ids, error.env_id, place.phase, place.incarnation) == ((FAULTY,), FAULTY, where, 0), place
    assert (place.worker, place.pid) == home_of(pool, FAULTY), place
    assert str(error).startswith(f"{where} failed in env 1"), str(error)


def assert_dated(error: errors.FaultError, episode_step: int) -> None:
    """The error says how far the env had come, and with which seed."""
    place = error.where
    assert (place.episode_step, place.seed) == (episode_step, SEED + FAULTY), place
    assert f"step {episode_step}, seed {SEED + FAULTY}" in str(error), str(error)


def home_of(pool: shoal.Pool, env_id: int) -> tuple[int | None, int | None]:
    """Worker and pid in which an env of a pool of four runs."""
    if pool.engine.name == "serial":
        return None, None
    if pool.engine.name == "thread":
        return env_id, os.getpid()
    return env_id // 2, pool.engine.pids[env_id // 2]


def rows_of(batch: shoal.Batch) -> list[Any]:
    """Each row of a batch of counting envs, taken apart."""
    return [read_row(obs) for obs in (batch.obs["row"] if isinstance(batch.obs, dict) else batch.obs)]


def assert_neighbours_kept(pool: shoal.Pool, where: str, at: int = 1) -> None:
    """The other rows of the batch can still be had, once, and are the right ones."""
    batch = pool.recv(timeout=SOON_S)
    assert batch.env_id.tolist() == NEIGHBOURS
    steps = at if where == "step" else 0
    assert [(row.tag, row.step) for row in rows_of(batch)] == [(i, steps) for i in NEIGHBOURS]
    assert batch.reward.tolist() == [steps] * 3
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=0)


def assert_usable(pool: shoal.Pool) -> None:
    """Every env, the faulty one included, works after a reset, and the pool closes in time."""
    assert [(row.tag, row.step) for row in rows_of(pool.reset(seed=SEED))] == [(i, 0) for i in range(4)]
    batch = pool.step([1, 2, 3, 4])
    assert [(row.tag, row.step, row.action) for row in rows_of(batch)] == [(i, 1, i + 1) for i in range(4)]
    close_in_time(pool)


def assert_harmless(pool: shoal.Pool, where: str, at: int = 1) -> None:
    """What one env did wrong has cost nobody else a row, and the pool goes on."""
    assert_neighbours_kept(pool, where, at)
    with pytest.raises(errors.StateError, match=r"envs \[1\] failed earlier"):
        pool.step(ZEROS)
    assert_usable(pool)


def close_in_time(pool: shoal.Pool) -> None:
    """Close the pool, in less time than is promised."""
    start = monotonic()
    pool.close()
    assert monotonic() - start < CLOSE_LIMIT_S


def run_python(*arguments: str, timeout: float = 50, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run an interpreter of its own to the end; ``-X dev`` shows what is otherwise hidden, such as unclosed files."""
    command = [sys.executable, "-X", "dev", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
