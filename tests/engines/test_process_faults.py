"""Workers that die, hang, or cannot say what they have to say: each is noticed, explained, and survived."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

import shoal
from shoal import errors
from shoal.spec import RawActions
from shoal.testing import CountingEnv, FaultEnv, SleepyEnv, read_row, release_hangs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ZEROS = [0] * 4
CLOSE_LIMIT_S = 5.0
DEADLINE_S = 0.5
LATE_S = 1.5
BIG = 50 * 2**20

HOW_IT_ENDED = {
    "exit": "exited with code 3",
    "kill": "killed by SIGKILL",
    "segv": "killed by SIGSEGV",
    "bus": "killed by SIGBUS",
    "abort": "killed by SIGABRT",
}


def envs_with(fault: str, where: str = "step", env_id: int = 1, **settings: Any) -> list[Any]:
    """Four envs, of which one is faulty; with two workers, envs 0 and 1 share one, and 2 and 3 the other."""
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(4)]
    fns[env_id] = partial(FaultEnv, fault, **{"where": where, "at": 1, "tag": env_id, "episode_length": 50, **settings})
    return fns


@pytest.fixture
def make(make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """A pool of two worker processes with short deadlines."""
    options: dict[str, Any] = {"engine": "process", "num_workers": 2, "close_timeout": 1.0}
    return lambda env_fns, **more: make_pool(env_fns, **{**options, **more})


def pid_of(pool: shoal.Pool, worker: int) -> int:
    return pool.engine.crew.workers[worker].pid


def steps_of(batch: shoal.Batch) -> list[int]:
    return [read_row(obs).step for obs in batch.obs]


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    end = monotonic() + limit_s
    while not condition():
        assert monotonic() < end, "waited in vain"
        sleep(0.005)


def close_in_time(pool: shoal.Pool) -> None:
    start = monotonic()
    pool.close()
    assert monotonic() - start < CLOSE_LIMIT_S


@contextlib.contextmanager
def rescue(pid: int, after_s: float = 8.0) -> Iterator[None]:
    """Kill a worker if the block does not end in time, so that an endless wait fails instead of hanging the suite."""
    timer = threading.Timer(after_s, os.kill, (pid, signal.SIGKILL))
    timer.start()
    start = monotonic()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    assert monotonic() - start < after_s


# ---------------------------------------------------------------------- death


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", HOW_IT_ENDED)
def test_a_worker_that_dies_is_explained(fault: str, where: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with(fault, where))
    pid = pid_of(pool, 0)
    if where == "step":
        pool.reset(seed=0)
    call = partial(pool.reset, seed=0) if where == "reset" else partial(pool.step, ZEROS)
    start = monotonic()
    with pytest.raises(errors.WorkerDied, match=HOW_IT_ENDED[fault]) as caught:
        call()
    assert monotonic() - start < 1.0 + LATE_S
    assert f"pid {pid}" in str(caught.value)
    assert caught.value.where.worker == 0
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == [2, 3]
    assert steps_of(batch) == [int(where == "step")] * 2
    close_in_time(pool)


@pytest.mark.parametrize("where", ["reset", "step"])
def test_the_death_of_a_worker_names_all_its_envs_and_what_they_were_doing(
    where: str, make: Callable[..., shoal.Pool]
) -> None:
    pool = make(envs_with("kill", where))
    if where == "step":
        pool.reset(seed=0)
    call = partial(pool.reset, seed=0) if where == "reset" else partial(pool.step, ZEROS)
    with pytest.raises(errors.WorkerDied) as caught:
        call()
    assert caught.value.env_ids == (0, 1)
    assert caught.value.where.phase == where


@pytest.mark.parametrize("fault", HOW_IT_ENDED)
def test_a_worker_that_dies_in_a_constructor_is_explained(fault: str, make: Callable[..., shoal.Pool]) -> None:
    with pytest.raises(errors.EnvConstructError, match=f"env 1, .*{HOW_IT_ENDED[fault]}") as caught:
        make(envs_with(fault, "init"))
    assert 1 in caught.value.env_ids


def test_a_construction_that_fails_with_its_worker_has_the_death_or_the_hang_as_its_cause(
    make: Callable[..., shoal.Pool],
) -> None:
    with pytest.raises(errors.EnvConstructError) as caught:
        make(envs_with("kill", "init"))
    assert isinstance(caught.value.__cause__, errors.WorkerDied)
    assert "killed by SIGKILL" in str(caught.value.__cause__)
    with pytest.raises(errors.EnvConstructError) as caught:
        make(envs_with("hang", "init"), construct_timeout=DEADLINE_S)
    assert isinstance(caught.value.__cause__, errors.EnvTimeout)
    assert "in _hang\n" in caught.value.__cause__.remote_traceback


@pytest.mark.parametrize("fault", HOW_IT_ENDED)
def test_a_worker_that_dies_in_close_does_no_harm(fault: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with(fault, "close"))
    pool.reset(seed=0)
    close_in_time(pool)


def test_neighbours_go_on_without_the_dead_worker(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("kill"))
    pool.reset(seed=0)
    with pytest.raises(errors.WorkerDied):
        pool.step(ZEROS)
    pool.recv(timeout=10)
    assert steps_of(pool.step([0, 0], env_id=[2, 3])) == [2, 2]
    with pytest.raises(errors.StateError, match=r"envs \[1\] failed earlier .*: reset them first"):
        pool.step([0], env_id=[1])
    with pytest.raises(errors.WorkerDied, match="killed by SIGKILL"):
        pool.get_attr("tag", env_id=[0])
    assert pool.get_attr("tag", env_id=[2, 3]) == (2, 3)


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_reset_builds_anew_what_is_gone(fault: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with(fault), step_timeout=DEADLINE_S)
    pool.reset(seed=0)
    for life in range(2):
        pool.step([0, 0], env_id=[2, 3])
        with pytest.raises((errors.WorkerDied, errors.EnvTimeout)):
            pool.step([0, 0], env_id=[0, 1])
        pool.reset(env_id=[0, 1])
        assert pool.stats().restarts == 2 * (life + 1)
    assert steps_of(pool.step([0, 0, 0], env_id=[0, 2, 3])) == [1, 3, 3]


def test_an_env_that_fell_with_another_while_it_was_idle_comes_back_too(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("kill"))
    pool.reset(seed=0)
    with pytest.raises(errors.WorkerDied, match="step failed in envs 0-1"):
        pool.step([0], env_id=[1])
    assert steps_of(pool.reset(env_id=[0])) == [0]
    assert pool.stats().restarts == 1


def test_a_reset_tells_first_of_a_death_that_nobody_was_told_of(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(CountingEnv, tag=i) for i in range(4)])
    pool.reset(seed=0)
    os.kill(pid_of(pool, 1), signal.SIGKILL)
    with pytest.raises(errors.WorkerDied, match=r"reset failed in envs 2-3"):
        pool.reset()
    assert steps_of(pool.reset()) == [0, 0, 0, 0]
    assert pool.stats().restarts == 2


@pytest.mark.parametrize("asleep", [True, False], ids=["idle", "stepping"])
def test_a_worker_killed_from_outside_is_noticed(asleep: bool, make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(SleepyEnv, 0.3, sigma=0, tag=i) for i in range(4)], num_workers=4)
    pool.reset(seed=0)
    if not asleep:
        pool.send(ZEROS)
    os.kill(pid_of(pool, 2), signal.SIGKILL)
    if asleep:
        pool.send(ZEROS)
    with pytest.raises(errors.WorkerDied, match="killed by SIGKILL") as caught:
        pool.recv(timeout=10)
    assert caught.value.env_ids == (2,)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 1, 3]
    close_in_time(pool)


def test_all_workers_killed_is_one_error_and_a_quick_close(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(SleepyEnv, 20, sigma=0)] * len(ZEROS))
    pool.reset(seed=0)
    pool.send(ZEROS)
    for worker in range(2):
        os.kill(pid_of(pool, worker), signal.SIGKILL)
    with pytest.raises(errors.WorkerDied) as caught:
        pool.recv(timeout=10)
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert all(f"pid {pid_of(pool, worker)}" in told for worker in range(2))
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=0)
    close_in_time(pool)


def test_a_killed_worker_is_noticed_while_the_others_keep_answering(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(SleepyEnv, 0.001, tag=i) for i in range(2)], batch_size=1)
    pool.reset(seed=0)
    pool.send([0, 0])
    os.kill(pid_of(pool, 1), signal.SIGKILL)
    with pytest.raises(errors.WorkerDied) as caught:
        keep_stepping(pool, 3.0)
    assert caught.value.env_ids == (1,)


def keep_stepping(pool: shoal.Pool, limit_s: float, pause_s: float = 0.0) -> None:
    """Step every env that answers for a while."""
    end = monotonic() + limit_s
    while monotonic() < end:
        ids = pool.recv(timeout=5).env_id.tolist()
        sleep(pause_s)
        pool.send([0] * len(ids), env_id=ids)


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_a_lost_env_is_noticed_by_who_always_finds_others_ready(
    engine: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    options: dict[str, Any] = {"num_workers": 2} if engine == "process" else {"close_timeout": 0.1}
    fault = "kill" if engine == "process" else "hang"
    pool = make_pool(envs_with(fault), engine=engine, batch_size=1, step_timeout=DEADLINE_S, **options)
    pool.async_reset()
    with pytest.raises(errors.FaultError) as caught:
        keep_stepping(pool, 5.0, pause_s=0.002)  # while a policy computes, somebody becomes ready
    assert 1 in caught.value.env_ids
    release_hangs()


def test_a_row_is_not_handed_out_when_its_worker_died_before_the_rest_of_it_came(
    make: Callable[..., shoal.Pool],
) -> None:
    # The info is too large for the socket, so the worker has published the row and still holds most of the info.
    pool = make([partial(FaultEnv, "info_big", at=1)], num_workers=1)
    pool.reset(seed=0)
    pool.send([0])
    wait_for(lambda: pool.engine.control.progress[0] == 2)
    os.kill(pid_of(pool, 0), signal.SIGKILL)
    with pytest.raises(errors.WorkerDied, match="killed by SIGKILL"):
        pool.recv(timeout=10)


# ---------------------------------------------------------------------- hanging


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", ["hang", "hang_gil"])
def test_an_env_that_hangs_is_ended_at_its_deadline_and_shows_its_stack(
    fault: str, where: str, make: Callable[..., shoal.Pool]
) -> None:
    pool = make(envs_with(fault, where, env_id=2), step_timeout=DEADLINE_S, reset_timeout=DEADLINE_S)
    if where == "step":
        pool.reset(seed=0)
    call = partial(pool.reset, seed=0) if where == "reset" else partial(pool.step, ZEROS)
    start = monotonic()
    with pytest.raises(errors.EnvTimeout) as caught:
        call()
    assert DEADLINE_S <= monotonic() - start < DEADLINE_S + LATE_S
    assert 2 in caught.value.env_ids
    assert caught.value.where.phase == where
    assert f"in _{fault}\n" in caught.value.remote_traceback
    assert f"in _{fault}\n" in "\n".join(caught.value.__notes__)
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == [0, 1]
    assert steps_of(batch) == [int(where == "step")] * 2
    close_in_time(pool)


@pytest.mark.parametrize("where", ["reset", "step"])
def test_the_env_that_hangs_is_the_one_that_is_blamed(where: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang", where, env_id=1), step_timeout=DEADLINE_S, reset_timeout=DEADLINE_S)
    if where == "step":
        pool.reset(seed=0)
    call = partial(pool.reset, seed=0) if where == "reset" else partial(pool.step, ZEROS)
    with pytest.raises(errors.EnvTimeout) as caught:
        call()
    assert caught.value.env_id == 1


def test_a_hung_env_is_noticed_while_the_others_keep_answering(make: Callable[..., shoal.Pool]) -> None:
    fns = [partial(SleepyEnv, 0.001), partial(FaultEnv, "hang", at=1)]
    pool = make(fns, batch_size=1, step_timeout=DEADLINE_S)
    pool.reset(seed=0)
    pool.send([0, 0])
    with pytest.raises(errors.EnvTimeout) as caught:
        keep_stepping(pool, DEADLINE_S + 2 * LATE_S)
    assert caught.value.env_ids == (1,)


def test_a_hung_env_leaves_the_rows_of_the_other_lanes(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang", env_id=3), threads_per_worker=2, step_timeout=DEADLINE_S)
    pool.reset(seed=0)
    with pytest.raises(errors.EnvTimeout) as caught:
        pool.step(ZEROS)
    assert caught.value.env_ids == (3,)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 1, 2]


def test_a_lane_that_keeps_the_interpreter_lock_hangs_its_worker(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang_gil", env_id=3), threads_per_worker=2, step_timeout=DEADLINE_S)
    pool.reset(seed=0)
    start = monotonic()
    with rescue(pid_of(pool, 1)), pytest.raises(errors.EnvTimeout) as caught:
        pool.step(ZEROS)
    assert monotonic() - start < DEADLINE_S + LATE_S
    assert caught.value.where.worker == 1
    assert "in _hang_gil\n" in caught.value.remote_traceback


def test_a_hung_call_has_a_deadline_too(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang"), reset_timeout=DEADLINE_S)
    pool.reset(seed=0)
    with pytest.raises(errors.EnvTimeout) as caught:
        pool.call("step", 0, env_id=[1])
    assert (caught.value.env_ids, caught.value.where.phase) == ((1,), "call")
    assert "in _hang\n" in caught.value.remote_traceback


@pytest.mark.parametrize("fault", ["hang", "hang_gil"])
def test_constructors_that_hang_share_one_deadline(fault: str, make: Callable[..., shoal.Pool]) -> None:
    fns = [partial(FaultEnv, fault, where="init", tag=i) for i in range(4)]
    deadline_s = 4 * DEADLINE_S  # on a busy machine, four workers take their time until they hang
    start = monotonic()
    with pytest.raises(errors.EnvConstructError, match="no answer after") as caught:
        make(fns, num_workers=4, construct_timeout=deadline_s)
    assert monotonic() - start < deadline_s + LATE_S
    assert caught.value.env_ids == (0, 1, 2, 3)
    assert f"in _{fault}\n" in caught.value.remote_traceback


@pytest.mark.parametrize("fault", ["hang", "hang_gil", "leave_thread"])
def test_close_ends_workers_that_do_not_end_themselves(fault: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with(fault, "close"), close_timeout=DEADLINE_S)
    pool.reset(seed=0)
    start = monotonic()
    pool.close()
    assert monotonic() - start < DEADLINE_S + LATE_S


def test_close_does_not_wait_for_an_env_that_hangs_in_a_step(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang_gil"), close_timeout=DEADLINE_S)
    pool.reset(seed=0)
    pool.send(ZEROS)
    start = monotonic()
    pool.close()
    assert monotonic() - start < DEADLINE_S + LATE_S


def test_the_deadline_is_for_each_env_and_not_for_the_worker(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(SleepyEnv, 0.3, sigma=0)] * 4, num_workers=1, step_timeout=0.6)
    pool.reset(seed=0)
    assert steps_of(pool.step(ZEROS)) == [1] * 4


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stopped_worker_is_a_hung_worker(asynchronous: bool, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("slow"), step_timeout=DEADLINE_S, batch_size=1 if asynchronous else None)
    pool.reset(seed=0)
    pid = pid_of(pool, 1)
    os.kill(pid, signal.SIGSTOP)
    with rescue(pid), pytest.raises(errors.EnvTimeout):
        pool.step(ZEROS)
    wait_for(lambda: is_gone(pid))


def test_a_worker_that_stops_in_the_middle_of_a_message_is_given_up(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(FaultEnv, "info_big", at=1)], num_workers=1, step_timeout=DEADLINE_S)
    pool.reset(seed=0)
    pool.send([0])
    wait_for(lambda: pool.engine.control.progress[0] == 2)
    pid = pid_of(pool, 0)
    os.kill(pid, signal.SIGSTOP)
    with rescue(pid), pytest.raises((errors.EnvTimeout, errors.WorkerDied)):
        pool.recv()


def test_recv_keeps_its_own_timeout_and_loses_nothing(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(SleepyEnv, 0.5, sigma=0)] * 2)
    pool.reset(seed=0)
    pool.send([0, 0])
    start = monotonic()
    with pytest.raises(errors.RecvTimeout):
        pool.recv(timeout=0.1)
    assert monotonic() - start < 0.4
    assert steps_of(pool.recv(timeout=10)) == [1, 1]


def test_close_from_another_thread_ends_a_recv(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(SleepyEnv, 20, sigma=0)] * 2, close_timeout=0.2)
    pool.reset(seed=0)
    pool.send([0, 0])
    closer = threading.Timer(0.2, pool.close)
    closer.start()
    start = monotonic()
    with pytest.raises(errors.ShoalError):
        pool.recv(timeout=10)
    assert monotonic() - start < 3.0
    closer.join()


# ---------------------------------------------------------------------- what goes between the processes


@pytest.mark.slow
def test_big_messages_in_both_directions_do_not_lock_up(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("info_big", env_id=0)[:2], num_workers=1, threads_per_worker=2, batch_size=1)
    pool.reset(seed=0)
    pool.send([0], env_id=[0])
    wait_for(lambda: pool.engine.control.notes[0] > 0)
    blob = bytes(BIG)
    with rescue(pid_of(pool, 0), 20.0):
        pool.async_reset(options={"blob": blob}, env_id=[1])
        batches = [pool.recv(timeout=15), pool.recv(timeout=15)]
    assert sorted(int(batch.env_id[0]) for batch in batches) == [0, 1]
    assert pool.get_attr("last_options", env_id=[1]) == ({"blob": blob},)


def test_infos_of_any_object_cross_if_the_pool_allows_pickles(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("info_lambda"), allow_pickle=True)
    pool.reset(seed=0)
    [(row, info)] = pool.step(ZEROS).infos
    assert row == 1
    assert info["lambda"]() is None


@pytest.mark.parametrize("ask", ["reset", "call", "set_attr"])
def test_what_cannot_be_sent_to_an_env_is_refused_and_nothing_moves(ask: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("slow", delay_s=0.0), reset_timeout=2.0)
    pool.reset(seed=0)
    calls = {
        "reset": lambda: pool.reset(options={"lock": threading.Lock()}),
        "call": lambda: pool.call("render", threading.Lock()),
        "set_attr": lambda: pool.set_attr("tag", threading.Lock()),
    }
    with pytest.raises(errors.ShippingError, match="lock"):
        calls[ask]()
    assert steps_of(pool.step(ZEROS)) == [1] * 4
    assert pool.get_attr("tag") == (0, 1, 2, 3)


class Huge:
    """There is not enough memory to pickle it."""

    def __reduce__(self) -> Any:
        raise MemoryError


@pytest.mark.parametrize("ask", ["reset", "send"])
def test_what_there_is_no_memory_to_send_leaves_nothing_under_way(ask: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("slow", delay_s=0.0))
    pool.reset(seed=0)
    calls = {
        "reset": lambda: pool.reset(options={"huge": Huge()}),
        "send": lambda: pool.send(RawActions([Huge()] * 4)),
    }
    with pytest.raises(MemoryError):
        calls[ask]()
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=10)
    assert steps_of(pool.step(ZEROS)) == [1] * 4


def test_an_answer_that_cannot_be_sent_back_is_named(make: Callable[..., shoal.Pool]) -> None:
    def with_lock() -> CountingEnv:
        env = CountingEnv(episode_length=50)
        env.lock = threading.Lock()
        return env

    pool = make([with_lock] * 2)
    pool.reset(seed=0)
    with pytest.raises(errors.EnvCallError, match="lock") as caught:
        pool.get_attr("lock")
    assert caught.value.where.phase == "call"
    assert steps_of(pool.step([0, 0])) == [1, 1]


@pytest.fixture
def foreign_module(tmp_path: Path) -> Path:
    """A module that only a worker can import, as when an env's own code extends ``sys.path``."""
    code = "class Odd(Exception):\n    pass\n\nclass Thing:\n    pass\n"
    (tmp_path / "only_in_the_worker.py").write_text(code)
    return tmp_path


def foreign_env(folder: str) -> CountingEnv:
    class ForeignEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            import only_in_the_worker

            raise only_in_the_worker.Odd("of a class that the pool's process does not know")

        def thing(self) -> Any:
            import only_in_the_worker

            return only_in_the_worker.Thing()

    sys.path.append(folder)
    return ForeignEnv()


def test_an_exception_of_a_class_that_only_the_worker_knows_is_told_in_words(
    foreign_module: Path, make: Callable[..., shoal.Pool]
) -> None:
    pool = make([partial(foreign_env, str(foreign_module)), partial(CountingEnv, episode_length=50)])
    pool.reset(seed=0)
    with pytest.raises(errors.EnvStepError, match="Odd: of a class that the pool's process does not know") as caught:
        pool.step([0, 0])
    assert caught.value.env_ids == (0,)
    assert pool.recv(timeout=10).env_id.tolist() == [1]


def test_an_answer_of_a_class_that_only_the_worker_knows_is_a_named_fault(
    foreign_module: Path, make: Callable[..., shoal.Pool]
) -> None:
    pool = make([partial(foreign_env, str(foreign_module)), partial(CountingEnv, episode_length=50)])
    pool.reset(seed=0)
    with pytest.raises(errors.EnvCallError, match="only_in_the_worker") as caught:
        pool.call("thing", env_id=[0])
    assert caught.value.env_ids == (0,)
    assert pool.get_attr("tag") == (0, 0)


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
@pytest.mark.parametrize("fault", ["print_spam", "close_stdout"])
def test_what_an_env_does_to_its_stdout_harms_nothing(
    fault: str, where: str, make: Callable[..., shoal.Pool], capfd: pytest.CaptureFixture[str]
) -> None:
    pool = make(envs_with(fault, where))
    pool.reset(seed=0)
    batch = pool.step(ZEROS)
    assert steps_of(batch) == [1] * 4
    assert np.array_equal(batch.reward, np.ones(4))
    close_in_time(pool)
    capfd.readouterr()


def test_a_process_that_an_env_left_does_not_hold_up_close(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("leave_child"))
    pool.reset(seed=0)
    pool.step(ZEROS)
    [left] = psutil.Process(pid_of(pool, 0)).children()
    try:
        close_in_time(pool)
    finally:
        # It is the env's to end: without a word from the user the pool cannot know that it may.
        left.kill()
