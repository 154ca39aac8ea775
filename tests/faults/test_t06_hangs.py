"""T06: an env hangs in Python, in C with the interpreter lock held, or in a thread that keeps its process from ending.

It is given up at its deadline, with the stack it hangs in, and everything it has started goes with it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from fault_cases import FAULTY, SEED, ZEROS, close_in_time, envs_with, with_faulty
from trainer_processes import assert_gone
from twins import Twins, fault_of

from shoal import Restart, errors
from shoal.testing import CountingEnv, release_hangs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

pytestmark = pytest.mark.slow

DEADLINE_S = 0.5
# The promise is half a second, on a machine that has time for us.
LATE_S = 2.0
WHERE_IT_HANGS = {"hang": "_hang", "hang_gil": "_hang_gil"}
DEADLINES: dict[str, Any] = {"step_timeout": DEADLINE_S, "reset_timeout": DEADLINE_S, "close_timeout": 1.0}
WAYS = [("process", "hang"), ("process", "hang_gil"), ("thread", "hang")]
hangs = pytest.mark.parametrize(("engine", "fault"), WAYS)


def options_of(engine: str) -> dict[str, Any]:
    return {"engine": engine, "num_workers": 2 if engine == "process" else 4, **DEADLINES}


def in_time(start: float) -> None:
    assert DEADLINE_S <= monotonic() - start < DEADLINE_S + LATE_S


@hangs
@pytest.mark.parametrize("where", ["reset", "step"])
def test_t06_a_hang_ends_at_its_deadline_and_shows_its_stack(
    engine: str, fault: str, where: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with(fault, where, at=2), **options_of(engine))
    pool.reset(seed=SEED)
    if where == "step":
        pool.step(ZEROS)
    start = monotonic()
    with pytest.raises(errors.EnvTimeout, match=r"no answer after 0\.[5-9] s") as caught:
        _ = pool.reset(seed=SEED) if where == "reset" else pool.step(ZEROS)
    in_time(start)
    assert (caught.value.env_ids, caught.value.where.phase) == ((FAULTY,), where)
    assert f"in {WHERE_IT_HANGS[fault]}\n" in caught.value.remote_traceback
    assert isinstance(caught.value, TimeoutError)
    release_hangs()
    close_in_time(pool)


@hangs
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_t06_a_hung_env_is_built_anew_and_the_others_go_on(
    engine: str, fault: str, autoreset: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with(fault, "step", at=2, once_file=tmp_path / "once")
    pool = make_pool(fns, autoreset=autoreset, on_fault="restart", **options_of(engine))
    twins = Twins(4, SEED, autoreset, episode_length=50)
    twins.take_reset(pool.reset(seed=SEED), SEED)
    twins.take(pool.step(ZEROS), ZEROS)
    start = monotonic()
    batch = pool.step(ZEROS)
    in_time(start)
    twins.take(batch, ZEROS)
    told = fault_of(batch, FAULTY)
    assert told is not None
    assert (told["kind"], told["phase"]) == ("EnvTimeout", "step")
    assert f"in {WHERE_IT_HANGS[fault]}\n" in told["traceback"]
    # Env 0 shares its process with env 1, and every other env has a worker that knows nothing of it.
    assert [told["env_id"] for told in twins.told] == ([0, 1] if engine == "process" else [1])
    if autoreset == "disabled":
        over = [told["env_id"] for told in twins.told]
        twins.take_reset(pool.reset(env_id=over))
    for _ in range(3):
        twins.take(pool.step(ZEROS), ZEROS)
    assert pool.stats().faults == len(twins.told)


def with_child(folder: Path) -> type[CountingEnv]:
    """An env that starts a process, which starts another, and then hangs."""
    grandchild = "import time; time.sleep(3600)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {grandchild!r}])"

    class HangsWithChild(CountingEnv):
        def step(self, action: Any) -> Any:
            import subprocess
            import sys

            started = subprocess.Popen([sys.executable, "-S", "-c", child])
            family = psutil.Process(started.pid)
            while not family.children():
                time.sleep(0.01)
            pids = [started.pid, family.children()[0].pid]
            folder.joinpath("pids").write_text(" ".join(map(str, pids)))
            time.sleep(3600)

    return HangsWithChild


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_t06_what_a_hung_env_has_started_goes_with_it(
    policy: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    options = {**options_of("process"), "step_timeout": 2.0}
    pool = make_pool(with_faulty(with_child(tmp_path)), on_fault=policy, **options)
    pool.reset(seed=SEED)
    if policy == "raise":
        with pytest.raises(errors.EnvTimeout):
            pool.step(ZEROS)
    else:
        assert fault_of(pool.step(ZEROS), FAULTY) is not None
    pids = [int(pid) for pid in tmp_path.joinpath("pids").read_text().split()]
    assert_gone([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)])
    close_in_time(pool)


@pytest.mark.parametrize("where", ["step", "close"])
def test_t06_a_thread_that_does_not_end_does_not_hold_up_close(
    where: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("leave_thread", where), **options_of("process"))
    workers = [psutil.Process(pid) for pid in pool.engine.pids]
    pool.reset(seed=SEED)
    pool.step(ZEROS)
    close_in_time(pool)
    assert_gone(workers)


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_t06_a_constructor_that_hangs_lets_the_pool_start_without_its_env(
    engine: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    fns = envs_with("hang", "init")
    fns[FAULTY] = partial(fns[FAULTY], once_file=tmp_path / "once")
    make_pool(CountingEnv, 4, **options_of(engine)).close()  # a fork server that starts with it is no delay of the next
    start = monotonic()
    pool = make_pool(fns, construct_timeout=1.0, on_fault="restart", seed=SEED, **options_of(engine))
    assert monotonic() - start < 1.0 + LATE_S + 1.0
    twins = Twins(4, SEED, "next_step", episode_length=50)
    twins.take_reset(pool.reset(), SEED)
    assert FAULTY in [told["env_id"] for told in twins.told]
    assert {told["phase"] for told in twins.told} == {"construct"}
    twins.take(pool.step(ZEROS), ZEROS)


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_t06_an_env_that_hangs_whenever_it_is_built_uses_up_its_restarts(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(envs_with("hang", "step", at=1), on_fault=Restart(budget=2, backoff_s=0.0), **options_of(engine))
    pool.reset(seed=SEED)
    for _ in range(4):  # a fault, a first row, a fault, a first row
        pool.step(ZEROS)
    with pytest.raises(errors.EnvTimeout) as caught:
        pool.step(ZEROS)
    assert "Env 1 has used up its 2 restarts" in caught.value.__notes__[-1]


@pytest.mark.parametrize("env_id", [0, 1])
def test_t06_a_worker_that_is_slow_to_begin_is_only_slow(env_id: int, make_pool: Callable[..., shoal.Pool]) -> None:
    pool = make_pool([partial(CountingEnv, tag=i) for i in range(2)], engine="process", num_workers=1)
    (pid,) = pool.engine.pids
    os.kill(pid, signal.SIGSTOP)
    wake = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
    wake.start()
    try:
        assert pool.reset(seed=SEED, env_id=[env_id]).env_id.tolist() == [env_id]
    finally:
        wake.join()
