"""The base of transforms that change entries one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.specs import Bounded, Composite, Unbounded
from shoal.faces.torchrl.transforms.base import Transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.specs import TensorSpec

    Change = Callable[[Any], Any]


class KeyTransform(Transform):
    """A transform that computes each ``out_key`` from its ``in_key`` alone, at resets as well as at steps.

    A subclass says what becomes of a value (``_apply_transform``) and, where bounds or classes are to be kept, of a
    spec (``_apply_to_spec``).
    """

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._rewrite(tensordict_reset, *self._keys_at_reset(), self._apply_transform)
        return tensordict_reset

    def _keys_at_reset(self) -> tuple[list[NestedKey], list[NestedKey]]:
        """The keys without those of rewards, which only steps return."""
        own = self.__dict__
        if own.get("_at_reset") is None:
            parent = self._lower
            rewards = [] if parent is None else parent.reward_keys
            pairs = [pair for pair in zip(self.in_keys, self.out_keys, strict=True) if pair[0] not in rewards]
            own["_at_reset"] = [source for source, _ in pairs], [target for _, target in pairs]
        keys: tuple[list[NestedKey], list[NestedKey]] = own["_at_reset"]
        return keys

    def empty_cache(self) -> None:
        """Forget which keys the env below has."""
        super().empty_cache()
        self.__dict__["_at_reset"] = None

    # -- specs --------------------------------------------------------------------------------------------------------

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        """The spec of what ``_apply_transform`` returns, given the spec of its input."""
        return unbounded(leaf, self._apply_transform)

    def _inv_apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        """The spec of what callers write, given the spec of what the env reads."""
        return leaf

    def _change_outputs(self, spec: Any) -> Any:
        """The spec of what callers get: a Composite with the results, or what becomes of a lone leaf."""
        if not isinstance(spec, Composite):
            return self._apply_to_spec(spec)
        for source, target in zip(self.in_keys, self.out_keys, strict=True):
            if source in spec:
                spec[target] = self._apply_to_spec(spec[source])
        return spec

    def _change_inputs(self, spec: Any) -> Any:
        """The spec of what callers write, in the same way."""
        if not isinstance(spec, Composite):
            return self._inv_apply_to_spec(spec)
        for env_key, caller_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            if env_key in spec:
                leaf = self._inv_apply_to_spec(spec[env_key])
                del spec[env_key]
                spec[caller_key] = leaf
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with the transform in place."""
        changed: Composite = self._change_outputs(observation_spec)
        return changed

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec with the transform in place."""
        changed: Composite = self._change_outputs(reward_spec)
        return changed

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec with the transform in place."""
        changed: Composite = self._change_inputs(action_spec)
        return changed

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with the transform in place."""
        changed: Composite = self._change_inputs(state_spec)
        return changed


def unbounded(leaf: TensorSpec, change: Change) -> TensorSpec:
    """The spec of a function's results, without bounds; it is called on zeros to find their shape and dtype."""
    zeros = leaf.zero()
    tried = change(zeros)
    shape = leaf.shape if tried.shape == zeros.shape else tried.shape  # a dim of any size stays one
    return Unbounded(shape, dtype=tried.dtype, device=leaf.device)


def bounded(leaf: TensorSpec, change: Change) -> TensorSpec:
    """The same with bounds, for a function that keeps or reverses the order of values."""
    if not isinstance(leaf, Bounded):
        return unbounded(leaf, change)
    ends = change(leaf.low), change(leaf.high)
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    shape = leaf.shape if low.shape == leaf.low.shape else low.shape
    if low.dtype.is_floating_point:
        low, high = low.masked_fill(low.isnan(), -torch.inf), high.masked_fill(high.isnan(), torch.inf)
    return Bounded(low, high, shape=shape, dtype=low.dtype, device=leaf.device)
