"""RewardSum: the sum of rewards since the last reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.errors import ArgumentError, StateError
from shoal.faces.torchrl.env.keys import NestedKey, key_of, keys_of, path_of
from shoal.faces.torchrl.env.masks import over
from shoal.faces.torchrl.specs import Composite, Unbounded
from shoal.faces.torchrl.transforms.declaring import declare, specs_of
from shoal.faces.torchrl.transforms.following import FollowingTransform

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.transforms.base import Keys


class RewardSum(FollowingTransform):
    """Keeps the sum of the rewards of an episode: 0 after a reset, the return at its last step.

    Args:
        in_keys: The rewards, all of the env's by default.
        out_keys: Where the sums are written: beside each reward by default, as ``"episode_"`` and its name.
        reset_keys: Accepted for compatibility, one for each reward: the env knows where the masks of partial resets
            are.
        reward_spec: Whether the sums are declared as rewards rather than as observations.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, RewardSum
        >>> env = GymEnv("CartPole-v1").append_transform(RewardSum())
        >>> env.rollout(3)["next", "episode_reward"].flatten().tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        reset_keys: Keys | None = None,
        *,
        reward_spec: bool = False,
    ) -> None:
        super().__init__(in_keys=["reward"] if in_keys is None else in_keys, out_keys=out_keys)
        self._reset_keys = None if reset_keys is None else keys_of(reset_keys)
        self.as_reward = reward_spec
        self._all_rewards = in_keys is None
        self._names_sums = out_keys is None
        if in_keys is not None:
            self._check_counts()

    @property
    def in_keys(self) -> list[NestedKey]:
        """The rewards, all of which only the env knows; ``"reward"`` if none were given and there is no env."""
        own = self.__dict__
        parent = self._lower if own.get("_all_rewards") else None
        keys: list[NestedKey] = own["in_keys"] if parent is None else parent.reward_keys
        return keys

    @in_keys.setter
    def in_keys(self, keys: list[NestedKey]) -> None:
        self.__dict__["in_keys"] = keys

    @property
    def out_keys(self) -> list[NestedKey]:
        """Where the sums are written."""
        own = self.__dict__
        keys: list[NestedKey] = own["out_keys"]
        return [_sum_key(key) for key in self.in_keys] if own.get("_names_sums") else keys

    @out_keys.setter
    def out_keys(self, keys: list[NestedKey]) -> None:
        self.__dict__["out_keys"] = keys

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Where the masks of partial resets are."""
        if self._reset_keys is not None:
            return self._reset_keys
        return list(self._below.reset_keys)

    @property
    def _below(self) -> EnvBase:
        parent = self._lower
        if parent is None:
            raise StateError("RewardSum needs an env: put it into a TransformedEnv")
        return parent

    def _check_counts(self) -> None:
        if len(self.in_keys) != len(self.out_keys):
            raise ArgumentError(
                f"RewardSum: {len(self.in_keys)} in_keys and {len(self.out_keys)} out_keys, there must be as many"
            )
        if self._reset_keys is not None and len(self._reset_keys) != len(self.in_keys):
            raise ArgumentError(
                f"RewardSum: {len(self._reset_keys)} reset_keys for {len(self.in_keys)} rewards, there must be as many"
            )

    def _pairs(self) -> list[tuple[NestedKey, NestedKey, torch.Size]]:
        """The keys of rewards and of their sums, with the shape of both."""
        own = self.__dict__
        if own.get("_known_pairs") is None:
            own["_known_pairs"] = self._find_pairs()
        pairs: list[tuple[NestedKey, NestedKey, torch.Size]] = own["_known_pairs"]
        return pairs

    def empty_cache(self) -> None:
        """Forget which rewards the env below has."""
        super().empty_cache()
        self.__dict__["_known_pairs"] = None

    def _find_pairs(self) -> list[tuple[NestedKey, NestedKey, torch.Size]]:
        spec = self._below.full_reward_spec
        self._check_counts()
        return [(key, out, torch.Size(spec[key].shape)) for key, out in zip(self.in_keys, self.out_keys, strict=True)]

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        below = self._below
        lead = below._plan().lead(tensordict_reset)
        for key, out, shape in self._pairs():
            dtype = below.full_reward_spec[key].dtype
            zeros = torch.zeros((*lead, *shape), dtype=dtype, device=tensordict_reset.device)
            self._begin(tensordict, tensordict_reset, out, zeros)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, out, _ in self._pairs():
            reward = next_tensordict.get(key)
            before = self._before(tensordict, out, reward.shape)
            self._go_on(tensordict, next_tensordict, out, reward.clone() if before is None else before + reward)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sum the rewards of rollouts up, along the dim that is named ``"time"``, or else the last batch dim.

        A sum begins anew after a step that ends an episode, by the ``done`` flag beside the reward or above it.
        """
        if not tensordict.ndim:
            raise ArgumentError("RewardSum: data outside an env needs a time, as one of its batch dims")
        time = tensordict.names.index("time") if "time" in tensordict.names else tensordict.ndim - 1
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            reward = tensordict.get(key, None)
            if reward is not None:
                tensordict.set(out, _summed(reward, _done_beside(tensordict, key), time))
            elif not self.missing_tolerance:
                raise self._missing(key, tensordict)
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what the transform adds."""
        return observation_spec if self.as_reward else self._declare(observation_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with what the transform reads from the previous step."""
        return self._declare(state_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec with what the transform adds."""
        return self._declare(reward_spec) if self.as_reward else reward_spec

    def _declare(self, spec: Composite) -> Composite:
        for key, out, shape in self._pairs():
            like = self._below.full_reward_spec[key]
            total = Unbounded(shape, dtype=like.dtype, device=like.device)
            declare(spec, out, total, *specs_of(self._below))
        return spec


def _sum_key(reward_key: NestedKey) -> NestedKey:
    *level, name = path_of(reward_key)
    return key_of((*level, f"episode_{name}"))


def _done_beside(td: TensorDictBase, reward_key: NestedKey) -> torch.Tensor | None:
    """The done flags that end the episodes of a reward: those of its level, or of the next one above that has any."""
    path = path_of(reward_key)
    root = 1 if path[0] == "next" else 0  # what is not under "next" belongs to the step before
    for end in range(len(path) - 1, root - 1, -1):
        done: torch.Tensor | None = td.get((*path[:end], "done"), None)
        if done is not None:
            return done
    return None


def _summed(reward: torch.Tensor, done: torch.Tensor | None, time: int) -> torch.Tensor:
    """The sums of rewards along time, each since the last end before it."""
    if done is None or not done.any():
        return reward.cumsum(time, dtype=reward.dtype)
    ended = over(done, reward).expand(reward.shape)
    sums, total = [], torch.zeros_like(reward.select(time, 0))
    for gained, ends in zip(reward.unbind(time), ended.unbind(time), strict=True):
        total = total + gained
        sums.append(total)
        total = total.masked_fill(ends, 0)
    return torch.stack(sums, time)
