"""AsyncEnvPool on worker processes, and the law that all ways of running envs give the same data."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_envs import Adder, Story, Walk, assert_same

from shoal.errors import WorkerDied
from shoal.faces.torchrl import (
    AsyncEnvPool,
    Composite,
    GymEnv,
    ParallelEnv,
    ProcessorAsyncEnvPool,
    SerialEnv,
    Unbounded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tensordict import TensorDict, TensorDictBase

SOON_S = 30.0
pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes share:UserWarning")


@pytest.fixture
def pool() -> Iterator[Callable[..., AsyncEnvPool]]:
    """A pool on processes, closed in the end."""
    made: list[AsyncEnvPool] = []

    def make(makers: Any, **options: Any) -> AsyncEnvPool:
        made.append(AsyncEnvPool(makers, backend="multiprocessing", **options))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def indices(td: TensorDictBase) -> Any:
    found = td["env_index"]
    return found if isinstance(found, int) else [int(i) for i in found]


class Growing(Walk):
    """Observes a list of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite({**self.observation_spec, "list": Unbounded((-1,))})

    def _shown(self) -> TensorDict:
        return super()._shown().set("list", torch.zeros(int(self.count) + 1))


class Pid(Walk):
    def _shown(self) -> TensorDict:
        return super()._shown().set("count", torch.tensor([os.getpid()]))


def test_some_envs_at_a_time(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, limit=9)] * 3, exchange="shm")
    assert type(env) is ProcessorAsyncEnvPool
    assert (env.backend, env.resolved_exchange, env.exchange) == ("multiprocessing", "shm", "shm")
    with pytest.raises(AttributeError):
        env.envs  # noqa: B018
    td = env.rand_action(env.reset())
    env.async_step_send(td[1:])
    out = env.async_step_recv(min_get=2, timeout=SOON_S)
    assert indices(out) == [1, 2]
    assert out["next", "count"].flatten().tolist() == [1, 1]
    env.async_reset_send(env_index=2)
    assert env.async_reset_recv(env_index=2)["count"].tolist() == [0]
    env.async_step_send(td[0])
    assert indices(env.async_step_recv(timeout=SOON_S)) == [0]


def test_the_default_takes_any_data(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk] * 2)
    assert (env.exchange, env.resolved_exchange, env.exchange_keys) == ("queue", "queue", ())
    env.async_step_send(env.rand_action(env.reset()).set("more", torch.ones(2)))
    assert env.async_step_recv(min_get=2, timeout=SOON_S)["more"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("exchange", ["shm", "auto"])
def test_shared_memory_has_one_schema(pool: Callable[..., AsyncEnvPool], exchange: str) -> None:
    env = pool([Walk] * 2, exchange=exchange)
    assert (env.exchange, env.resolved_exchange) == (exchange, "shm")
    assert set(env.exchange_keys) == set(Walk().fake_tensordict().keys(True, True))
    td = env.rand_action(env.reset())
    calls = (env.async_step_send, env.async_step_and_maybe_reset_send, env.async_reset_send)
    for call in (*calls, env.step, env.step_and_maybe_reset, env.reset):
        with pytest.raises(KeyError, match="more"):
            call(td.copy().set("more", torch.ones(2)))  # type: ignore[operator]
        with pytest.raises(KeyError, match="next"):
            call(td.copy().set(("next", "more"), torch.ones(2)))  # type: ignore[operator]
    assert env.rollout(7, break_when_any_done=False).shape == (2, 7)
    td["_reset"] = torch.tensor([[True], [False]])
    assert env.reset(td)["count"].flatten().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("makers", "error"),
    [([Walk, partial(Walk, width=2)], ValueError), ([partial(Story)] * 2, TypeError), ([Growing], ValueError)],
    ids=["widths", "texts", "lengths"],
)
def test_what_shared_memory_does_not_take(
    pool: Callable[..., AsyncEnvPool], makers: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="exchange"):
        AsyncEnvPool(makers, backend="multiprocessing", exchange="shm", stack="lazy")
    env = pool(makers, exchange="auto", stack="lazy")
    assert (env.resolved_exchange, env.exchange_keys) == ("queue", ())


def test_each_worker_has_a_cpu(pool: Callable[..., AsyncEnvPool]) -> None:
    for affinity in ([[0]], [0] * 3):
        with pytest.raises(ValueError, match="worker_affinity"):
            AsyncEnvPool([Walk] * 2, backend="multiprocessing", worker_affinity=affinity)
    cpu = min(os.sched_getaffinity(0))
    for each in ([[cpu]] * 2, lambda worker: [cpu]):
        assert pool([Walk] * 2, worker_affinity=each).reset()["count"].shape == (2, 1)


def test_envs_per_worker(pool: Callable[..., AsyncEnvPool]) -> None:
    assert len(set(pool([Pid] * 4).reset()["count"].flatten().tolist())) == 4
    assert len(set(pool([Pid] * 4, envs_per_worker=2).reset()["count"].flatten().tolist())) == 2


def test_a_slow_env_holds_up_nobody(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([partial(Walk, delay_s=1.0), Walk])
    env.async_step_send(env.rand_action(env.reset()))
    assert indices(env.async_step_recv(timeout=SOON_S)) == [1]
    assert indices(env.async_step_recv(timeout=SOON_S)) == [0]


def test_an_error_comes_with_its_traceback_and_the_others_go_on(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Walk, partial(Walk, fails_at=1)])
    td = env.rand_action(env.reset())
    env.async_step_send(td)
    got: list[Any] = []
    while len(got) < 2:
        try:
            got += indices(env.async_step_recv(timeout=SOON_S))
        except RuntimeError as error:
            got.append(str(error))
    told = str(max(got, key=str))
    assert 0 in got
    assert "step 1 is one too many" in told
    assert "in _step" in told
    env.async_reset_send(env_index=[1])
    env.async_reset_recv()
    assert env.step(td.exclude("next"))["next", "count"].flatten().tolist() == [2, 1]


def test_a_dead_worker_is_told_and_close_works(pool: Callable[..., AsyncEnvPool]) -> None:
    env = pool([Pid, Pid])
    root = env.reset()
    os.kill(root["count"][1].item(), signal.SIGKILL)
    env.async_step_send(env.rand_action(root))
    with pytest.raises(WorkerDied, match="SIGKILL"):
        env.async_step_recv(min_get=2, timeout=SOON_S)
    env.close()


# ---------------------------------------------------------------------- one law

MIXTURES: dict[str, list[Any]] = {
    "walks": [partial(Walk, limit=limit) for limit in (1, 2, 5)],
    "widths": [partial(Walk, width=width, limit=3) for width in (1, 2, 4)],
    "gyms": [partial(GymEnv, "CartPole-v1")] * 3,
    "states": [Adder] * 3,
}


@pytest.fixture(params=MIXTURES)
def ways(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """The same envs run in every way, the plainest first."""
    makers = MIXTURES[request.param]
    made: list[Any] = [
        SerialEnv(3, makers),
        ParallelEnv(3, makers),
        AsyncEnvPool(makers, stack="maybe_dense"),
        AsyncEnvPool(makers, stack="maybe_dense", backend="multiprocessing", envs_per_worker=3),
    ]
    yield made
    while made:
        made.pop().close(raise_if_closed=False)


MASKS = st.lists(st.booleans(), min_size=3, max_size=3)
CALLS = st.one_of(st.just("step_and_maybe_reset"), st.tuples(st.sampled_from(["_step", "_reset"]), MASKS))


def test_all_ways_give_the_same_data(ways: list[Any]) -> None:
    @settings(max_examples=8, deadline=None)
    @given(seed=st.integers(0, 2**31), calls=st.lists(CALLS, min_size=3, max_size=8))
    def law(seed: int, calls: list[Any]) -> None:
        assert len({env.set_seed(seed) for env in ways}) == 1
        roots = [env.reset() for env in ways]
        for call in calls:
            same(roots)
            chosen = ways[0].rand_action(roots[0].copy())
            results = [call_of(call, env, chosen.copy()) for env in ways]
            for part in zip(*results, strict=True):
                same(part)
            roots = [result[-1] for result in results]

    law()


def same(each: Sequence[TensorDictBase]) -> None:
    for td in each[1:]:
        assert_same(td.exclude("env_index"), each[0].exclude("env_index"))


def call_of(call: Any, env: Any, td: TensorDictBase) -> tuple[TensorDictBase, ...]:
    """The data that a call returns, the next root last."""
    if call == "step_and_maybe_reset":
        return tuple(env.step_and_maybe_reset(td))
    key, mask = call
    if key == "_step":
        stepped = env.step(td.set("_step", torch.tensor(mask)))
        return stepped.exclude("_step"), env.step_mdp(stepped)
    td = td.exclude("next").set("_reset", torch.tensor(mask).unsqueeze(-1))
    return (env.reset(td),)
