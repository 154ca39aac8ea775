"""Transforms in worker processes: the same data as around the batch, and state that all of them share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensor_envs import assert_same
from torchrl_cases import Counter
from transform_cases import CASES, Machine, bare, makers

from shoal.faces.torchrl import (
    AsyncEnvPool,
    Compose,
    EnvCreator,
    ParallelEnv,
    SerialEnv,
    TensorDictPrimer,
    TrajCounter,
    TransformedEnv,
    Unbounded,
    VecNorm,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = (2, 5)
STEPS = 8


@pytest.fixture
def close_later() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    while made:
        made.pop().close(raise_if_closed=False)


def rolled(env: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        actions = [env.full_action_spec.rand()[env.action_keys[0]] for _ in range(STEPS)]
    return env.rollout(STEPS, actions=actions, break_when_any_done=False)


@pytest.mark.parametrize(
    "name",
    [
        "RewardScaling elsewhere",
        "TargetReturn",
        "ObservationNorm of actions",
        "VecNormV2",
        "DoubleToFloat",
        "CatFrames",
        "CatTensors",
        "Resize",
        "RenameTransform",
        "FrameSkipTransform among others",
        "ActionDiscretizer one-hot",
        "EndOfLifeTransform",
        "Hash",
    ],
)
def test_inside_processes_is_outside_the_batch(name: str, close_later: list[Any]) -> None:
    within = ParallelEnv(2, makers(name, LIMITS), mp_start_method="fork")
    around = TransformedEnv(SerialEnv(2, bare(LIMITS)), CASES[name]())
    over_processes = TransformedEnv(ParallelEnv(2, bare(LIMITS), mp_start_method="fork"), CASES[name]())
    close_later += [within, around]
    expected = rolled(around)
    assert_same(rolled(within), expected.exclude(*around._recorded_keys))
    if name != "EndOfLifeTransform":
        close_later.append(over_processes)
        assert_same(rolled(over_processes), expected)


def primed(limit: int) -> TransformedEnv:
    return TransformedEnv(
        Counter(limit), TensorDictPrimer({"memory": Unbounded((2,)), ("deep", "x"): Unbounded((1,))}, default_value=1.0)
    )


WITH_MEMORY: dict[str, Any] = {
    "outside": lambda: TransformedEnv(
        SerialEnv(2, [partial(Counter, limit) for limit in LIMITS]), primed(2).transform.clone()
    ),
    "serial": partial(SerialEnv, 2),
    "serial, apart": partial(SerialEnv, 2, share_individual_td=True),
    "parallel": partial(ParallelEnv, 2, mp_start_method="fork"),
    "parallel, without rows": partial(ParallelEnv, 2, mp_start_method="fork", use_buffers=False),
    "threads": AsyncEnvPool,
    "processes": partial(AsyncEnvPool, backend="multiprocessing"),
}


def memories(td: Any) -> tuple[list[float], list[float]]:
    return td["memory"][:, 0].tolist(), td["deep", "x"][:, 0].tolist()


@pytest.mark.parametrize("where", WITH_MEMORY)
def test_what_a_policy_writes_ahead_is_carried_by_primers_inside(where: str, close_later: list[Any]) -> None:
    makers = [partial(primed, limit) for limit in LIMITS]
    env = WITH_MEMORY[where]() if where == "outside" else WITH_MEMORY[where](makers)
    close_later.append(env)
    td = env.reset()
    roots, followers = [memories(td)], []
    for step in range(4):
        td = env.rand_action(td)
        if step != 2:  # this time the policy leaves its memory as it is
            td["next", "memory"] = torch.full((2, 2), 10.0 + step)
            td["next", "deep", "x"] = torch.full((2, 1), 20.0 + step)
        stepped, td = env.step_and_maybe_reset(td)
        followers.append(memories(stepped["next"]))
        roots.append(memories(td))
    assert followers == [([10, 10], [20, 20]), ([11, 11], [21, 21]), ([1, 11], [1, 21]), ([13, 13], [23, 23])]
    assert roots == [([1, 1], [1, 1]), ([10, 10], [20, 20]), ([1, 11], [1, 21]), ([1, 11], [1, 21]), ([1, 13], [1, 23])]
    td = env.rand_action(td)
    td["next", "memory"] = torch.full((2, 2), 5.0)
    td["_step"] = torch.tensor([False, True])
    assert memories(env.step(td)["next"]) == ([1, 5], [1, 23])


def test_one_env_may_be_given_what_the_others_are_not(close_later: list[Any]) -> None:
    pool = AsyncEnvPool([partial(primed, 9)] * 3)
    close_later.append(pool)
    td = pool.rand_action(pool.reset())
    pool.async_step_send(td[1:].clone().set(("next", "memory"), torch.full((2, 2), 7.0)))
    pool.async_step_send(td[0].exclude("env_index"), env_index=0)
    assert pool.async_step_recv(env_index=0)["next", "memory"].tolist() == [1, 1]
    assert pool.async_step_recv(min_get=2)["next", "memory"][:, 0].tolist() == [7, 7]


def counting() -> TransformedEnv:
    return TransformedEnv(Counter(3), Compose(VecNorm(["count"], decay=1.0), TrajCounter()))


def test_statistics_are_shared_without_a_race(close_later: list[Any]) -> None:
    creator = EnvCreator(counting)
    here = creator()
    statistics = here.state_dict()["transforms.0._extra_state"]
    before = statistics["count", "count"].item()
    env = ParallelEnv(4, creator, mp_start_method="fork", num_processes=2)
    close_later.append(env)
    r = env.rollout(150, break_when_any_done=False)
    resets = 4 + 4 * (149 // 3)
    # Every observation of every process has been counted, and every episode has a number of its own.
    assert statistics["count", "count"].item() - before == 4 * 150 + resets
    numbers = r["traj_count"][..., 0]
    assert len(numbers.unique()) == resets
    assert all(len(row.unique()) == resets // 4 for row in numbers)
    assert here.reset()["traj_count"].item() == int(numbers.max()) + 1


def test_machines_differ() -> None:
    first, second = (partial(Machine, limit)().rollout(2)["pixels"] for limit in LIMITS)
    assert not torch.equal(first, second)
