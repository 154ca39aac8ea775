"""A transform inside each env of a batch gives the same data as one around the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torchrl_cases import Counter

from shoal.faces.torchrl import GymEnv, InitTracker, RewardSum, SerialEnv, StepCounter

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.faces.torchrl import EnvBase, Transform

ENVS: dict[str, Callable[[], Any]] = {"counter": lambda: Counter(limit=4), "gym": lambda: GymEnv("CartPole-v1")}
TRANSFORMS: dict[str, Callable[[], Any]] = {
    "StepCounter": lambda: StepCounter(max_steps=3),
    "RewardSum": RewardSum,
    "InitTracker": InitTracker,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("env", ENVS)
def test_inside_is_outside(env: str, transform: str) -> None:
    make: Callable[[], EnvBase] = ENVS[env]
    make_transform: Callable[[], Transform] = TRANSFORMS[transform]

    def data(batched: EnvBase) -> Any:
        torch.manual_seed(0)
        batched.set_seed(0)
        return batched.rollout(9, break_when_any_done=False)

    inside = SerialEnv(2, lambda: make().append_transform(make_transform()))
    outside = SerialEnv(2, make).append_transform(make_transform())
    first, second = data(inside), data(outside)
    for key in second.keys(True, True):
        assert torch.equal(first[key], second[key]), key
    for batched in (inside, outside):
        batched.close()
