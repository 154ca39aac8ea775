"""Transforms in worker processes: the same data as around the batch, and state that all of them share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensor_envs import assert_same
from torchrl_cases import Counter
from transform_cases import CASES, Machine, bare, makers

from shoal.faces.torchrl import Compose, EnvCreator, ParallelEnv, SerialEnv, TrajCounter, TransformedEnv, VecNorm

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
