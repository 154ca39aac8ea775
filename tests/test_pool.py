"""What a pool promises its caller, on every engine."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from functools import partial
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from places import PLACES

import shoal
from shoal import Pool, testing
from shoal.errors import (
    ActionError,
    ArgumentError,
    BusyPool,
    ClosedPool,
    EnvCallError,
    EnvConstructError,
    EnvResetError,
    EnvStepError,
    NothingInFlight,
    NotReset,
    RecvTimeout,
    ShippingError,
    ShoalError,
    StateError,
)
from shoal.spec import RawActions
from shoal.testing import CountingEnv, FaultEnv, SampleEnv, SleepyEnv, TextEnv, WrappedBufferEnv, read_row

leak_guard = pytest.fixture(autouse=True)(testing.leak_guard)
ENGINES = ("serial", "thread", "process")
SOON_S = 20.0
"""Long enough for anything that is going to happen at all."""

MakePool = Callable[..., Pool]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(engine: str) -> Iterator[MakePool]:
    """Makes pools on the engine under test and closes them at the end."""
    yield from pool_maker(engine)


@pytest.fixture
def make_thread() -> Iterator[MakePool]:
    """Makes pools on the thread engine, whose envs can be held and let go by the test."""
    yield from pool_maker("thread")


def pool_maker(engine: str) -> Iterator[MakePool]:
    pools: list[Pool] = []

    def make(env: Any = CountingEnv, num_envs: int | None = 3, **settings: Any) -> Pool:
        if engine == "process":
            settings.setdefault("num_workers", 2)
        pools.append(shoal.make_pool(env, num_envs, engine=engine, **settings))
        return pools[-1]

    yield make
    # Pytest holds on to what a fixture gave; a closed pool that is still referenced keeps its memory mapped.
    while pools:
        pools.pop().close()


def rows_of(batch: shoal.Batch) -> list[Any]:
    return [read_row(obs) for obs in batch.obs]


def totals(batch: shoal.Batch) -> list[int]:
    """Steps that each env of the batch has taken since its seeding."""
    return [row.total for row in rows_of(batch)]


class Turnstile:
    """Lets a test hold envs in their steps: an env says that it is inside, and stays until it is let go."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def pass_through(self) -> None:
        self.inside.release()
        assert self.go.acquire(timeout=SOON_S)

    def await_inside(self) -> None:
        assert self.inside.acquire(timeout=SOON_S)


class HeldEnv(CountingEnv):
    """A CountingEnv that waits at its turnstile in every step."""

    def __init__(self, turnstile: Turnstile | None = None, **counting: Any) -> None:
        super().__init__(**counting)
        self.turnstile = turnstile

    def step(self, action: Any) -> Any:
        if self.turnstile is not None:
            self.turnstile.pass_through()
        return super().step(action)


def held_pool(make_thread: MakePool, held: list[int], num_envs: int = 3, **settings: Any) -> tuple[Pool, Turnstile]:
    """A pool on threads in which the envs ``held`` wait in every step."""
    turnstile = Turnstile()
    envs = [lambda i=i: HeldEnv(turnstile if i in held else None, tag=i) for i in range(num_envs)]
    return make_thread(envs, None, **settings), turnstile


# ---------------------------------------------------------------------- order


def test_rows_come_in_the_order_of_the_ids_sent(make: MakePool) -> None:
    pool = make(env_kwargs=[{"tag": i} for i in range(3)])
    assert pool.reset(seed=1, env_id=[2, 0, 1]).env_id.tolist() == [2, 0, 1]
    batch = pool.step([4, 3], env_id=np.array([2, 1]))
    assert [(row.tag, row.action) for row in rows_of(batch)] == [(2, 4), (1, 3)]
    pool.send([1, 2, 3], env_id=[1, 2, 0])
    assert [(row.tag, row.action) for row in rows_of(pool.recv())] == [(1, 1), (2, 2), (0, 3)]


def test_several_sends_come_back_one_by_one_in_order(make: MakePool) -> None:
    pool = make(CountingEnv, 2, env_kwargs={"episode_length": 9})
    pool.reset(seed=1)
    pool.send([1, 1])
    pool.send([2], env_id=[1])
    pool.send([3, 4], env_id=[1, 0])
    received = [pool.recv() for _ in range(3)]
    assert [batch.env_id.tolist() for batch in received] == [[0, 1], [1], [1, 0]]
    assert [[row.action for row in rows_of(batch)] for batch in received] == [[1, 1], [2], [3, 4]]
    assert [totals(batch) for batch in received] == [[1, 1], [2], [3, 2]]


def test_envs_that_are_not_sent_to_do_not_move(make: MakePool) -> None:
    pool = make(CountingEnv, 3, env_kwargs={"episode_length": 9})
    pool.reset(seed=1)
    for _ in range(3):
        pool.step([0], env_id=[1])
    assert pool.get_attr("total_steps") == (0, 3, 0)


def test_an_asynchronous_pool_returns_what_is_ready_first(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[0], batch_size=2)
    pool.reset(seed=1)
    pool.send([0, 0, 0])
    assert sorted(pool.recv(timeout=SOON_S).env_id.tolist()) == [1, 2]
    turnstile.go.release()
    assert pool.recv(timeout=SOON_S).env_id.tolist() == [0]


def test_an_asynchronous_pool_returns_fewer_rows_when_fewer_are_under_way(make: MakePool) -> None:
    pool = make(CountingEnv, 3, batch_size=2)
    pool.reset(seed=1)
    pool.send([0], env_id=[2])
    assert pool.recv().env_id.tolist() == [2]
    pool.send([0, 0, 0])
    assert [len(pool.recv()), len(pool.recv())] == [2, 1]


def test_an_asynchronous_pool_steps_synchronously_too(make: MakePool) -> None:
    pool = make(CountingEnv, 3, batch_size=1)
    pool.reset(seed=1)
    assert pool.step([0, 1, 2]).env_id.tolist() == [0, 1, 2]
    assert pool.step([0, 1], env_id=[2, 0]).env_id.tolist() == [2, 0]


# ---------------------------------------------------------------------- calls at the wrong time


@pytest.mark.parametrize("batch_size", [None, 2])
def test_recv_without_a_send_says_so(make: MakePool, batch_size: int | None) -> None:
    pool = make(CountingEnv, 3, batch_size=batch_size)
    with pytest.raises(NothingInFlight, match="send"):
        pool.recv()
    pool.reset(seed=1)
    with pytest.raises(NothingInFlight):
        pool.recv(timeout=0.01)


def test_step_is_refused_while_rows_are_under_way(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(seed=1)
    pool.send([1], env_id=[2])
    with pytest.raises(StateError, match=r"recv\(\)"):
        pool.step([0, 0, 0])
    assert totals(pool.recv()) == [1]
    assert totals(pool.step([0, 0, 0])) == [1, 1, 2]


@pytest.mark.parametrize("call", ["step", "send"])
def test_an_env_that_was_never_reset_is_not_stepped(make: MakePool, call: str) -> None:
    pool = make(CountingEnv, 3, env_kwargs={"episode_length": 9})
    with pytest.raises(NotReset, match=r"\[0, 1, 2\]"):
        getattr(pool, call)([0, 0, 0])
    pool.reset(seed=1, env_id=[0, 2])
    with pytest.raises(NotReset, match=r"\[1\]"):
        getattr(pool, call)([0, 0, 0])
    assert pool.get_attr("total_steps") == (0, 0, 0)
    assert totals(pool.step([0, 0], env_id=[0, 2])) == [1, 1]


def test_without_autoreset_a_finished_env_is_not_stepped(make: MakePool) -> None:
    lengths = [{"episode_length": n} for n in (9, 1, 9)]
    pool = make(CountingEnv, 3, env_kwargs=lengths, autoreset="disabled")
    pool.reset(seed=1)
    pool.step([0, 0, 0])
    with pytest.raises(NotReset, match=r"\[1\]"):
        pool.step([0, 0, 0])
    assert pool.get_attr("total_steps") == (1, 1, 1)
    assert totals(pool.step([0, 0], env_id=[0, 2])) == [2, 2]
    pool.reset(env_id=[1])
    assert totals(pool.step([0, 0, 0])) == [3, 2, 3]


def test_a_closed_pool_refuses_everything_but_questions_about_itself(make: MakePool) -> None:
    pool = make(CountingEnv, 2)
    pool.reset(seed=1)
    pool.send([0, 0])
    pool.close()
    pool.close()
    calls: list[Callable[[], object]] = [
        pool.reset,
        pool.async_reset,
        lambda: pool.step([0, 0]),
        lambda: pool.send([0, 0]),
        pool.recv,
        lambda: pool.call("close"),
        lambda: pool.get_attr("tag"),
        lambda: pool.set_attr("tag", 1),
        pool.render,
    ]
    for call in calls:
        with pytest.raises(ClosedPool):
            call()
    assert pool.is_closed
    assert "closed" in repr(pool)
    assert pool.stats().num_envs == 2


def test_leaving_the_with_block_closes_the_envs() -> None:
    env = CountingEnv()
    with shoal.make_pool(lambda: env, 1, engine="serial") as pool:
        pool.reset(seed=1)
        assert not env.is_closed
    assert env.is_closed


def test_a_second_thread_is_turned_away_and_does_no_harm(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[0], num_envs=2)
    pool.reset(seed=1)
    results: list[shoal.Batch] = []
    other = threading.Thread(target=lambda: results.append(pool.step([1, 2])))
    other.start()
    turnstile.await_inside()
    for call in (lambda: pool.step([0, 0]), pool.recv, pool.reset, lambda: pool.call("render")):
        with pytest.raises(BusyPool):
            call()
    turnstile.go.release(2)
    other.join(SOON_S)
    assert [row.action for row in rows_of(results[0])] == [1, 2]
    assert totals(pool.step([0, 0])) == [2, 2]


def test_closing_from_another_thread_ends_a_waiting_recv(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[0], num_envs=1, close_timeout=0.1)
    pool.reset(seed=1)
    pool.send([0])
    turnstile.await_inside()
    outcome = ending_of(pool.recv, lambda: (pool.close(), turnstile.go.release()))
    assert isinstance(outcome, ShoalError | shoal.Batch), outcome


def test_closing_a_process_pool_from_another_thread_ends_a_waiting_recv(tmp_path: Any) -> None:
    mark = tmp_path / "inside"
    os.mkfifo(mark)
    pool = shoal.make_pool(HangsAfterAnnouncing, 1, engine="process", env_kwargs={"fifo": str(mark)}, close_timeout=0.1)
    pool.reset(seed=1)
    pool.send([0])
    mark.read_bytes()  # returns when the env is in its step
    outcome = ending_of(pool.recv, pool.close)
    assert isinstance(outcome, ShoalError), repr(outcome)


class HangsAfterAnnouncing(CountingEnv):
    """A CountingEnv that says through a fifo that its step has begun, and never ends it."""

    def __init__(self, fifo: str) -> None:
        super().__init__()
        self.fifo = fifo

    def step(self, action: Any) -> Any:
        with open(self.fifo, "wb"):
            pass
        threading.Event().wait()


def ending_of(wait: Callable[[], Any], end: Callable[[], Any]) -> Any:
    """What ``wait`` returns or raises in a thread of its own when ``end`` is called meanwhile."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(wait())
        except BaseException as error:
            outcome.append(error)

    waiting = threading.Thread(target=run, daemon=True)
    waiting.start()
    end()
    waiting.join(SOON_S)
    assert not waiting.is_alive(), "still waiting"
    return outcome[0]


# ---------------------------------------------------------------------- waiting


def test_a_timeout_loses_nothing(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[1])
    pool.reset(seed=1)
    pool.send([1, 2, 3], env_id=[2, 1, 0])
    for _ in range(3):
        with pytest.raises(RecvTimeout, match="nothing is lost"):
            pool.recv(timeout=0.01)
    turnstile.go.release()
    batch = pool.recv(timeout=SOON_S)
    assert batch.env_id.tolist() == [2, 1, 0]
    assert [row.action for row in rows_of(batch)] == [1, 2, 3]


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_timeout_of_zero_returns_rows_that_are_ready(make: MakePool, batch_size: int | None) -> None:
    pool = make(CountingEnv, 2, batch_size=batch_size)
    pool.reset(seed=1)
    pool.send([0, 0])
    received: list[int] = []
    for _ in range(100_000):  # a caller who polls gets there in the end
        try:
            received += pool.recv(timeout=0).env_id.tolist()
        except RecvTimeout:
            os.sched_yield()
        if len(received) == 2:
            break
    assert sorted(received) == [0, 1]


def test_min_batch_is_content_with_what_is_ready(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[0])
    pool.reset(seed=1)
    pool.send([1, 2, 3])
    first = pool.recv(min_batch=2, timeout=SOON_S)
    assert first.env_id.tolist() == [1, 2]
    with pytest.raises(RecvTimeout):
        pool.recv(min_batch=1, timeout=0.01)
    turnstile.go.release()
    assert pool.recv(timeout=SOON_S).env_id.tolist() == [0]
    with pytest.raises(NothingInFlight):
        pool.recv()


def test_max_wait_gives_up_on_a_full_batch(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[0], batch_size=2)
    pool.reset(seed=1)
    pool.send([1, 2], env_id=[0, 1])
    assert pool.recv(max_wait=0.01, timeout=SOON_S).env_id.tolist() == [1]
    turnstile.go.release()
    assert pool.recv(max_wait=SOON_S).env_id.tolist() == [0]


def test_max_wait_does_not_cut_short_a_batch_that_comes_in_time(make: MakePool) -> None:
    pool = make(SleepyEnv, 3, env_kwargs={"mean_s": 0.002}, batch_size=2)
    pool.reset(seed=1)
    pool.send([0, 0, 0])
    assert len(pool.recv(min_batch=1, max_wait=SOON_S)) == 2


# ---------------------------------------------------------------------- bad input

BAD_IDS = {
    "unknown": [0, 3],
    "negative": [-1, 0],
    "twice": [1, 1],
    "float": [0.0, 1.0],
    "bool": [True, False],
    "string": ["0", "1"],
    "none": [],
    "nested": [[0, 1]],
    "ragged": [[0], [1, 2]],
    "number": 1,
}


@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS)
@pytest.mark.parametrize("call", ["step", "send", "reset", "get_attr"])
def test_bad_ids_are_refused_before_anything_moves(call: str, bad: Any) -> None:
    with shoal.make_pool(CountingEnv, 3, engine="serial", env_kwargs={"episode_length": 9}) as pool:
        pool.reset(seed=1)
        args = {"step": [[0, 0]], "send": [[0, 0]], "reset": [], "get_attr": ["tag"]}[call]
        with pytest.raises(ActionError, match="env_id"):
            getattr(pool, call)(*args, env_id=bad)
        with pytest.raises(NothingInFlight):
            pool.recv()
        assert totals(pool.step([0, 0, 0])) == [1, 1, 1]


VECTOR = spaces.Box(-1, 1, (2,), np.float32)
SCALAR = spaces.Box(-1, 1, (), np.float32)
DISCRETE = spaces.Discrete(5)
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float64)
TEXT = spaces.Text(4, charset="abc")
BAD_ACTIONS: dict[str, tuple[spaces.Space[Any], Any]] = {
    "too few": (DISCRETE, [0]),
    "too many": (DISCRETE, [0, 0, 0]),
    "one for all": (DISCRETE, 0),
    "none": (DISCRETE, None),
    "a part is None": (DISCRETE, [0, None]),
    "floats for ints": (DISCRETE, [0.0, 1.0]),
    "strings": (DISCRETE, ["0", "1"]),
    "an axis too many": (DISCRETE, [[0], [1]]),
    "ragged": (VECTOR, [[0.0], [0.0, 0.0]]),
    "too large": (DISCRETE, [0, 5]),
    "too small": (DISCRETE, [-1, 0]),
    "far too large": (DISCRETE, [0, 2**70]),
    "wrong width": (VECTOR, np.zeros((2, 3), np.float32)),
    "out of range": (VECTOR, [[0.0, 0.0], [0.0, 1.5]]),
    "nan": (VECTOR, [[0.0, 0.0], [np.nan, 0.0]]),
    "nan in the first scalar": (SCALAR, [np.nan, 0.0]),
    "nan in the last scalar": (SCALAR, [0.0, np.nan]),
    "nan without bounds": (UNBOUNDED, [[0.0, 0.0], [0.0, np.nan]]),
    "overflow": (spaces.Box(-np.inf, np.inf, (2,), np.float32), [[0.0, 0.0], [0.0, 1e300]]),
    "complex": (UNBOUNDED, np.zeros((2, 2), np.complex128)),
    "text not in the space": (TEXT, ["ab", "xyz"]),
    "too few texts": (TEXT, ["ab"]),
    "no text at all": (TEXT, 7),
    "one text for all": (TEXT, "ab"),
}


class CountsAnything(CountingEnv):
    """A CountingEnv that takes any action, also one that has no sum."""

    def step(self, action: Any) -> Any:
        return super().step(0)


@pytest.mark.parametrize(("space", "bad"), BAD_ACTIONS.values(), ids=BAD_ACTIONS)
@pytest.mark.parametrize("call", ["step", "send"])
def test_bad_actions_are_refused_before_anything_moves(call: str, space: spaces.Space[Any], bad: Any) -> None:
    kwargs = {"episode_length": 9, "action_space": space}
    with shoal.make_pool(CountsAnything, 2, engine="serial", env_kwargs=kwargs) as pool:
        pool.reset(seed=1)
        with pytest.raises(ActionError, match="action"):
            getattr(pool, call)(bad)
        with pytest.raises(NothingInFlight):
            pool.recv()
        assert pool.get_attr("total_steps") == (0, 0)
        good = ["ab", "c"] if space is TEXT else np.zeros((2, *space.shape), space.dtype)
        assert totals(pool.step(good)) == [1, 1]


def test_bad_actions_are_refused_on_every_engine(make: MakePool) -> None:
    pool = make(CountingEnv, 3, env_kwargs={"episode_length": 9})
    pool.reset(seed=1)
    pool.step([0, 0, 0])
    for bad in ([0, 0, 7], [0, 0], [0.5, 0.5, 0.5]):
        with pytest.raises(ActionError):
            pool.step(bad)
    assert pool.get_attr("total_steps") == (1, 1, 1)
    assert [row.action for row in rows_of(pool.step([1, 2, 3]))] == [1, 2, 3]


def test_nested_actions_are_named_by_their_path() -> None:
    space = spaces.Dict({"gear": spaces.Discrete(3), "pedals": spaces.Tuple((SCALAR, SCALAR))})
    with shoal.make_pool(CountsAnything, 2, engine="serial", env_kwargs={"action_space": space}) as pool:
        pool.reset(seed=1)
        pedals = ([0.0, 0.0], [0.0, 2.0])
        with pytest.raises(ActionError, match=r"action\['pedals'\]\[1\]: row 1"):
            pool.step({"gear": [0, 1], "pedals": pedals})
        with pytest.raises(ActionError, match=r"missing.*gear"):
            pool.step({"pedals": pedals})


@pytest.mark.parametrize("seed", [-1, 1.5, "1", [1], [1, 2, 3, 4], [1, -2, 3], [[0], [1, 2], [3]]], ids=repr)
def test_bad_seeds_are_refused_before_anything_moves(seed: Any) -> None:
    with shoal.make_pool(CountingEnv, 3, engine="serial") as pool:
        before = pool.reset(seed=1)
        with pytest.raises(ArgumentError, match="seed"):
            pool.reset(seed=seed)
        np.testing.assert_array_equal(pool.latest().obs, before.obs)


@pytest.mark.parametrize("seed", [-1, "x", [1, 2], [[1, 2]]], ids=repr)
def test_a_restart_with_a_bad_seed_moves_nothing(seed: Any, make_pool: MakePool) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial", env_kwargs={"episode_length": 9})
    pool.reset(seed=1)
    pool.step([0, 0])
    with pytest.raises(ArgumentError, match="seed"):
        pool.restart([0], seed=seed)
    assert pool.stats().restarts == 0
    assert totals(pool.step([0, 0])) == [2, 2]


def test_the_seed_of_a_reset_that_is_refused_is_not_that_of_later_restarts(make_pool: MakePool) -> None:
    pool, undisturbed = (make_pool(CountingEnv, 2, engine="serial", seed=7) for _ in range(2))
    for each in (pool, undisturbed):
        each.reset()
    with pytest.raises(ArgumentError, match="options"):
        pool.reset(seed=99, options=5)  # type: ignore[arg-type]
    for each in (pool, undisturbed):
        each.restart()
    assert pool.get_attr("np_random_seed") == undisturbed.get_attr("np_random_seed")


def test_an_env_that_is_restarted_before_its_first_row_begins_with_the_pools_own_seed(make_pool: MakePool) -> None:
    pool, undisturbed = (make_pool(CountingEnv, 2, engine="serial", seed=7) for _ in range(2))
    pool.async_reset()
    first = undisturbed.reset().obs
    np.testing.assert_array_equal(pool.restart().obs, first)
    assert not np.array_equal(pool.restart().obs, first)


def make_unpicklable() -> Any:
    return {"lock": threading.Lock()}


REQUESTS_THAT_CANNOT_BE_SENT: dict[str, Callable[[Pool], object]] = {
    "reset": lambda pool: pool.reset(options=make_unpicklable()),
    "async_reset": lambda pool: pool.async_reset(options=make_unpicklable()),
    "call": lambda pool: pool.call("render", make_unpicklable()),
    "set_attr": lambda pool: pool.set_attr("tag", make_unpicklable()),
}


@pytest.mark.parametrize("request_it", REQUESTS_THAT_CANNOT_BE_SENT.values(), ids=REQUESTS_THAT_CANNOT_BE_SENT)
def test_a_value_that_cannot_be_sent_is_refused_and_the_pool_goes_on(request_it: Callable[[Pool], object]) -> None:
    with shoal.make_pool(CountingEnv, 3, engine="process", num_workers=2, reset_timeout=1.0) as pool:
        pool.reset(seed=1)
        with pytest.raises(ShippingError, match="lock"):
            request_it(pool)
        assert totals(pool.step([0, 0, 0])) == [1, 1, 1]


# ---------------------------------------------------------------------- interrupts


class InterruptingEnv(CountingEnv):
    """A CountingEnv that sends Ctrl-C to the given process in the given step, and then goes on."""

    def __init__(self, pid: int, at: int | None = 2, **counting: Any) -> None:
        super().__init__(episode_length=9, **counting)
        self.pid = pid
        self.at = at

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.total_steps == self.at:
            os.kill(self.pid, signal.SIGINT)
        return result

    def interrupt(self) -> str:
        os.kill(self.pid, signal.SIGINT)
        return "interrupted"


def interrupted_pool(make: MakePool) -> Pool:
    """A pool whose second step was ended by Ctrl-C."""
    pool = make(InterruptingEnv, 3, env_kwargs=[{"pid": os.getpid(), "at": at} for at in (None, 2, None)])
    pool.reset(seed=1)
    pool.step([0, 0, 0])
    with pytest.raises(KeyboardInterrupt):
        pool.step([1, 1, 1])
    return pool


def test_after_ctrl_c_a_reset_makes_the_pool_usable(make: MakePool) -> None:
    pool = interrupted_pool(make)
    assert totals(pool.reset(seed=5)) == [0, 0, 0]
    assert totals(pool.step([0, 0, 0])) == [1, 1, 1]


@pytest.mark.parametrize("engine", ["thread", "process"], indirect=True)
def test_after_ctrl_c_the_rows_can_still_be_received(make: MakePool) -> None:
    pool = interrupted_pool(make)
    batch = pool.recv(timeout=SOON_S)
    assert batch.env_id.tolist() == [0, 1, 2]
    assert totals(batch) == [2, 2, 2]
    with pytest.raises(NothingInFlight):
        pool.recv()


class NanEnv(gymnasium.Env[Any, Any]):
    """Its second step has no number to show."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, **wishes: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.float32([np.nan if self.steps == 2 else 0.0]), 0.0, False, False, {}


def test_rows_that_ctrl_c_has_held_up_are_judged_when_they_are_received(
    make: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make(NanEnv, 2)
    pool.reset(seed=1)
    pool.step([0, 0])
    way = {"serial": "_step_all", "process": "_look_now_and_then"}.get(pool.engine.name, "collect")
    collect = getattr(pool.engine, way)

    def collect_and_stop(*args: Any) -> None:
        collect(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool.engine, way, collect_and_stop)
    with pytest.raises(KeyboardInterrupt):
        pool.step([0, 0])
    monkeypatch.undo()
    with pytest.raises(EnvStepError, match=r"(?i)nan"):
        pool.recv(timeout=SOON_S)


class ActionEcho(gymnasium.Env[Any, Any]):
    """Observes the action it was given, and reports its type."""

    def __init__(self, start: int = -1, size: int = 3) -> None:
        self.action_space = spaces.Discrete(size, start=start)
        self.observation_space = spaces.Box(-200, 200, (1,), np.float32)

    def reset(self, **wishes: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.float32([action]), float(type(action) is np.int64), False, False, {}


@pytest.mark.parametrize("size", [3, 100])
def test_a_discrete_action_reaches_its_env_as_numpys_int(make: MakePool, size: int) -> None:
    pool = make(partial(ActionEcho, size=size), 3)
    pool.reset(seed=1)
    actions = np.array([1, -1, size - 2])
    assert pool.engine.take is not None
    assert pool.engine.take(actions)
    batch = pool.step(actions)
    assert batch.obs[:, 0].tolist() == actions.tolist()
    assert batch.reward.tolist() == [1.0] * 3
    assert pool.step([0], [2]).reward.tolist() == [1.0]


def test_an_env_that_raises_keyboard_interrupt_leaves_the_pool_usable() -> None:
    envs = [lambda i=i: FaultEnv("keyboard_interrupt", at=2 if i == 1 else 99, episode_length=9) for i in range(3)]
    with shoal.make_pool(envs, engine="serial") as pool:
        pool.reset(seed=1)
        pool.step([0, 0, 0])
        with pytest.raises(KeyboardInterrupt):
            pool.step([0, 0, 0])
        assert totals(pool.reset(seed=1)) == [0, 0, 0]
        assert totals(pool.step([0, 0, 0])) == [1, 1, 1]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_interrupted_call_leaves_no_phantom_row(make: MakePool, batch_size: int | None) -> None:
    pool = make(InterruptingEnv, 3, env_kwargs={"pid": os.getpid(), "at": None}, batch_size=batch_size)
    pool.reset(seed=1)
    with pytest.raises(KeyboardInterrupt):
        pool.call("interrupt", env_id=[1])
    with pytest.raises(ShoalError):
        pool.recv(timeout=1.0)
    assert totals(pool.reset(seed=5)) == [0, 0, 0]
    assert totals(pool.step([0, 0, 0])) == [1, 1, 1]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_after_an_interrupted_call_a_send_is_refused_or_answered(make: MakePool, batch_size: int | None) -> None:
    pool = make(InterruptingEnv, 3, env_kwargs={"pid": os.getpid(), "at": None}, batch_size=batch_size)
    pool.reset(seed=1)
    with pytest.raises(KeyboardInterrupt):
        pool.call("interrupt", env_id=[1])
    try:
        pool.send([3], env_id=[1])
    except StateError:
        pool.reset(seed=1, env_id=[1])
        pool.send([3], env_id=[1])
    batch = pool.recv(timeout=SOON_S)
    assert [(row.total, row.action) for row in rows_of(batch)] == [(1, 3)]
    assert not batch.infos
    assert totals(pool.step([0, 0, 0])) == [1, 2, 1]


# ---------------------------------------------------------------------- resets


def test_reset_drops_what_is_under_way(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(seed=1)
    for _ in range(3):
        pool.send([4, 4, 4])
    assert totals(pool.reset(seed=1)) == [0, 0, 0]
    with pytest.raises(NothingInFlight):
        pool.recv()


def test_reset_of_some_drops_only_theirs(make: MakePool) -> None:
    pool = make(CountingEnv, 3, env_kwargs={"episode_length": 9})
    pool.reset(seed=1)
    pool.send([1, 1, 1])
    pool.send([2, 2, 2])
    assert pool.reset(seed=1, env_id=[1]).env_id.tolist() == [1]
    received = [pool.recv(), pool.recv()]
    assert [batch.env_id.tolist() for batch in received] == [[0, 2], [0, 2]]
    assert [totals(batch) for batch in received] == [[1, 1], [2, 2]]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_async_reset_of_an_env_under_way_answers_once(make: MakePool, batch_size: int | None) -> None:
    pool = make(CountingEnv, 3, batch_size=batch_size)
    pool.reset(seed=1)
    pool.send([0], env_id=[1])
    pool.async_reset(seed=4, env_id=[1])
    batch = pool.recv(timeout=SOON_S)
    assert (batch.env_id.tolist(), totals(batch), batch.first.tolist()) == ([1], [0], [True])
    with pytest.raises(NothingInFlight):
        pool.recv()


def test_the_pools_seed_serves_the_first_reset_of_each_env(make: MakePool) -> None:
    pool = make(CountingEnv, 3, seed=7)
    pool.reset(env_id=[1])
    assert pool.get_attr("np_random_seed", env_id=[1]) == (8,)
    pool.async_reset(env_id=[2])
    pool.recv()
    episodes = [row.episode for row in rows_of(pool.reset())]
    assert pool.get_attr("np_random_seed") == (7, 8, 9)
    assert episodes == [0, 1, 1]  # a reset without a seed goes on counting


def test_the_pools_seed_serves_again_if_the_first_reset_has_failed(make: MakePool) -> None:
    pool = make([CountingEnv, partial(FaultEnv, "raise", where="reset", at=1)], None, seed=7)
    with pytest.raises(EnvResetError):
        pool.reset()
    pool.reset()
    assert pool.get_attr("np_random_seed") == (7, 8)


def test_a_seed_given_to_reset_comes_before_the_pools(make: MakePool) -> None:
    pool = make(CountingEnv, 3, seed=7)
    pool.reset(seed=[30, None, 50])
    assert pool.get_attr("np_random_seed", env_id=[0, 2]) == (30, 50)
    pool.reset(seed=100, env_id=[2])
    assert pool.get_attr("np_random_seed", env_id=[2]) == (102,)
    pool.reset(seed=[1, 2], env_id=[2, 0])
    assert pool.get_attr("np_random_seed", env_id=[0, 2]) == (2, 1)


def test_options_reach_the_envs_that_are_reset(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(seed=1)
    pool.reset(options={"level": 4}, env_id=[0, 2])
    assert pool.get_attr("last_options") == ({"level": 4}, None, {"level": 4})


def test_options_may_be_one_dict_per_env(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(options=[None, {"level": 1}, {"level": 2}])
    assert pool.get_attr("last_options") == (None, {"level": 1}, {"level": 2})
    pool.reset(options=[{"level": 3}], env_id=[0])
    assert pool.get_attr("last_options", env_id=[0]) == ({"level": 3},)


@pytest.mark.parametrize("bad", [[{}], [{}, {}, {}, {}], [{}, 1, None]], ids=str)
def test_bad_options_are_refused_before_anything_moves(make: MakePool, bad: Any) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(seed=1)
    pool.step([0, 0, 0])
    with pytest.raises(ArgumentError, match="options: expected"):
        pool.reset(options=bad)
    assert pool.get_attr("total_steps") == (1, 1, 1)


# ---------------------------------------------------------------------- rows of whoever is ready


def test_ready_rows_are_those_that_have_come(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[0], batch_size=1)
    pool.reset(seed=1)
    pool.send([1, 2, 3])
    assert sorted(pool.recv_ready(at_least=2, timeout=SOON_S).env_id.tolist()) == [1, 2]
    with pytest.raises(RecvTimeout, match="nothing is lost"):
        pool.recv_ready(timeout=0.01)
    turnstile.go.release()
    batch = pool.recv_ready(timeout=SOON_S)
    assert [(row.tag, row.action) for row in rows_of(batch)] == [(0, 1)]


def test_no_row_is_ready_and_none_is_asked_for(make_thread: MakePool) -> None:
    pool, turnstile = held_pool(make_thread, held=[0, 1, 2], batch_size=1)
    pool.reset(seed=1)
    pool.send([1, 2, 3])
    assert len(pool.recv_ready(at_least=0)) == 0
    assert pool.under_way == [0, 1, 2]
    turnstile.go.release(3)
    assert sorted(pool.recv_ready(at_least=3, timeout=SOON_S).env_id.tolist()) == [0, 1, 2]


def test_ready_rows_of_some_envs_leave_those_of_others(make: MakePool) -> None:
    pool = make(CountingEnv, 3, batch_size=1, env_kwargs={"episode_length": 9})
    pool.reset(seed=1)
    pool.send([4, 4, 4])
    assert pool.recv_ready([1], timeout=SOON_S).env_id.tolist() == [1]
    assert pool.under_way == [0, 2]
    assert len(pool.recv_ready(at_least=1, at_most=1, timeout=SOON_S)) == 1
    assert len(pool.recv_ready(timeout=SOON_S)) == 1
    with pytest.raises(NothingInFlight, match="1 rows are wanted, and 0 of these envs are under way"):
        pool.recv_ready([2])
    assert pool.get_attr("total_steps") == (1, 1, 1)


def test_more_ready_rows_than_are_under_way_cannot_be_had(make: MakePool) -> None:
    pool = make(CountingEnv, 3, batch_size=1)
    pool.reset(seed=1)
    pool.send([0, 0], env_id=[0, 2])
    with pytest.raises(NothingInFlight):
        pool.recv_ready(at_least=3)
    assert sorted(pool.recv_ready(at_least=2, timeout=SOON_S).env_id.tolist()) == [0, 2]


@pytest.mark.parametrize(
    "wrong",
    [{"at_most": 0}, {"at_most": -1}, {"at_least": -1}, {"at_least": 1.5}, {"timeout": -1}, {"timeout": float("nan")}],
    ids=str,
)
def test_a_call_for_ready_rows_that_makes_no_sense_is_refused_and_nothing_is_lost(
    wrong: Any, make_pool: MakePool
) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial")
    pool.async_reset(seed=1)
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        pool.recv_ready(**wrong)
    assert len(pool.recv_ready(at_least=2)) == 2


def test_a_fault_among_ready_rows_leaves_the_others(make: MakePool) -> None:
    pool = make(FaultEnv, 3, batch_size=1, env_kwargs=[{}, {"fault": "raise", "at": 1}, {}])
    pool.reset(seed=1)
    pool.send([0, 0, 0])
    with pytest.raises(ShoalError, match="env 1"):
        pool.recv_ready([1], timeout=SOON_S)
    assert sorted(pool.recv_ready(at_least=2, timeout=SOON_S).env_id.tolist()) == [0, 2]


# ---------------------------------------------------------------------- single envs


def test_calls_and_attributes_are_answered_in_the_order_of_the_ids(make: MakePool) -> None:
    pool = make(CountingEnv, 3, env_kwargs=[{"tag": i, "render_mode": "rgb_array"} for i in range(3)])
    pool.reset(seed=1)
    assert pool.get_attr("tag", env_id=[2, 0]) == (2, 0)
    pool.set_attr("tag", [5, 6], env_id=[1, 2])
    assert pool.call("tag") == (0, 5, 6)
    pool.set_attr("tag", 9)
    assert pool.get_attr("tag") == (9, 9, 9)
    assert [frame.shape for frame in pool.render(env_id=[1])] == [(4, 4, 3)]


@pytest.mark.parametrize(
    "ask",
    [
        lambda pool: pool.call("no_such_method"),
        lambda pool: pool.get_attr("no_such_attribute"),
        lambda pool: pool.call("reset", no_such_argument=1),
    ],
    ids=["call", "get_attr", "arguments"],
)
def test_a_call_that_fails_says_where_and_the_pool_goes_on(make: MakePool, ask: Callable[[Pool], object]) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(seed=1)
    with pytest.raises(EnvCallError, match=r"env 0.*no_such") as caught:
        ask(pool)
    assert caught.value.where.phase == "call"
    assert "no_such" in caught.value.remote_traceback
    assert totals(pool.step([0, 0, 0])) == [1, 1, 1]


def test_set_attr_wants_one_value_per_env(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    with pytest.raises(ActionError, match="expected 3 values"):
        pool.set_attr("tag", [1, 2])
    assert pool.get_attr("tag") == (0, 0, 0)


def test_an_env_under_way_cannot_be_called(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(seed=1)
    pool.send([0], env_id=[1])
    with pytest.raises(StateError, match=r"\[1\]"):
        pool.get_attr("tag")
    assert pool.get_attr("tag", env_id=[0, 2]) == (0, 0)
    assert totals(pool.recv()) == [1]


# ---------------------------------------------------------------------- what the pool says about itself


def test_stats_count_what_was_handed_out(make: MakePool, engine: str) -> None:
    pool = make(CountingEnv, 3, env_kwargs={"episode_length": 2})
    pool.reset(seed=1)
    for _ in range(3):
        pool.step([0, 0, 0])
    pool.step([0], env_id=[1])
    stats = pool.stats()
    assert (stats.engine, stats.num_envs) == (engine, 3)
    assert (stats.resets, stats.steps, stats.batches, stats.faults) == (3, 10, 5, 0)
    assert stats.episodes == 3
    assert 0 <= stats.waiting_s <= stats.age_s
    assert stats.as_dict()["steps"] == 10


def test_stats_never_count_a_step_that_was_not_made(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    pool.async_reset(seed=1)
    assert pool.stats().steps == 0
    pool.reset(seed=1)  # drops the rows of the first
    assert pool.stats().steps == 0
    pool.step([0, 0, 0])
    assert pool.stats().steps == 3


def test_stats_count_a_failed_call(make: MakePool) -> None:
    pool = make(CountingEnv, 3)
    pool.reset(seed=1)
    with pytest.raises(EnvCallError):
        pool.call("no_such_method", env_id=[1])
    assert pool.stats().faults == 1


@pytest.mark.parametrize("duplicate", [copy, deepcopy, pickle.dumps, cloudpickle.dumps])
def test_a_pool_that_is_pickled_says_what_to_do_instead(make: MakePool, duplicate: Any) -> None:
    pool = make(CountingEnv, 2)
    with pytest.raises(ShippingError, match="make another pool there"):
        duplicate(pool)
    assert pool.reset(seed=1).obs.shape[0] == 2


def test_repr_says_what_it_is(make: MakePool, engine: str) -> None:
    text = repr(make(CountingEnv, 3, batch_size=2, autoreset="same_step"))
    for part in ("CountingEnv", "3 envs", "batches of 2", engine, "same_step", "open"):
        assert part in text


# ---------------------------------------------------------------------- what the caller holds


class EchoEnv(SampleEnv):
    """An env that takes words and observes the last one."""

    def __init__(self, episode_length: int = 3) -> None:
        word = spaces.Text(8, min_length=0, charset="abcé漢")
        super().__init__(word, action_space=word, episode_length=episode_length)

    def _observe(self, action: Any) -> Any:
        return "" if action is None else action


class MixedEchoEnv(EchoEnv):
    """An EchoEnv whose actions are a word and a number, and who observes both."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict({"word": self.action_space, "number": spaces.Discrete(9)})
        self.observation_space = spaces.Dict({"number": spaces.Discrete(9), "word": self.observation_space})

    def _observe(self, action: Any) -> Any:
        return {"number": np.int64(0), "word": ""} if action is None else action


@pytest.mark.parametrize("batch_size", [None, 2])
def test_actions_may_be_objects(make: MakePool, batch_size: int | None) -> None:
    pool = make(EchoEnv, 3, batch_size=batch_size)
    pool.reset(seed=1)
    assert pool.step(["a", "", "é漢"]).obs.tolist() == ["a", "", "é漢"]
    assert pool.step(("b", "c"), env_id=[2, 0]).obs.tolist() == ["b", "c"]
    pool.send(["aa"], env_id=[1])
    pool.send(["bb"], env_id=[1])  # waits in the pool while the first is under way
    assert [pool.recv().obs.tolist() for _ in range(2)] == [["aa"], ["bb"]]


def test_actions_may_be_partly_objects(make: MakePool) -> None:
    pool = make(MixedEchoEnv, 2)
    pool.reset(seed=1)
    obs = pool.step({"word": ["ab", "ba"], "number": [3, 8]}).obs
    assert (obs["number"].tolist(), obs["word"].tolist()) == ([3, 8], ["ab", "ba"])


@pytest.mark.parametrize("env_class", [CountingEnv, WrappedBufferEnv])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_rows_belong_to_the_caller(make: MakePool, env_class: type, batch_size: int | None) -> None:
    pool = make(env_class, 3, batch_size=batch_size, autoreset="same_step")
    batches = [pool.reset(seed=1)]
    copies = [batches[0].obs.copy()]
    for _ in range(12):
        batches.append(pool.step([0, 1, 2]))
        copies.append(batches[-1].obs.copy())
    for batch, kept in zip(batches, copies, strict=True):
        np.testing.assert_array_equal(batch.obs, kept)
    for array in (batches[-1].obs, batches[-1].reward, batches[-1].terminated, batches[-1].env_id):
        array[:] = 0  # writable, and writing changes nothing for the pool
    assert [row.total for row in rows_of(pool.latest())] == [12, 12, 12]
    assert pool.step([0, 1, 2]).env_id.tolist() == [0, 1, 2]


class ReusingEnv(gymnasium.Env[Any, Any]):
    """An env that gives out the same info and the same observation object each time, changed in place."""

    observation_space = testing.InventorySpace()
    action_space = spaces.Discrete(2)

    def __init__(self, episode_length: int = 2) -> None:
        self.episode_length = episode_length
        self.obs: dict[str, Any] = {"items": [], "place": (0, 0)}
        self.info: dict[str, Any] = {"when": "", "trace": []}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._now("reset")

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, info = self._now(f"step {self.steps}")
        return obs, 0.0, self.steps == self.episode_length, False, info

    def _now(self, when: str) -> Any:
        self.obs["items"][:] = ["rope"] * self.steps
        self.info["when"] = when
        self.info["trace"][:] = [self.steps]
        return self.obs, self.info


def test_infos_do_not_change_once_handed_out(make: MakePool) -> None:
    pool = make(ReusingEnv, 2, env_kwargs={"episode_length": 9})
    batches = [pool.reset(), pool.step([0, 0]), pool.step([0, 0])]
    told = [[(info["when"], info["trace"]) for _, info in batch.infos] for batch in batches]
    assert told == [[("reset", [0])] * 2, [("step 1", [1])] * 2, [("step 2", [2])] * 2]


def test_object_observations_do_not_change_once_handed_out(make: MakePool) -> None:
    pool = make(ReusingEnv, 2, env_kwargs={"episode_length": 9})
    batches = [pool.reset(), pool.step([0, 0]), pool.step([0, 0])]
    assert [len(batch.obs[1]["items"]) for batch in batches] == [0, 1, 2]


def test_object_observations_belong_to_the_caller(make: MakePool) -> None:
    pool = make(ReusingEnv, 2, env_kwargs={"episode_length": 9})
    pool.reset()
    for batch in (pool.step([0, 0]), pool.latest()):
        batch.obs[1]["items"].append("anchor")
    assert [obs["items"] for obs in pool.latest().obs] == [["rope"], ["rope"]]


def test_the_last_row_of_an_episode_survives_the_reset_after_it(make: MakePool) -> None:
    pool = make(ReusingEnv, 2, env_kwargs={"episode_length": 1}, autoreset="same_step")
    pool.reset()
    batch = pool.step([0, 0])
    final_obs, final_info = batch.finals[0]
    assert (final_info["when"], len(final_obs["items"])) == ("step 1", 1)
    assert dict(batch.infos)[0]["when"] == "reset"


def test_views_share_memory_and_last_for_one_further_call(make: MakePool) -> None:
    pool = make(CountingEnv, 3, copy=False)
    previous = pool.reset(seed=1)
    for _ in range(8):
        before = previous.obs.copy()
        batch = pool.step([0, 1, 2])
        assert np.shares_memory(batch.obs, pool.engine.rows.obs[0])
        np.testing.assert_array_equal(previous.obs, before)
        previous = batch


def test_views_survive_a_partial_step(make: MakePool) -> None:
    pool = make(CountingEnv, 3, copy=False, env_kwargs={"episode_length": 9})
    pool.reset(seed=1)
    whole = pool.step([0, 1, 2])
    before = whole.obs.copy()
    part = pool.step([4], env_id=[1])
    np.testing.assert_array_equal(whole.obs, before)
    assert totals(part) == [2]
    assert totals(pool.latest()) == [1, 2, 1]


def test_strings_are_observed_as_they_are(make: MakePool) -> None:
    pool = make(TextEnv, 3)
    batch = pool.reset(seed=1)
    assert batch.obs.shape == (3,)
    assert all(type(text) is str for text in batch.obs)


# ---------------------------------------------------------------------- beside the columns


class Listener(gymnasium.Env[Any, Any]):
    """Tells what it was given."""

    observation_space = spaces.Discrete(100)

    def __init__(self, space: Any) -> None:
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {"given": action}


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Tuple([spaces.Discrete(2)] * 2)], ids=["one", "two"])
def test_raw_actions_arrive_as_they_are(engine: str, make_pool: MakePool, space: Any) -> None:
    pool = make_pool([partial(Listener, space)] * 3, engine=engine, num_workers=2)
    pool.reset()
    batch = pool.step(RawActions(["left", None, {"a": 1}]))
    assert [info["given"] for _, info in batch.infos] == ["left", None, {"a": 1}]
    assert pool.step(RawActions([7]), env_id=[2]).infos == [(0, {"given": 7})]
    with pytest.raises(ActionError, match="expected 3 values"):
        pool.step(RawActions([7]))
    assert (
        pool.step(pool.spec.action.unflatten([np.zeros(3, np.int64)] * len(pool.spec.action.leaves))).env_id.size == 3
    )


@pytest.mark.parametrize("count", [2, 5])
def test_raw_actions_are_one_per_env_though_one_was_dropped(count: int, make_pool: MakePool) -> None:
    fns = [partial(FaultEnv, "raise", at=1), CountingEnv, CountingEnv]
    pool = make_pool(fns, engine="serial", on_fault="drop", batch_size=1)
    pool.reset()
    pool.step([0, 0, 0])
    with pytest.raises(ActionError, match=f"expected 3 values, one per env, got {count}"):
        pool.send(RawActions([0] * count), env_id=[0, 1, 2])
    assert pool.under_way == []


def test_a_whole_pool_can_hand_out_rows_as_they_come(engine: str, make_pool: MakePool) -> None:
    pool = make_pool(CountingEnv, 3, engine=engine, num_workers=2, autoreset="disabled")
    pool.reset()
    pool.send(np.zeros(1, np.int64), [1])
    pool.async_reset(env_id=[0])
    pool.send(np.zeros(1, np.int64), [2])
    seen: list[int] = []
    while len(seen) < 3:
        seen += pool.recv_ready().env_id.tolist()
    assert sorted(seen) == [0, 1, 2]


def test_who_failed_can_be_asked(make_pool: MakePool) -> None:
    fns = [partial(FaultEnv, "raise", at=1), CountingEnv, partial(FaultEnv, "raise", at=1)]
    pool = make_pool(fns, engine="serial")
    pool.reset()
    assert pool.faulted == frozenset()
    with pytest.raises(EnvStepError):
        pool.step(np.zeros(3, np.int64))
    assert pool.faulted == {0, 2}
    pool.reset()
    assert pool.faulted == frozenset()


@pytest.mark.parametrize("batch_size", [4, 2])
def test_envs_that_are_left_at_their_end_wait_for_their_reset(
    engine: str, batch_size: int, make_pool: Callable[..., Pool]
) -> None:
    options = {"engine": engine, "autoreset": "same_step", "quick_reset_s": 60.0, "batch_size": batch_size}
    pool = make_pool(CountingEnv, 4, env_kwargs={"episode_length": 1}, **options)
    pool.reset(seed=0)
    batch = pool.step([0] * 4)
    assert (batch.truncated | batch.terminated).all()
    assert not batch.finals
    with pytest.raises(NotReset, match=r"envs \[0, 1, 2, 3\] have finished"):
        pool.step([0] * 4)
    pool.reset(env_id=[2, 1])
    batch = pool.step([0, 0], env_id=[1, 2])
    assert sorted(batch.finals) == [0, 1]
    assert batch.first.all()
    assert sorted(pool.step([0, 0], env_id=[1, 2]).finals) == [0, 1]
    with pytest.raises(NotReset, match=r"envs \[0, 3\] have finished"):
        pool.step([0] * 4)


class Interrupted(CountingEnv):
    """Is interrupted in its step, after a while."""

    def step(self, action: Any) -> Any:
        time.sleep(0.05)
        raise KeyboardInterrupt


def test_the_wait_that_an_interrupt_ends_counts_as_waiting(make_pool: MakePool) -> None:
    pool = make_pool(Interrupted, 2, engine="serial")
    pool.reset(seed=1)
    with pytest.raises(KeyboardInterrupt):
        pool.step([0, 0])
    assert pool.stats().waiting_s >= 0.05


class Flaky(CountingEnv):
    """Cannot be built while there is a certain file, which that removes."""

    def __init__(self, obstacle: Any) -> None:
        super().__init__()
        if obstacle.exists():
            obstacle.unlink()
            raise RuntimeError("busy")


@pytest.mark.parametrize("way", ["a reset that nobody receives", "a reset", "a call"])
def test_an_env_whose_rebuilding_has_failed_is_built_by_a_later_reset(
    way: str, engine: str, make_pool: MakePool, tmp_path: Any
) -> None:
    obstacle = tmp_path / "obstacle"
    pool = make_pool(partial(Flaky, obstacle), 2, engine=engine)
    pool.reset(seed=1)
    pool.renew([1])
    obstacle.touch()
    if way == "a call":
        with pytest.raises(EnvConstructError, match="busy"):
            pool.call("tag")
    else:
        pool.async_reset(env_id=[1])
    if way == "a reset":
        with pytest.raises(EnvConstructError, match="busy"):
            pool.recv()
    elif way == "a reset that nobody receives":
        with pytest.raises(EnvConstructError, match="could not be built"):
            pool.reset(seed=1)
    assert pool.reset(seed=1).elapsed_step.tolist() == [0, 0]
    assert pool.step([0, 0]).elapsed_step.tolist() == [1, 1]


def test_a_call_that_cannot_be_sent_leaves_an_env_to_be_built_anew(make_pool: MakePool) -> None:
    pool = make_pool(CountingEnv, 2, engine="process", num_workers=2)
    pool.reset(seed=1)
    pool.set_attr("tag", 9)
    pool.renew([1])
    with pytest.raises(ShippingError):
        pool.call("tag", threading.Lock())
    pool.reset(seed=1)
    assert pool.get_attr("tag") == (9, 0)


def test_an_env_that_failed_has_failed_still_after_a_call_that_fails(engine: str, make_pool: MakePool) -> None:
    pool = make_pool([CountingEnv, partial(FaultEnv, "raise", at=1)], engine=engine)
    pool.reset(seed=1)
    with pytest.raises(EnvStepError):
        pool.step([0, 0])
    assert pool.recv().env_id.tolist() == [0]
    with pytest.raises(AttributeError, match="no_such_thing"):
        pool.call("no_such_thing")
    with pytest.raises(StateError, match=r"envs \[1\] failed earlier"):
        pool.step([0], env_id=[1])
    assert pool.reset(seed=1).elapsed_step.tolist() == [0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": "1"},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"max_wait": "x"},
        {"min_batch": 2.5},
        {"min_batch": -1},
        {"timeout": np.array([1.0, 2.0])},
        {"timeout": float},
        {"max_wait": np.datetime64("2020")},
        {"min_batch": np.array([1])},
        {"min_batch": int},
    ],
    ids=str,
)
def test_patience_that_is_none_is_refused_and_nothing_is_lost(wrong: Any, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(CountingEnv, 2, engine="serial")
    pool.async_reset(seed=1)
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        pool.recv(**wrong)
    assert len(pool.recv(timeout=5)) == 2


@pytest.mark.parametrize("options", [3, "x", [3, 4]], ids=repr)
def test_options_that_are_none_are_refused(options: Any, make_pool: Callable[..., Pool]) -> None:
    with pytest.raises(ArgumentError, match="options: expected"):
        make_pool(CountingEnv, 2, engine="serial").reset(options=options)
    with (
        shoal.make_vec(CountingEnv, 2, engine="serial") as envs,
        pytest.raises(ArgumentError, match="options: expected"),
    ):
        envs.reset(options=options)


# ---------------------------------------------------------------------- ends of episodes


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_every_end_that_is_handed_out_is_counted(place: str, autoreset: str) -> None:
    rng, ended = np.random.default_rng(3), 0
    with shoal.make_pool(CountingEnv, 4, autoreset=autoreset, seed=1, **PLACES[place]) as pool:
        pool.reset()
        for _ in range(150):
            some = rng.permutation(4)[: rng.integers(1, 5)]
            way = rng.integers(5)
            if way == 0:
                pool.reset(env_id=some)
                continue
            if way == 1:
                batch = pool.step(np.zeros(len(some), int), env_id=some)
            elif way == 2:
                pool.send(np.zeros(4, int))
                batch = pool.recv()
            else:
                batch = pool.step(np.zeros(4, int))
            ended += int((batch.terminated | batch.truncated).sum())
        assert pool.stats().episodes == ended > 50


@pytest.mark.parametrize("place", PLACES)
def test_without_autoreset_every_end_is_noticed(place: str) -> None:
    with shoal.make_pool(CountingEnv, 4, autoreset="disabled", seed=1, **PLACES[place]) as pool:
        pool.reset()
        for _ in range(60):
            batch = pool.step(np.zeros(4, int))
            over = np.flatnonzero(batch.terminated | batch.truncated)
            if over.size:
                with pytest.raises(NotReset, match=re.escape(str(over.tolist()))):
                    pool.step(np.zeros(4, int))
                pool.reset(env_id=over)
