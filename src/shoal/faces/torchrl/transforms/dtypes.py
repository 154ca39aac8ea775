"""Transforms of dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import NestedKey, leaf_keys
from shoal.faces.torchrl.transforms.keyed import KeyTransform

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import Composite, TensorSpec
    from shoal.faces.torchrl.transforms.base import Keys


class DTypeCastTransform(KeyTransform):
    """Casts what the env returns from one dtype to another, and what it reads the other way.

    Without ``in_keys``, all entries of the first dtype are cast: in an env, those that its specs declare, rewards
    included; elsewhere, those that are in the data. Without any keys, so are all inputs.

    Args:
        dtype_in: The dtype that the env uses.
        dtype_out: The dtype that callers see.
        in_keys: The entries to cast among those that the env returns.
        out_keys: Where the results are written; in place by default.
        in_keys_inv: The entries to cast back among those that the env reads.
        out_keys_inv: Where callers write them; ``in_keys_inv`` by default.

    Example:
        >>> import torch
        >>> from shoal.faces.torchrl import DTypeCastTransform, GymEnv
        >>> cast = DTypeCastTransform(torch.float32, torch.float64, in_keys=["observation"])
        >>> GymEnv("CartPole-v1").append_transform(cast).reset()["observation"].dtype
        torch.float64
    """

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        if (in_keys is None and out_keys is not None) or (in_keys_inv is None and out_keys_inv is not None):
            raise ArgumentError(f"{type(self).__name__}: out_keys need in_keys, and out_keys_inv need in_keys_inv")
        super().__init__(in_keys=in_keys, out_keys=out_keys, in_keys_inv=in_keys_inv, out_keys_inv=out_keys_inv)
        self.dtype_in = dtype_in
        self.dtype_out = dtype_out
        self._finds_outputs = in_keys is None
        self._finds_inputs = in_keys is None and in_keys_inv is None
        self.__dict__["_found"] = not self._finds_outputs

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _find_keys(self) -> None:
        """Take the keys from the specs of the env below, if none were given and there is an env."""
        own = self.__dict__
        parent = None if own["_found"] else self._lower
        if parent is not None:
            written = (parent.full_observation_spec, parent.full_reward_spec)
            own["in_keys"] = [key for spec in written for key in self._keys_among(spec)]
            own["out_keys"] = list(own["in_keys"])
            if own["_finds_inputs"]:
                read = (parent.full_action_spec, parent.full_state_spec)
                found = [key for spec in read for key in self._keys_among(spec)]
                own["in_keys_inv"] = [key for key in found if key not in parent._recorded_keys]
                own["out_keys_inv"] = list(own["in_keys_inv"])
            own["_found"] = True

    def _keys_among(self, spec: Composite) -> list[NestedKey]:
        return [key for key in leaf_keys(spec) if spec[key] is not None and spec[key].dtype is self.dtype_in]

    def empty_cache(self) -> None:
        """Forget which keys the env below has."""
        super().empty_cache()
        if self.__dict__.get("_finds_outputs"):
            self.__dict__["_found"] = False

    @property
    def changes_inputs(self) -> bool:
        """Whether anything that the env reads is cast."""
        self._find_keys()
        return bool(self.in_keys_inv)

    # -- data ---------------------------------------------------------------------------------------------------------

    def _apply_transform(self, value: Any) -> Any:
        return value.to(self.dtype_out)

    def _inv_apply_transform(self, value: Any) -> Any:
        return value.to(self.dtype_in)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._find_keys()
        return super()._call(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._find_keys()
        return super()._reset(tensordict, tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Cast entries of data outside an env."""
        if self._finds_outputs and self._lower is None:
            return _cast_all(tensordict, self.dtype_in, self.dtype_out)
        self._find_keys()
        return super().forward(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._finds_inputs and self._lower is None:
            return _cast_all(tensordict, self.dtype_out, self.dtype_in)
        self._find_keys()
        return super()._inv_call(tensordict)

    # -- specs --------------------------------------------------------------------------------------------------------

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return leaf.to(self.dtype_out)

    def _inv_apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return leaf.to(self.dtype_out)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec with the transform in place."""
        self._find_keys()
        return super().transform_output_spec(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec with the transform in place."""
        self._find_keys()
        return super().transform_input_spec(input_spec)


def _cast_all(td: TensorDictBase, source: torch.dtype, target: torch.dtype) -> TensorDictBase:
    for key, value in list(td.items(True, True)):
        if isinstance(value, torch.Tensor) and value.dtype is source:
            td.set(key, value.to(target))
    return td


class DoubleToFloat(DTypeCastTransform):
    """Casts the env's 64-bit floats to 32 bits, and its inputs back to 64 bits.

    Args:
        in_keys: The entries to cast among those that the env returns, all 64-bit floats by default.
        out_keys: Where the results are written; in place by default.
        in_keys_inv: The entries to cast back among those that the env reads.
        out_keys_inv: Where callers write them; ``in_keys_inv`` by default.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import DoubleToFloat
        >>> DoubleToFloat()(TensorDict({"x": torch.zeros(1, dtype=torch.float64)}))["x"].dtype
        torch.float32
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)
