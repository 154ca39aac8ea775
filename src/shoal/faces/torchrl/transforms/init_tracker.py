"""InitTracker: marks the first step of an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import NestedKey, key_of
from shoal.faces.torchrl.specs import Categorical, Composite
from shoal.faces.torchrl.transforms.levels import LevelTransform

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class InitTracker(LevelTransform):
    """True at the root of the first step of an episode, False everywhere else; in the shape of the done flags.

    Args:
        init_key: Where the mark is written, beside every done flag that decides on resets.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, InitTracker
        >>> env = GymEnv("CartPole-v1").append_transform(InitTracker())
        >>> env.rollout(3)["is_init"].flatten().tolist()
        [True, False, False]
    """

    def __init__(self, init_key: str = "is_init") -> None:
        super().__init__()
        if not isinstance(init_key, str):
            raise ArgumentError(f"InitTracker: init_key is the last part of a key, a string, got {init_key!r}")
        self.init_key = init_key

    @property
    def init_keys(self) -> list[NestedKey]:
        """Where the marks are written."""
        return self._beside_flags(self.init_key)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._mark(tensordict_reset, True)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._mark(next_tensordict, False)

    def _mark(self, td: TensorDictBase, value: bool) -> TensorDictBase:
        lead = self.lead(td)
        for level in self.levels:
            mark = torch.full((*lead, *level.shape), value, dtype=torch.bool, device=level.device)
            td.set(key_of((*level.path, self.init_key)), mark)
        return td

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what the transform adds."""
        for level in self.levels:
            mark = Categorical(2, shape=level.shape, dtype=torch.bool, device=level.device)
            self._declare_beside(observation_spec, level, self.init_key, mark)
        return observation_spec
