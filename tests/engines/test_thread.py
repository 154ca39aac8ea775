"""What is particular to envs in threads: they cannot be ended, only given up."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from trainer_processes import wait_until

from shoal import errors
from shoal.testing import CountingEnv, FaultEnv, SleepyEnv, read_row, release_hangs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import shoal

DEADLINE_S = 0.3
LATE_S = 1.0
ZEROS = [0] * 3


def envs_with(fault: str, where: str = "step", **settings: Any) -> list[Any]:
    fns: list[Any] = [partial(CountingEnv, tag=i, episode_length=50) for i in range(3)]
    fns[1] = partial(FaultEnv, fault, where=where, at=1, tag=1, episode_length=50, **settings)
    return fns


def hanging_when_built_anew(where: str) -> list[Any]:
    births = count()

    def build() -> CountingEnv:
        settings: dict[str, Any] = {"tag": 1, "episode_length": 50}
        return FaultEnv("hang", where=where, at=1, **settings) if next(births) else CountingEnv(**settings)  # type: ignore[arg-type]

    return [partial(CountingEnv, tag=0, episode_length=50), build]


@pytest.fixture
def make(make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """A pool of threads with short deadlines."""
    deadlines = {"step_timeout": DEADLINE_S, "reset_timeout": DEADLINE_S, "close_timeout": 1.0}
    return lambda env_fns, **more: make_pool(env_fns, **{"engine": "thread", **deadlines, **more})


def steps_of(batch: shoal.Batch) -> list[int]:
    return [read_row(obs).step for obs in batch.obs]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_env_that_hangs_is_given_up_with_its_stack(where: str, make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang", where))
    if where == "step":
        pool.reset(seed=0)
    call = partial(pool.reset, seed=0) if where == "reset" else partial(pool.step, ZEROS)
    start = monotonic()
    with pytest.raises(errors.EnvTimeout) as caught:
        call()
    assert DEADLINE_S <= monotonic() - start < DEADLINE_S + LATE_S
    assert (caught.value.env_ids, caught.value.where.phase) == ((1,), where)
    assert "in _hang\n" in caught.value.remote_traceback
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == [0, 2]
    assert steps_of(batch) == [int(where == "step")] * 2


def test_a_late_answer_is_dropped_and_the_env_goes_on_after_a_reset(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang"))
    pool.reset(seed=0)
    with pytest.raises(errors.EnvTimeout):
        pool.step(ZEROS)
    assert pool.recv(timeout=10).env_id.tolist() == [0, 2]
    release_hangs()
    with pytest.raises(errors.NothingInFlight):
        pool.recv(timeout=0)
    with pytest.raises(errors.StateError, match="reset them first"):
        pool.step([0], env_id=[1])
    # The late answer may still be on its way; the reset must not be mistaken for it, nor it for the reset.
    assert steps_of(pool.reset(env_id=[1])) == [0]
    assert steps_of(pool.step(ZEROS)) == [2, 1, 2]


def test_an_env_that_has_come_back_long_ago_is_not_given_up_again(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang"))
    pool.reset(seed=0)
    with pytest.raises(errors.EnvTimeout):
        pool.step(ZEROS)
    release_hangs()
    wait_until(lambda: bool(pool.engine._results.items), what="the late answer")
    wait_until(lambda: monotonic() - pool.engine._clock.last > 0.1, what="the next look at what hangs")
    assert steps_of(pool.reset()) == [0, 0, 0]


def test_while_it_hangs_the_env_stays_lost_and_the_others_step_on(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang"))
    pool.reset(seed=0)
    with pytest.raises(errors.EnvTimeout):
        pool.step(ZEROS)
    pool.recv(timeout=10)
    with pytest.raises(errors.EnvTimeout):
        pool.reset(env_id=[1])
    assert steps_of(pool.step([0, 0], env_id=[0, 2])) == [2, 2]


def test_a_hung_env_is_noticed_while_the_others_keep_answering(make: Callable[..., shoal.Pool]) -> None:
    fns = [partial(SleepyEnv, 0.001), partial(FaultEnv, "hang", at=1)]
    pool = make(fns, batch_size=1)
    pool.reset(seed=0)
    pool.send([0, 0])
    end = monotonic() + DEADLINE_S + 2 * LATE_S

    def keep_stepping() -> None:
        while monotonic() < end:
            ids = pool.recv(timeout=5).env_id.tolist()
            pool.send([0] * len(ids), env_id=ids)

    with pytest.raises(errors.EnvTimeout) as caught:
        keep_stepping()
    assert caught.value.env_ids == (1,)


def test_a_hung_call_has_a_deadline_too(make: Callable[..., shoal.Pool]) -> None:
    pool = make(envs_with("hang"))
    pool.reset(seed=0)
    with pytest.raises(errors.EnvTimeout) as caught:
        pool.call("step", 0, env_id=[1])
    assert (caught.value.env_ids, caught.value.where.phase) == ((1,), "call")


def test_constructors_that_hang_share_one_deadline(make: Callable[..., shoal.Pool]) -> None:
    fns = [partial(FaultEnv, "hang", where="init", tag=i) for i in range(3)]
    start = monotonic()
    with pytest.raises(errors.EnvConstructError, match="no answer after") as caught:
        make(fns, construct_timeout=DEADLINE_S, close_timeout=0.2)
    assert monotonic() - start < DEADLINE_S + LATE_S
    assert caught.value.env_ids == (0, 1, 2)
    assert "in _hang\n" in caught.value.remote_traceback
    release_hangs()


@pytest.mark.parametrize(("where", "told"), [("init", "construct"), ("reset", "reset")])
def test_an_env_that_is_built_anew_has_one_deadline_for_that_and_one_for_its_reset(
    where: str, told: str, make: Callable[..., shoal.Pool]
) -> None:
    limits = {"construct_timeout": 60.0, "reset_timeout": 60.0, f"{told}_timeout": DEADLINE_S}
    pool = make(hanging_when_built_anew(where), **limits)
    pool.reset(seed=0)
    pool.renew([1])
    start = monotonic()
    with pytest.raises(errors.EnvTimeout) as caught:
        pool.reset(env_id=[1])
    assert DEADLINE_S <= monotonic() - start < DEADLINE_S + LATE_S
    assert (caught.value.env_ids, caught.value.where.phase) == ((1,), told)
    release_hangs()


@pytest.mark.parametrize("where", ["step", "close"])
def test_close_does_not_wait_for_ever_and_names_who_hangs(
    where: str, make: Callable[..., shoal.Pool], caplog: pytest.LogCaptureFixture
) -> None:
    pool = make(envs_with("hang", where), close_timeout=0.3)
    pool.reset(seed=0)
    pool.send(ZEROS)
    start = monotonic()
    with caplog.at_level(logging.WARNING, "shoal"):
        pool.close()
    assert monotonic() - start < 0.3 + LATE_S
    assert "thread of envs (1,) still hangs after close" in caplog.text
    assert "in _hang\n" in caplog.text
    release_hangs()


def test_the_deadline_is_for_each_env_and_not_for_the_thread(make: Callable[..., shoal.Pool]) -> None:
    pool = make([partial(SleepyEnv, 0.2, sigma=0)] * 3, num_workers=1, step_timeout=0.45)
    pool.reset(seed=0)
    assert steps_of(pool.step(ZEROS)) == [1] * 3


def test_an_env_lives_in_one_thread_from_its_building_to_its_closing(make: Callable[..., shoal.Pool]) -> None:
    seen: dict[int, list[str]] = {i: [] for i in range(3)}

    class Watched(CountingEnv):
        def __init__(self, tag: int) -> None:
            super().__init__(tag=tag, episode_length=50)
            self.note()

        def note(self) -> None:
            seen[self.tag].append(threading.current_thread().name)

        def reset(self, **kwargs: Any) -> Any:
            self.note()
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            self.note()
            return super().step(action)

        def close(self) -> None:
            self.note()

    pool = make([partial(Watched, i) for i in range(3)])
    pool.reset(seed=0)
    pool.step(ZEROS)
    pool.call("note")
    pool.close()
    assert seen == {i: [f"shoal-lane-{i}"] * 5 for i in range(3)}


def test_a_slow_env_does_not_hold_up_a_ready_one(make: Callable[..., shoal.Pool]) -> None:
    gate = threading.Event()

    class Gated(CountingEnv):
        def step(self, action: Any) -> Any:
            gate.wait(10)
            return super().step(action)

    fns: list[Any] = [Gated, partial(CountingEnv, tag=1, episode_length=50)]
    pool = make(fns, batch_size=1, step_timeout=None)
    pool.reset(seed=0)
    pool.send([0], env_id=[0])
    for _ in range(5):
        pool.send([0], env_id=[1])
        assert pool.recv(timeout=5).env_id.tolist() == [1]
    gate.set()
    assert pool.recv(timeout=5).env_id.tolist() == [0]


def test_a_pool_dropped_without_close_ends_its_threads(make_pool: Callable[..., shoal.Pool]) -> None:
    import shoal

    pool = shoal.make_pool([CountingEnv] * 2, engine="thread")
    pool.reset(seed=0)
    del pool
    end = monotonic() + 2.0
    while any(thread.name.startswith("shoal-lane") for thread in threading.enumerate()):
        assert monotonic() < end, "threads live on without their pool"
        sleep(0.01)


def test_a_pool_dropped_without_close_ends_threads_that_have_replaced_hung_ones(tmp_path: Path) -> None:
    import shoal

    env = partial(FaultEnv, "hang", at=1, once_file=tmp_path / "hung", episode_length=50)
    pool = shoal.make_pool([env], engine="thread", on_fault="restart", step_timeout=DEADLINE_S)
    pool.reset(seed=0)
    assert pool.step([0]).truncated.tolist() == [True]
    assert pool.step([0]).first.tolist() == [True]
    release_hangs()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("shoal-lane")]
    assert threads
    del pool
    gc.collect()
    for thread in threads:
        thread.join(2.0)
    assert not any(thread.is_alive() for thread in threads), "threads live on without their pool"


class Looking(CountingEnv):
    """Tells where it runs."""

    def cores(self) -> set[int]:
        return os.sched_getaffinity(0)


def test_threads_are_pinned_to_the_cores_given_in_turn(make_pool: Callable[..., shoal.Pool]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    given = [cores[-1], cores[0]]
    pool = make_pool(Looking, 3, engine="thread", affinity=given)
    assert pool.call("cores") == ({given[0]}, {given[1]}, {given[0]})
    assert os.sched_getaffinity(0) == set(cores)


def test_a_program_that_ends_without_closing_its_pool_lets_the_threads_close_their_envs() -> None:
    program = """
        import time, shoal
        from shoal.testing import CountingEnv

        class Slow(CountingEnv):
            def close(self):
                time.sleep(0.2)
                print("closed")

        pool = shoal.make_pool(Slow, 2, engine="thread")
        pool.reset(seed=1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("closed"), done.stderr) == (0, 2, "")
