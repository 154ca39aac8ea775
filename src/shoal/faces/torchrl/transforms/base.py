"""Transform: one change to the data of an env.

    step     inv(td) on what goes in       ->  env  ->  _step(td, next) on what comes out
    reset    _reset_env_preprocess(td)     ->  env  ->  _reset(td, fresh)
    specs    transform_input_spec              and      transform_output_spec

A subclass that changes values key by key only has to say how, in ``_apply_transform`` and ``_inv_apply_transform``.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from shoal.errors import ArgumentError, ShoalError, TensorEnvError
from shoal.faces.torchrl.env.keys import NestedKey, keys_of, leaf_keys
from shoal.faces.torchrl.fast_td import entries_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import Composite
    from shoal.faces.torchrl.transforms.compose import Compose
    from shoal.faces.torchrl.transforms.transformed_env import TransformedEnv

    Keys = NestedKey | Sequence[NestedKey]


# What ties a transform to its env.
_PLACE = ("_container", "_parent")


class MissingEntry(ShoalError, KeyError):
    """A transform found no entry, or no spec, under one of its keys."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class WrongArgument(ArgumentError, TensorEnvError):
    """An argument of a transform makes no sense, where TorchRL raises a RuntimeError."""


class OwnedTransform(ShoalError, AttributeError):
    """A transform that belongs to one env was given to another."""


class Transform(nn.Module):
    """One change to the data of an env.

    Args:
        in_keys: What it reads from the data that the env returns.
        out_keys: Where it writes the results, ``in_keys`` by default. Keys new to the env must be declared in a spec.
        in_keys_inv: What the env reads from its input, as this transform writes it.
        out_keys_inv: What callers write instead, ``in_keys_inv`` by default.

    Example:
        >>> from shoal.faces.torchrl import Transform
        >>> class Halved(Transform):
        ...     def _apply_transform(self, obs):
        ...         return obs / 2
        ...
        ...     def _reset(self, tensordict, tensordict_reset):
        ...         return self._call(tensordict_reset)
    """

    # Whether reset data goes through inv on its way to the env.
    enable_inv_on_reset = False

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        super().__init__()
        own = self.__dict__
        # Assigned, so that a subclass may have properties in their place.
        self.in_keys = [] if in_keys is None else keys_of(in_keys)
        self.out_keys = list(self.in_keys) if out_keys is None else keys_of(out_keys)
        self.in_keys_inv = [] if in_keys_inv is None else keys_of(in_keys_inv)
        self.out_keys_inv = list(self.in_keys_inv) if out_keys_inv is None else keys_of(out_keys_inv)
        own["_missing_tolerance"] = False
        own["_container"] = None
        own["_parent"] = None

    in_keys: list[NestedKey]
    out_keys: list[NestedKey]
    in_keys_inv: list[NestedKey]
    out_keys_inv: list[NestedKey]

    # -- what comes out of the env ------------------------------------------------------------------------------------

    def _apply_transform(self, value: Any) -> Any:
        """The new value of one entry."""
        raise NotImplementedError(f"{type(self).__name__} has no _apply_transform")

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Change what a step returned, in place."""
        self._rewrite(next_tensordict, self.in_keys, self.out_keys, self._apply_transform)
        return next_tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Change what a step returned, knowing what it was given."""
        return self._call(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        """Change what a reset returned, knowing what it was given; by default, leave it alone."""
        return tensordict_reset

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """Change what a reset is given before the env sees it; by default, invert it if ``enable_inv_on_reset``."""
        if not self.enable_inv_on_reset or tensordict is None:
            return tensordict
        tolerant = self.missing_tolerance
        self.set_missing_tolerance(True)  # a reset need not be given everything that a step reads
        try:
            return self.inv(tensordict)
        finally:
            self.set_missing_tolerance(tolerant)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the transform to data outside an env."""
        self._rewrite(tensordict, self.in_keys, self.out_keys, self._apply_transform)
        return tensordict

    # -- what goes into the env ---------------------------------------------------------------------------------------

    @property
    def changes_inputs(self) -> bool:
        """Whether the transform needs to see what goes into the env."""
        return bool(self.in_keys_inv) or type(self)._inv_call is not Transform._inv_call

    @property
    def changes_actions(self) -> bool:
        """Whether the env may get other actions than the caller wrote."""
        return self.changes_inputs

    @property
    def invertible(self) -> bool:
        """Whether the transform defines how inputs are changed."""
        return type(self)._inv_apply_transform is not Transform._inv_apply_transform

    def _inv_apply_transform(self, value: Any) -> Any:
        """The value that the env reads, given the one that the caller wrote."""
        raise NotImplementedError(f"{type(self).__name__} has no _inv_apply_transform")

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Change what a step is given, in place."""
        self._rewrite(tensordict, self.out_keys_inv, self.in_keys_inv, self._inv_apply_transform)
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What the env reads, given what the caller wrote; the caller's data is not changed."""
        return self._inv_call(tensordict.copy())

    @property
    def recorded(self) -> dict[NestedKey, Any]:
        """What the env has last read that callers did not write, and that is put beside what they wrote."""
        return {}

    def _rewrite(self, td: TensorDictBase, sources: list[NestedKey], targets: list[NestedKey], change: Any) -> None:
        entries = entries_of(td)
        for source, target in zip(sources, targets, strict=True):
            value = entries.get(source) if entries is not None and type(source) is str else td.get(source, None)
            if value is not None:
                put(td, target, change(value))
            elif not self._missing_tolerance:
                raise self._missing(source, td)

    def _missing(self, key: NestedKey, td: TensorDictBase) -> MissingEntry:
        return MissingEntry(f"{type(self).__name__}: no {key!r} in the data, which has {list(td.keys(True))}")

    # -- specs --------------------------------------------------------------------------------------------------------

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with the transform in place."""
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec with the transform in place."""
        return reward_spec

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done spec with the transform in place."""
        return done_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec with the transform in place."""
        return action_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with the transform in place."""
        return state_spec

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec with the transform in place."""
        for kind, change in (
            ("full_observation_spec", self.transform_observation_spec),
            ("full_reward_spec", self.transform_reward_spec),
            ("full_done_spec", self.transform_done_spec),
        ):
            output_spec[kind] = change(output_spec[kind])
        self._check_declared(output_spec)
        return output_spec

    def _check_declared(self, output_spec: Composite) -> None:
        """Refuse new entries that no spec names: whoever makes room for data by the specs would have none for them."""
        groups = list(output_spec.values())
        for key in self.out_keys:
            if key not in self.in_keys and not any(key in group.keys(True) for group in groups):
                raise MissingEntry(
                    f"{type(self).__name__}: {key!r}, one of its out_keys, is unaccounted for: it must be declared in "
                    "transform_observation_spec, transform_reward_spec or transform_done_spec; in_keys are "
                    f"{self.in_keys}, and the env has {[name for group in groups for name in leaf_keys(group)]}"
                )

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec with the transform in place."""
        input_spec["full_state_spec"] = self.transform_state_spec(input_spec["full_state_spec"])
        input_spec["full_action_spec"] = self.transform_action_spec(input_spec["full_action_spec"])
        return input_spec

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """The device of the env with the transform in place."""
        return device

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The batch size of the env with the transform in place."""
        return batch_size

    # -- its place ----------------------------------------------------------------------------------------------------

    @property
    def container(self) -> TransformedEnv | None:
        """The env that the transform belongs to, directly or as part of a chain."""
        holder = self._holder
        while isinstance(holder, Transform):
            holder = holder._holder
        return holder

    @property
    def _holder(self) -> TransformedEnv | Compose | None:
        """What the transform belongs to directly."""
        holder: TransformedEnv | Compose | None = self.__dict__["_container"]
        return holder

    def set_container(self, container: TransformedEnv | Compose) -> None:
        """Attach the transform to an env or a chain; it can belong to only one."""
        if self.__dict__["_container"] is not None:
            raise OwnedTransform(f"{type(self).__name__} belongs to another env or Compose already: give it a clone()")
        self.__dict__["_container"] = container
        self.empty_cache()

    def _go_back_to(self, container: TransformedEnv | Compose) -> None:
        """Attach a copy to the copy of what it belongs to."""
        if self.__dict__.get("_container") is None:
            self.__dict__["_container"] = container

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a transform alone has no env; where the env is copied too, it takes the transform back.
        return {name: value for name, value in self.__dict__.items() if name not in _PLACE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in _PLACE:
            self.__dict__.setdefault(name, None)

    def reset_parent(self) -> None:
        """Detach the transform from its env or chain."""
        self.__dict__["_container"] = None
        self.empty_cache()

    @property
    def parent(self) -> TransformedEnv | None:
        """The base env with the transforms that come before this one."""
        below, container = self._lower, self.container
        if below is None or container is None:
            return None
        from shoal.faces.torchrl.transforms.transformed_env import TransformedEnv

        if below is not container.base_env and isinstance(below, TransformedEnv):
            return below
        return TransformedEnv(below, auto_unwrap=False)

    @property
    def _lower(self) -> EnvBase | None:
        """The env below this transform: the base env with the transforms before it."""
        if self.__dict__["_parent"] is None and self._holder is not None:
            self.__dict__["_parent"] = self._holder._env_below(self)
        below: EnvBase | None = self.__dict__["_parent"]
        return below

    def clone(self) -> Self:
        """A detached copy; parameters and buffers are shared."""
        twin = copy.copy(self)
        for name in ("_parameters", "_buffers", "_modules"):
            twin.__dict__[name] = copy.copy(self.__dict__[name])
        twin.reset_parent()
        return twin

    def empty_cache(self) -> None:
        """Forget whatever was derived from the env below."""
        self.__dict__["_parent"] = None

    # -- the rest -----------------------------------------------------------------------------------------------------

    @property
    def missing_tolerance(self) -> bool:
        """Whether keys that are missing from the data are skipped."""
        tolerant: bool = self.__dict__["_missing_tolerance"]
        return tolerant

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Set whether keys that are missing from the data are skipped, or are an error."""
        self.__dict__["_missing_tolerance"] = mode

    def init(self, tensordict: TensorDictBase) -> None:
        """Prepare for data like this."""

    def close(self) -> None:
        """Release what the transform holds."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(in_keys={self.in_keys}, out_keys={self.out_keys})"


def put(td: TensorDictBase, key: NestedKey, value: Any) -> None:
    """Set an entry, writing straight into the dict of a plain TensorDict if the tensor fits."""
    entries = entries_of(td) if type(key) is str and type(value) is torch.Tensor else None
    if entries is not None and (td.device is None or td.device == value.device):
        batch_size = td.batch_size
        if not batch_size or value.shape[: len(batch_size)] == batch_size:
            entries[key] = value  # type: ignore[index]
            return
    td.set(key, value)
