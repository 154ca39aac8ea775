"""StepCounter: counts the steps of an episode, and ends it when there have been enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import NestedKey, Path, key_of
from shoal.faces.torchrl.env.masks import over
from shoal.faces.torchrl.specs import Bounded, Composite
from shoal.faces.torchrl.transforms.following import FollowingTransform
from shoal.faces.torchrl.transforms.levels import LevelTransform

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class StepCounter(FollowingTransform, LevelTransform):
    """Counts steps beside every done flag that decides on resets: 0 after a reset, one more with each step.

    Args:
        max_steps: After how many steps an episode is truncated; None for never.
        truncated_key: The flag that is set then.
        step_count_key: Where the count is written.
        update_done: Whether ``done`` is set then as well.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, StepCounter
        >>> env = GymEnv("Pendulum-v1").append_transform(StepCounter(max_steps=3))
        >>> env.rollout(10)["next", "step_count"].flatten().tolist()
        [1, 2, 3]
    """

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str | None = "truncated",
        step_count_key: str | None = "step_count",
        update_done: bool = True,
    ) -> None:
        super().__init__()
        if max_steps is not None and max_steps < 1:
            raise ArgumentError(f"StepCounter: max_steps must be at least 1, got {max_steps}")
        for name, key in (("truncated_key", truncated_key), ("step_count_key", step_count_key)):
            if not isinstance(key, str):
                raise ArgumentError(f"StepCounter: {name} is the last part of a key, a string, got {key!r}")
        self.max_steps = max_steps
        self.truncated_key: Any = truncated_key
        self.step_count_key: Any = step_count_key
        self.update_done = update_done

    @property
    def step_count_keys(self) -> list[NestedKey]:
        """Where the counts are written."""
        return self._beside_flags(self.step_count_key)

    @property
    def done_keys(self) -> list[NestedKey]:
        """The done flags beside them."""
        return self._beside_flags("done")

    @property
    def truncated_keys(self) -> list[NestedKey]:
        """The flags that are set when there have been enough steps."""
        return self._beside_flags(self.truncated_key)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for level in self.levels:
            shape = (*self.lead(tensordict_reset), *level.shape)
            count = torch.zeros(shape, dtype=torch.int64, device=level.device)
            self._begin(tensordict, tensordict_reset, key_of((*level.path, self.step_count_key)), count)
            if self.max_steps is not None and self.truncated_key not in level.flags:
                flag = torch.zeros(shape, dtype=torch.bool, device=level.device)
                tensordict_reset.set(key_of((*level.path, self.truncated_key)), flag)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for level in self.levels:
            shape = torch.Size((*self.lead(next_tensordict), *level.shape))
            self._count(level.path, shape, tensordict, next_tensordict)
        return next_tensordict

    def _count(self, path: Path, shape: torch.Size, td: TensorDictBase, following: TensorDictBase) -> None:
        key = key_of((*path, self.step_count_key))
        done_key = key_of((*path, "done"))
        before = self._before(td, key, shape)
        done = following.get(done_key, None)
        count = torch.ones_like(done, dtype=torch.int64) if before is None else before + 1
        self._go_on(td, following, key, count)
        if self.max_steps is None:
            return
        reached = count >= self.max_steps
        truncated_key = key_of((*path, self.truncated_key))
        truncated = following.get(truncated_key, None)
        following.set(truncated_key, reached if truncated is None else truncated | reached)
        self._raise_below(path, self.truncated_key, reached, following)
        if self.update_done and done is not None:
            following.set(done_key, done | reached)
            self._raise_below(path, "done", reached, following)

    def _raise_below(self, path: Path, name: str, reached: torch.Tensor, following: TensorDictBase) -> None:
        """Raise the same flag in the levels below one that is cut short, where they have it."""
        for level in self.below._plan().levels:
            key = key_of((*level.path, name))
            is_below = len(level.path) > len(path) and level.path[: len(path)] == path
            if is_below and (flag := following.get(key, None)) is not None:
                following.set(key, flag | over(reached, flag))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what the transform adds."""
        return self._declare(observation_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with what the transform reads from the previous step."""
        return self._declare(state_spec)

    def _declare(self, spec: Composite) -> Composite:
        largest = torch.iinfo(torch.int64).max
        for level in self.levels:
            count = Bounded(0, largest, shape=level.shape, dtype=torch.int64, device=level.device)
            self._declare_beside(spec, level, self.step_count_key, count)
        return spec

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done spec with what the transform adds."""
        if self.max_steps is not None:
            for level in self.levels:
                key = key_of((*level.path, self.truncated_key))
                if key not in done_spec.keys(True, True):
                    done_spec[key] = done_spec[key_of((*level.path, level.flags[0]))].clone()
        return done_spec
