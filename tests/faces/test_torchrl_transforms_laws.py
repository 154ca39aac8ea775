"""What holds for every transform: it keeps to its specs, and it does not matter on which side of a batch it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_envs import assert_same
from torchrl_cases import Counter
from transform_cases import CASES, Machine, bare, inside, makers

from shoal.faces.torchrl import Compose, SerialEnv, TransformedEnv, check_env_specs

STEPS = 8


def rolled(env: Any, seed: int = 0) -> Any:
    """A rollout over several episodes, with actions that depend on the specs alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        actions = [env.full_action_spec.rand() for _ in range(STEPS)]
    key = env.action_keys[0]
    return env.rollout(STEPS, actions=[action[key] for action in actions], break_when_any_done=False)


@pytest.mark.parametrize("name", CASES)
def test_specs_are_kept(name: str) -> None:
    env = inside(name, 3)
    check_env_specs(env, break_when_any_done="both", seed=0)
    batch = TransformedEnv(SerialEnv(2, bare((2, 4))), CASES[name]())
    check_env_specs(batch, break_when_any_done="both", seed=0)
    batch.close()


@pytest.mark.parametrize("name", CASES)
def test_inside_the_batch_is_outside_the_batch(name: str) -> None:
    limits = (2, 5, 3)
    within = SerialEnv(3, makers(name, limits))
    around = TransformedEnv(SerialEnv(3, bare(limits)), CASES[name]())
    assert within.observation_spec == around.observation_spec
    assert within.full_action_spec == around.full_action_spec
    assert within.full_reward_spec == around.full_reward_spec
    # What an env of the batch puts into its own input stays with it.
    assert_same(rolled(within), rolled(around).exclude(*around._recorded_keys))
    within.close()
    around.close()


# Those that can be put together in any order: none of them takes away or changes the type of what another one reads.
CHAINABLE = (
    "RewardScaling",
    "ObservationNorm",
    "VecNormV2",
    "CatFrames constant",
    "CatFrames",
    "TimeMaxPool",
    "TargetReturn",
    "StepCounter",
    "FrameSkipTransform",
    "Hash",
    "InitTracker",
    "CatTensors kept",
    "ActionDiscretizer",
)


@settings(max_examples=8, deadline=None)
@given(
    names=st.lists(st.sampled_from(CHAINABLE), min_size=2, max_size=4, unique=True),
    limits=st.tuples(st.integers(2, 4), st.integers(2, 5)),
    seed=st.integers(0, 99),
)
def test_chains_too(names: list[str], limits: tuple[int, int], seed: int) -> None:
    def chain() -> Compose:
        return Compose(*(CASES[name]() for name in names))

    within = SerialEnv(2, [lambda limit=limit: TransformedEnv(Machine(limit), chain()) for limit in limits])
    around = TransformedEnv(SerialEnv(2, bare(limits)), chain())
    assert_same(rolled(within, seed), rolled(around, seed))
    within.close()
    around.close()


@pytest.mark.parametrize("name", CASES)
def test_clones_are_transforms_of_their_own(name: str) -> None:
    transform = CASES[name]()
    env = TransformedEnv(Machine(4), transform)
    first = rolled(env)
    twin = TransformedEnv(Machine(4), CASES[name]().clone())
    assert_same(first, rolled(twin))


def test_the_law_can_fail() -> None:
    within = SerialEnv(2, lambda: Counter(2))
    around = SerialEnv(2, lambda: Counter(3))
    with pytest.raises(AssertionError):
        assert_same(rolled(within), rolled(around))
    within.close()
    around.close()
