"""ActionMask: random actions among those that are allowed at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import ArgumentError
from shoal.faces.torchrl.specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot
from shoal.faces.torchrl.transforms.base import MissingEntry, Transform

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey


class ActionMask(Transform):
    """Gives the action spec the mask that the env returned last, so that ``rand_action`` keeps to it.

    Args:
        action_key: The action to mask, which must have a discrete spec.
        mask_key: Where the env writes its mask: True where an action is allowed.
    """

    def __init__(self, action_key: NestedKey = "action", mask_key: NestedKey = "action_mask") -> None:
        if not isinstance(action_key, (str, tuple)) or not isinstance(mask_key, (str, tuple)):
            raise ArgumentError(f"ActionMask: action_key and mask_key are keys, got {action_key!r} and {mask_key!r}")
        super().__init__(in_keys=[action_key, mask_key], out_keys=[])
        self.action_key = action_key
        self.mask_key = mask_key

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = next_tensordict.get(self.mask_key, None)
        if mask is None:
            raise MissingEntry(f"ActionMask: the env has written no {self.mask_key!r}")
        env = self.container
        if env is not None:
            env.full_action_spec[self.action_key].update_mask(mask)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse: the transform has no meaning outside an env."""
        raise NotImplementedError("ActionMask masks the actions of an env: it has no meaning outside one")

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec, unchanged; it must be one that takes masks."""
        leaf = action_spec[self.action_key]
        if not isinstance(leaf, (Categorical, MultiCategorical, MultiOneHot, OneHot)):
            raise ArgumentError(f"ActionMask: {self.action_key!r} is {type(leaf).__name__}, which takes no mask")
        return action_spec
