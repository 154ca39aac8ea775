"""T25: several threads in one pool: each call is served as a whole or refused with BusyPool, and no row is harmed."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from trainer_processes import SOON_S

from shoal import errors
from shoal.testing import CountingEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import shoal

NUM_ENVS = 4
NUM_CALLS = 100
ZEROS = [0] * NUM_ENVS
LONG = 10**6


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Let threads take turns as often as they can, so that a gap between two of them is met."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def make(engine: str, make_pool: Callable[..., shoal.Pool]) -> Callable[..., shoal.Pool]:
    """Pools of four envs that never end an episode."""
    envs = [partial(CountingEnv, tag=i, episode_length=LONG) for i in range(NUM_ENVS)]
    workers = None if engine == "serial" else 2
    return lambda **more: make_pool(envs, engine=engine, num_workers=workers, **more)


def run_threads(*jobs: Callable[[], Any]) -> None:
    """Run each in a thread of its own; the first error is raised here."""
    failures: list[BaseException] = []

    def run(job: Callable[[], Any]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * SOON_S)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads)


def insist(call: Callable[[], Any]) -> Any:
    """Make a call until it is served."""
    while True:
        try:
            return call()
        except errors.BusyPool:
            continue


def checked_totals(batch: shoal.Batch) -> list[tuple[int, int]]:
    """Env and number of the step for each row, which is neither torn nor mixed with another."""
    rows = [read_row(obs) for obs in batch.obs]
    assert [row.total for row in rows] == batch.reward.tolist() == batch.elapsed_step.tolist()
    assert [row.tag for row in rows] == batch.env_id.tolist()
    return [(row.tag, row.total) for row in rows]


def test_t25_two_threads_step_and_a_third_receives(make: Callable[..., shoal.Pool]) -> None:
    pool = make()
    pool.reset(seed=0)
    seen: list[tuple[int, int]] = []
    done: list[bool] = []
    received: list[Any] = []

    def step() -> None:
        for _ in range(NUM_CALLS):
            seen.extend(checked_totals(insist(lambda: pool.step(ZEROS))))
        done.append(True)

    def receive() -> None:
        while len(done) < 2:
            try:
                received.append(pool.recv(timeout=0))
            except (errors.BusyPool, errors.NothingInFlight):
                continue

    run_threads(step, step, receive)
    assert received == []
    assert sorted(seen) == [(env, total) for env in range(NUM_ENVS) for total in range(1, 2 * NUM_CALLS + 1)]


def test_t25_one_thread_sends_and_another_receives(make: Callable[..., shoal.Pool]) -> None:
    pool = make()
    pool.reset(seed=0)
    seen: list[list[tuple[int, int]]] = []

    def send() -> None:
        for _ in range(NUM_CALLS):
            insist(lambda: pool.send(ZEROS))

    def receive() -> None:
        while len(seen) < NUM_CALLS:
            try:
                seen.append(checked_totals(pool.recv(timeout=SOON_S)))
            except (errors.BusyPool, errors.NothingInFlight):
                continue

    run_threads(send, receive)
    assert seen == [[(env, total) for env in range(NUM_ENVS)] for total in range(1, NUM_CALLS + 1)]


def test_t25_two_threads_share_an_asynchronous_pool(make: Callable[..., shoal.Pool]) -> None:
    pool = make(batch_size=2)
    pool.reset(seed=0)
    pool.send(ZEROS)
    seen: list[tuple[int, int]] = []

    def work() -> None:
        served = 0
        while served < NUM_CALLS:
            try:
                batch = pool.recv(timeout=SOON_S)
            except (errors.BusyPool, errors.NothingInFlight):
                continue
            served += 1
            seen.extend(checked_totals(batch))
            ids = batch.env_id.tolist()
            insist(lambda ids=ids: pool.send([0] * len(ids), env_id=ids))

    run_threads(work, work)
    for env in range(NUM_ENVS):
        totals = sorted(total for tag, total in seen if tag == env)
        assert totals == list(range(1, len(totals) + 1))


@pytest.mark.slow
def test_t25_the_last_rows_are_whole_or_refused_while_another_thread_steps(make: Callable[..., shoal.Pool]) -> None:
    pool = make()
    pool.reset(seed=0)
    done: list[bool] = []

    def step() -> None:
        try:
            for _ in range(10 * NUM_CALLS):
                insist(lambda: pool.step(ZEROS))
        finally:
            done.append(True)

    def look() -> None:
        while not done:
            try:
                batch = pool.latest()
            except errors.BusyPool:
                continue
            # After a reset the reward is 0, and so is the number of steps.
            checked_totals(batch)

    run_threads(step, look)


# ---------------------------------------------------------------------- the answer to the second one


class Gated(CountingEnv):
    """An env on a thread of the test's own process that stays in its step until it is let go."""

    def __init__(self, inside: threading.Event, go: threading.Event) -> None:
        super().__init__(episode_length=LONG)
        self.inside, self.go = inside, go

    def step(self, action: Any) -> Any:
        self.inside.set()
        assert self.go.wait(SOON_S)
        return super().step(action)


CALLS = {
    "reset": lambda pool: pool.reset(),
    "step": lambda pool: pool.step([0]),
    "async_reset": lambda pool: pool.async_reset(),
    "send": lambda pool: pool.send([0]),
    "recv": lambda pool: pool.recv(timeout=0),
    "call": lambda pool: pool.call("render"),
    "get_attr": lambda pool: pool.get_attr("tag"),
    "set_attr": lambda pool: pool.set_attr("tag", 3),
    "render": lambda pool: pool.render(),
    "snapshot": lambda pool: pool.snapshot(),
    "latest": lambda pool: pool.latest(),
}


@pytest.mark.parametrize("call", CALLS)
def test_t25_every_call_is_refused_while_another_thread_is_inside(
    call: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    inside, go = threading.Event(), threading.Event()
    pool = make_pool([lambda: Gated(inside, go)], engine="thread", num_workers=1)
    pool.reset(seed=0)
    batches: list[shoal.Batch] = []
    stepping = threading.Thread(target=lambda: batches.append(pool.step([0])))
    stepping.start()
    try:
        assert inside.wait(SOON_S)
        with pytest.raises(errors.BusyPool, match="another thread is inside the pool"):
            CALLS[call](pool)
    finally:
        go.set()
        stepping.join()
    assert [batch.reward.tolist() for batch in batches] == [[1.0]]
    assert pool.step([0]).reward.tolist() == [2.0]
