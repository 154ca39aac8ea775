"""One thread sends, another receives: they take turns, and nobody waits for what cannot come."""

from __future__ import annotations

import _thread
import os
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from shoal.errors import BusyPool, ClosedPool, NothingInFlight, RecvTimeout
from shoal.testing import CountingEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

MakePool = Any
SOON_S = 20.0


class Background:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = threading.Event()
        self._call = call
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.is_done.set()

    def get(self) -> Any:
        assert self.is_done.wait(SOON_S)
        if self.error is not None:
            raise self.error
        return self.result


class Slow(CountingEnv):
    """Stays in each step until it is let go; where nobody holds it, it goes on at once."""

    def __init__(self, tag: int, go: threading.Semaphore | None) -> None:
        super().__init__(tag=tag, episode_length=10**6)
        self.go = go

    def step(self, action: Any) -> Any:
        assert self.go is None or self.go.acquire(timeout=SOON_S)
        return super().step(action)


@pytest.fixture(params=["serial", "thread", "process"])
def make(request: pytest.FixtureRequest, make_pool: MakePool) -> Callable[..., shoal.Pool]:
    """Pools of four envs that never end an episode, on every engine for Python envs."""
    envs = [partial(CountingEnv, tag=i, episode_length=10**6) for i in range(4)]
    workers = None if request.param == "serial" else 2
    return lambda **more: make_pool(envs, engine=request.param, num_workers=workers, **more)


def test_a_loop_can_be_split_between_two_threads(make: Callable[..., shoal.Pool]) -> None:
    pool, batches, rounds = make(batch_size=2), SimpleQueue[list[int]](), 60
    pool.reset(seed=0)
    pool.send([0] * 4)
    seen: list[tuple[int, int]] = []

    def receive() -> None:
        for _ in range(rounds):
            batch = pool.recv()
            seen.extend((row.tag, row.total) for row in map(read_row, batch.obs))
            batches.put(batch.env_id.tolist())

    def send() -> None:
        for _ in range(rounds):
            ids = batches.get()
            pool.send([0] * len(ids), ids)

    for half in (Background(receive), Background(send)):
        half.get()
    for env in range(4):
        totals = [total for tag, total in seen if tag == env]
        assert totals == list(range(1, len(totals) + 1))
    assert len(seen) == 2 * rounds


@pytest.mark.parametrize("batch_size", [2, 4])
def test_who_receives_waits_for_the_next_send_of_another_thread(
    batch_size: int, make: Callable[..., shoal.Pool]
) -> None:
    pool = make(batch_size=batch_size)
    pool.reset(seed=0)
    pool.send([0] * 4)
    while pool.under_way:
        pool.recv()
    waiting = Background(pool.recv)
    with pytest.raises(RecvTimeout, match=r"no batch after 0\.05 s"):
        Background(partial(pool.recv, timeout=0.05)).get()
    assert not waiting.is_done.is_set()
    ids = [3, 1, 0, 2][:batch_size]
    pool.send([0] * batch_size, ids)
    assert sorted(waiting.get().env_id.tolist()) == sorted(ids)


def test_less_than_a_batch_is_waited_for_only_if_somebody_else_may_send_the_rest(
    make: Callable[..., shoal.Pool],
) -> None:
    pool = make(batch_size=2)
    pool.reset(seed=0)
    pool.send([0], [1])
    assert pool.recv().env_id.tolist() == [1]
    pool.send([0], [2])
    waiting = Background(pool.recv)
    assert Background(partial(pool.recv, min_batch=2, max_wait=0.05, timeout=0.1)).is_done.wait(SOON_S)
    assert not waiting.is_done.is_set()
    pool.send([0], [3])
    assert sorted(waiting.get().env_id.tolist()) == [2, 3]


def test_nobody_waits_for_a_thread_that_has_ended(make: Callable[..., shoal.Pool]) -> None:
    pool = make()
    pool.reset(seed=0)
    sender = threading.Thread(target=pool.send, args=([0] * 4,))
    sender.start()
    sender.join()
    assert pool.recv().reward.tolist() == [1.0] * 4
    with pytest.raises(NothingInFlight):
        pool.recv()


def test_who_waits_for_an_env_lets_the_other_send(make_pool: MakePool) -> None:
    go = threading.Semaphore(0)
    pool = make_pool([lambda: Slow(0, go), lambda: Slow(1, None)], engine="thread", batch_size=1)
    pool.reset(seed=0)
    pool.send([0], [0])
    waiting = Background(pool.recv)
    pool.send([0], [1])  # env 0 is still inside its step
    assert waiting.get().env_id.tolist() == [1]
    go.release()
    assert pool.recv().env_id.tolist() == [0]


def test_closing_ends_a_wait_for_another_thread(make: Callable[..., shoal.Pool]) -> None:
    pool = make(batch_size=2)
    pool.reset(seed=0)
    pool.send([0], [0])
    waiting = Background(pool.recv)
    pool.close()
    with pytest.raises(ClosedPool):
        waiting.get()


def test_two_that_receive_do_not_take_turns(make_pool: MakePool) -> None:
    go = threading.Semaphore(0)
    pool = make_pool([lambda: Slow(0, go)], engine="thread")
    pool.reset(seed=0)
    inside = Background(lambda: (pool.send([0]), pool.recv())[1])
    while not pool.under_way:
        assert not inside.is_done.is_set()
    with pytest.raises((BusyPool, RecvTimeout)):
        pool.recv(timeout=0)
    go.release()
    assert inside.get().reward.tolist() == [1.0]


# ---------------------------------------------------------------------- forks


def test_in_a_fork_the_pool_is_closed_and_the_envs_stay_where_they_are(make: Callable[..., shoal.Pool]) -> None:
    pool = make()
    pool.reset(seed=0)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        told = ""
        try:
            pool.step([0] * 4)
        except ClosedPool as error:
            told = str(error)
        pool.close()
        os.write(write, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert f"belongs to process {os.getpid()}, of which this is a fork" in os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    assert pool.step([0] * 4).reward.tolist() == [1.0] * 4


@pytest.mark.parametrize("command", ["reset", "send"])
def test_a_thread_that_is_about_to_send_for_the_first_time_is_waited_for(make_pool: MakePool, command: str) -> None:
    pool = make_pool([partial(CountingEnv, tag=i) for i in range(4)], engine="serial", batch_size=2)
    ids: Any = None
    if command == "send":
        pool.async_reset()
        ids = pool.recv().env_id
        pool.recv()
    receiver = Background(lambda: len(pool.recv()))
    while not pool._gate._num_listening:
        assert not receiver.is_done.is_set(), receiver.error
    if command == "reset":
        pool.async_reset()
    else:
        pool.send([0, 0], ids)
    assert receiver.get() == 2


def test_without_other_threads_nobody_is_waited_for(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool([partial(CountingEnv, tag=i) for i in range(4)], engine="thread", batch_size=2)
    me = threading.current_thread()
    own = [thread for thread in threading.enumerate() if thread is me or thread.name.startswith("shoal-")]
    assert len(own) > 1, "the engine's threads send nothing"
    monkeypatch.setattr(threading, "enumerate", lambda: own)
    monkeypatch.setattr("shoal.gate._PATIENCE_S", float("inf"))
    with pytest.raises(NothingInFlight):
        pool.recv()


def test_a_thread_that_sends_nothing_is_not_waited_for_without_end(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.gate._PATIENCE_S", 0.05)
    pool = make_pool([partial(CountingEnv, tag=i) for i in range(4)], engine="serial", batch_size=2)
    ended = threading.Event()
    idle = Background(lambda: ended.wait(SOON_S))
    with pytest.raises(NothingInFlight):
        pool.recv()
    ended.set()
    idle.get()


def test_a_thread_that_python_did_not_start_is_not_waited_for_once_it_has_ended(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a thread stays listed: programs that use Ray, or run under pytest-xdist, have some."""
    ended = threading.Lock()
    ended.acquire()
    _thread.start_new_thread(lambda: (threading.current_thread(), ended.release()), ())
    assert ended.acquire(timeout=SOON_S)
    dummies = [thread for thread in threading.enumerate() if isinstance(thread, threading._DummyThread)]
    assert dummies
    own = [threading.current_thread(), *dummies]
    monkeypatch.setattr(threading, "enumerate", lambda: own)
    monkeypatch.setattr("shoal.gate._PATIENCE_S", float("inf"))
    pool = make_pool([partial(CountingEnv, tag=i) for i in range(4)], engine="serial", batch_size=2)
    with pytest.raises(NothingInFlight):
        pool.recv()
