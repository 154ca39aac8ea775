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
from tensor_envs import Adder, Walk, assert_same

from shoal.errors import WorkerDied
from shoal.faces.torchrl import AsyncEnvPool, GymEnv, ParallelEnv, ProcessorAsyncEnvPool, SerialEnv

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
