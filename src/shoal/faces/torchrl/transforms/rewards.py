"""Transforms that change rewards, or derive something from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError, StateError
from shoal.faces.torchrl.env.keys import NestedKey, key_of, path_of
from shoal.faces.torchrl.specs import Binary, Bounded, Composite, Unbounded
from shoal.faces.torchrl.transforms.base import WrongArgument
from shoal.faces.torchrl.transforms.declaring import declare, specs_of
from shoal.faces.torchrl.transforms.following import FollowingTransform
from shoal.faces.torchrl.transforms.keyed import KeyTransform

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import TensorSpec
    from shoal.faces.torchrl.transforms.base import Keys


class RewardClipping(KeyTransform):
    """Clips rewards to two bounds.

    Args:
        clamp_min: The lower bound; None for none.
        clamp_max: The upper bound; None for none.
        in_keys: The rewards, ``"reward"`` by default.
        out_keys: Where the results are written; in place by default.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, RewardClipping
        >>> env = GymEnv("CartPole-v1").append_transform(RewardClipping(-0.5, 0.5))
        >>> env.rollout(2)["next", "reward"].flatten().tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
    ) -> None:
        if clamp_min is None and clamp_max is None:
            raise WrongArgument("RewardClipping: give clamp_min, clamp_max or both")
        super().__init__(in_keys=["reward"] if in_keys is None else in_keys, out_keys=out_keys)
        self.clamp_min = clamp_min
        self.clamp_max = clamp_max

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value.clamp(self.clamp_min, self.clamp_max)

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        infinite = {"low": -torch.inf, "high": torch.inf}
        if leaf.dtype is None or not leaf.dtype.is_floating_point:
            limits = torch.iinfo(leaf.dtype) if leaf.dtype is not None else torch.iinfo(torch.int64)
            infinite = {"low": limits.min, "high": limits.max}
        low = getattr(leaf, "low", torch.full(leaf.zero().shape, infinite["low"], dtype=leaf.dtype))
        high = getattr(leaf, "high", torch.full(leaf.zero().shape, infinite["high"], dtype=leaf.dtype))
        low, high = self._apply_transform(low), self._apply_transform(high)
        return Bounded(low, high, shape=leaf.shape, dtype=leaf.dtype, device=leaf.device)


class BinarizeReward(KeyTransform):
    """1 for a positive reward, 0 for all others.

    Args:
        in_keys: The rewards, ``"reward"`` by default.
        out_keys: Where the results are written; in place by default.

    Example:
        >>> from shoal.faces.torchrl import BinarizeReward, GymEnv
        >>> env = GymEnv("Pendulum-v1").append_transform(BinarizeReward())
        >>> env.rollout(2)["next", "reward"].flatten().tolist()
        [0, 0]
    """

    def __init__(self, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__(in_keys=["reward"] if in_keys is None else in_keys, out_keys=out_keys)

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return (value > 0).to(torch.int8)

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return Binary(shape=leaf.shape, dtype=torch.int8, device=leaf.device)


class SignTransform(KeyTransform):
    """The sign of values: -1, 0 or 1.

    Args:
        in_keys: The entries; none by default.
        out_keys: Where the results are written; in place by default.
        in_keys_inv: Entries of which the env gets only the sign.
        out_keys_inv: Where callers write them; ``in_keys_inv`` by default.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, SignTransform
        >>> env = GymEnv("Pendulum-v1").append_transform(SignTransform(["reward"]))
        >>> env.rollout(2)["next", "reward"].flatten().tolist()
        [-1.0, -1.0]
    """

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value.sign()

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value.sign()

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return Bounded(-1, 1, shape=leaf.shape, dtype=leaf.dtype, device=leaf.device)


class TargetReturn(FollowingTransform):
    """The return that is still to be achieved, for policies that read it.

    Args:
        target_return: The return to achieve in an episode.
        mode: ``"reduce"`` subtracts every reward, ``"constant"`` does not.
        in_keys: The rewards, all of the env's by default.
        out_keys: Where the targets are written: ``"target_return"`` beside each reward by default.
        reset_key: Not used: the env knows where the mask of partial resets is.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, TargetReturn
        >>> env = GymEnv("CartPole-v1").append_transform(TargetReturn(10.0))
        >>> env.rollout(3)["target_return"].flatten().tolist()
        [10.0, 9.0, 8.0]
    """

    def __init__(
        self,
        target_return: float,
        mode: str = "reduce",
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        reset_key: NestedKey | None = None,
    ) -> None:
        super().__init__(in_keys=in_keys, out_keys=out_keys)
        if mode not in ("reduce", "constant"):
            raise ArgumentError(f"TargetReturn: mode is 'reduce' or 'constant', got {mode!r}")
        self.target_return = target_return
        self.mode = mode
        self.reset_key = reset_key
        self._given = (in_keys, out_keys)

    @property
    def _below(self) -> EnvBase:
        parent = self._lower
        if parent is None:
            raise StateError("TargetReturn needs an env: put it into a TransformedEnv")
        if not self.in_keys:
            own = self.__dict__
            own["in_keys"] = list(parent.reward_keys)
        if len(self.out_keys) != len(self.in_keys) or self._given[1] is None:
            beside = [key_of((*path_of(key)[:-1], "target_return")) for key in self.in_keys]
            if len(set(beside)) != len(beside):
                raise ArgumentError(f"TargetReturn: several rewards at one level, {self.in_keys}: give out_keys")
            self.__dict__["out_keys"] = beside
        return parent

    def empty_cache(self) -> None:
        """Forget which rewards the env below has."""
        super().empty_cache()
        if "_given" in self.__dict__ and self._given[0] is None:
            self.__dict__["in_keys"] = []

    def _pairs(self) -> list[tuple[NestedKey, NestedKey, Any]]:
        spec = self._below.full_reward_spec
        return [(key, out, spec[key]) for key, out in zip(self.in_keys, self.out_keys, strict=True)]

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        lead = self._below._plan().lead(tensordict_reset)
        for _, out, leaf in self._pairs():
            target = torch.full_like(leaf.zero(lead), self.target_return)
            self._begin(tensordict, tensordict_reset, out, target)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._below  # noqa: B018 - the keys are those of the env
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            reward = next_tensordict.get(key)
            before = self._before(tensordict, out, reward.shape)
            target = torch.full_like(reward, self.target_return) if before is None else before
            self._go_on(tensordict, next_tensordict, out, target - reward if self.mode == "reduce" else target)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse: the transform has no meaning outside an env."""
        raise NotImplementedError("TargetReturn follows an env from step to step: it has no meaning outside one")

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what the transform adds."""
        return self._declare(observation_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with what the transform reads from the previous step."""
        return self._declare(state_spec)

    def _declare(self, spec: Composite) -> Composite:
        for _, out, leaf in self._pairs():
            target = Unbounded(leaf.shape, dtype=leaf.dtype, device=leaf.device)
            declare(spec, out, target, *specs_of(self._below))
        return spec
