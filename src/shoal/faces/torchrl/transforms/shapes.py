"""Transforms of shapes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import StateError
from shoal.faces.torchrl.env.keys import NestedKey, keys_of, path_of
from shoal.faces.torchrl.specs import Bounded, Composite, Unbounded
from shoal.faces.torchrl.transforms.base import Transform, WrongArgument, put
from shoal.faces.torchrl.transforms.following import drop_followed
from shoal.faces.torchrl.transforms.keyed import KeyTransform, bounded

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import TensorSpec
    from shoal.faces.torchrl.transforms.base import Keys


class _DimTransform(KeyTransform):
    """A transform that knows how many batch dims there are, so that other dims can be counted from there."""

    def _outwards(self, value: torch.Tensor, lead: int) -> torch.Tensor:
        raise NotImplementedError

    def _inwards(self, value: torch.Tensor, lead: int) -> torch.Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return self._outwards(value, 0)

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return self._inwards(value, 0)

    def _rewrite(self, td: TensorDictBase, sources: list[NestedKey], targets: list[NestedKey], change: Any) -> None:
        way = self._inwards if change == self._inv_apply_transform else self._outwards
        super()._rewrite(td, sources, targets, partial(way, lead=td.ndim))

    def _lead_of_specs(self) -> int:
        parent = self._lower
        return 0 if parent is None else len(parent.batch_size)

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return _reshaped(leaf, partial(self._outwards, lead=self._lead_of_specs()))

    def _inv_apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return _reshaped(leaf, partial(self._outwards, lead=self._lead_of_specs()))


def _reshaped(leaf: TensorSpec, change: Any) -> TensorSpec:
    """A spec after a change of shape: bounds are kept, and so is the class unless its last dim has a meaning."""
    if leaf._event_dims or isinstance(leaf, Bounded):
        return bounded(leaf, change)
    return leaf._map(change, len(leaf.shape))


class FlattenObservation(_DimTransform):
    """Neighbouring dims merged into one.

    Args:
        first_dim: The first of them, negative unless ``allow_positive_dim``.
        last_dim: The last of them.
        in_keys: The entries, ``"pixels"`` by default.
        out_keys: Where the results are written; in place by default.
        allow_positive_dim: Whether dims may be positive, counted from the end of the batch dims.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import FlattenObservation
        >>> FlattenObservation(-3, -1)(TensorDict({"pixels": torch.zeros(3, 4, 5)}))["pixels"].shape
        torch.Size([60])
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        allow_positive_dim: bool = False,
    ) -> None:
        for dim in (first_dim, last_dim):
            _check_dim(type(self).__name__, dim, allow_positive_dim)
        super().__init__(in_keys=["pixels"] if in_keys is None else in_keys, out_keys=out_keys)
        self.first_dim = first_dim
        self.last_dim = last_dim
        self.allow_positive_dim = allow_positive_dim

    def _outwards(self, value: torch.Tensor, lead: int) -> torch.Tensor:
        first, last = (dim if dim < 0 else dim + lead for dim in (self.first_dim, self.last_dim))
        return value.flatten(first, last)


class _OneDim(_DimTransform):
    """A dim of size 1, to be added or removed."""

    def __init__(
        self,
        dim: int,
        *,
        allow_positive_dim: bool = False,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        _check_dim(type(self).__name__, dim, allow_positive_dim)
        super().__init__(in_keys=in_keys, out_keys=out_keys, in_keys_inv=in_keys_inv, out_keys_inv=out_keys_inv)
        self.dim = dim
        self.allow_positive_dim = allow_positive_dim

    def _place(self, lead: int) -> int:
        return self.dim if self.dim < 0 else self.dim + lead


class UnsqueezeTransform(_OneDim):
    """Adds a dim of size 1, and removes it from what the env reads.

    Args:
        dim: Where the dim is, negative unless ``allow_positive_dim``.
        allow_positive_dim: Whether the dim may be positive, counted from the end of the batch dims.
        in_keys: What the env returns.
        out_keys: Where the results are written; in place by default.
        in_keys_inv: What the env reads.
        out_keys_inv: Where callers write it; ``in_keys_inv`` by default.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, UnsqueezeTransform
        >>> env = GymEnv("CartPole-v1").append_transform(UnsqueezeTransform(-2, in_keys=["observation"]))
        >>> env.reset()["observation"].shape
        torch.Size([1, 4])
    """

    def _outwards(self, value: torch.Tensor, lead: int) -> torch.Tensor:
        return value.unsqueeze(self._place(lead))

    def _inwards(self, value: torch.Tensor, lead: int) -> torch.Tensor:
        return value.squeeze(self._place(lead))


class SqueezeTransform(_OneDim):
    """Removes a dim of size 1, and adds it back to what the env reads.

    Args:
        dim: Which dim, negative unless ``allow_positive_dim``.
        allow_positive_dim: Whether the dim may be positive, counted from the end of the batch dims.
        in_keys: What the env returns.
        out_keys: Where the results are written; in place by default.
        in_keys_inv: What the env reads.
        out_keys_inv: Where callers write it; ``in_keys_inv`` by default.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import SqueezeTransform
        >>> SqueezeTransform(-2, in_keys=["x"])(TensorDict({"x": torch.zeros(1, 4)}))["x"].shape
        torch.Size([4])
    """

    def _outwards(self, value: torch.Tensor, lead: int) -> torch.Tensor:
        return value.squeeze(self._place(lead))

    def _inwards(self, value: torch.Tensor, lead: int) -> torch.Tensor:
        return value.unsqueeze(self._place(lead))


def _check_dim(name: str, dim: int, allow_positive: bool) -> None:
    if dim >= 0 and not allow_positive:
        raise WrongArgument(f"{name}: dims are counted from the end, got {dim}; allow_positive_dim=True accepts that")


class CatTensors(Transform):
    """Concatenates several entries into one tensor.

    Args:
        in_keys: The entries, all observations of the env by default.
        out_key: Where the tensor is written.
        dim: The dim along which they are concatenated.
        del_keys: Whether the entries themselves are left out.
        unsqueeze_if_oor: Whether an entry that has no such dim gets one of size 1.
        sort: Whether the entries are sorted by name, rather than concatenated in the given order.

    Example:
        >>> from shoal.faces.torchrl import CatTensors, GymEnv, StepCounter
        >>> env = GymEnv("CartPole-v1").append_transform(StepCounter())
        >>> env = env.append_transform(CatTensors(["observation", "step_count"], out_key="all"))
        >>> env.reset()["all"].shape
        torch.Size([5])
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        super().__init__(in_keys=in_keys, out_keys=[out_key])
        self.dim = dim
        self.del_keys = del_keys
        self.unsqueeze_if_oor = unsqueeze_if_oor
        self.sort = sort
        self._finds_keys = in_keys is None
        if not self._finds_keys:
            self._take_keys(keys_of(self.in_keys))

    def _take_keys(self, keys: list[NestedKey]) -> None:
        self.__dict__["in_keys"] = sorted(keys, key=path_of) if self.sort else keys

    def _find_keys(self) -> list[NestedKey]:
        if self._finds_keys and not self.in_keys:
            if self._lower is None:
                raise StateError("CatTensors needs in_keys outside an env")
            self._take_keys(list(self._lower.observation_keys))
        return self.in_keys

    def empty_cache(self) -> None:
        """Forget which observations the env below has."""
        super().empty_cache()
        if self.__dict__.get("_finds_keys"):
            self.__dict__["in_keys"] = []

    def _joined(self, values: list[torch.Tensor], lead: int) -> torch.Tensor:
        if self.unsqueeze_if_oor:
            values = [value.unsqueeze(self.dim) if self._lacks_dim(value, lead) else value for value in values]
        return torch.cat(values, self.dim)

    def _lacks_dim(self, value: torch.Tensor, lead: int) -> bool:
        own = value.ndim - lead
        return bool(-self.dim > own if self.dim < 0 else self.dim - lead >= own)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        keys, out = self._find_keys(), self.out_keys[0]
        values = [next_tensordict.get(key, None) for key in keys]
        for key, value in zip(keys, values, strict=True):
            if value is None and not self.missing_tolerance:
                raise self._missing(key, next_tensordict)
        present = [value for value in values if value is not None]
        if not present:
            return next_tensordict
        joined = self._joined(present, next_tensordict.ndim)
        if self.del_keys:
            next_tensordict.exclude(*(key for key in keys if key != out), inplace=True)
        put(next_tensordict, out, joined)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Concatenate entries of data outside an env."""
        return self._call(tensordict)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with the transform in place."""
        keys, out = self._find_keys(), self.out_keys[0]
        leaves = [observation_spec[key] for key in keys]
        lead = len(observation_spec.shape)
        joined = self._joined([leaf.zero() for leaf in leaves], lead)
        made: TensorSpec = Unbounded(joined.shape, dtype=joined.dtype, device=leaves[0].device)
        if all(isinstance(leaf, Bounded) for leaf in leaves):
            low, high = (self._joined([getattr(leaf, end) for leaf in leaves], lead) for end in ("low", "high"))
            made = Bounded(low, high, dtype=joined.dtype, device=leaves[0].device)
        if self.del_keys:
            for key in keys:
                del observation_spec[key]
        observation_spec[out] = made
        return observation_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec without the entries that are left out and that only transforms read."""
        return drop_followed(self, state_spec, self._find_keys()) if self.del_keys else state_spec
