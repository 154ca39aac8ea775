"""Transforms that rename entries, or leave them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDict, TensorDictBase

from shoal.errors import ArgumentError, StateError
from shoal.faces.torchrl.env.done import FLAGS
from shoal.faces.torchrl.env.keys import NestedKey, data_keys, hollow_keys, is_nested, key_of, leaf_keys, path_of
from shoal.faces.torchrl.transforms.base import MissingEntry, Transform
from shoal.faces.torchrl.transforms.following import drop_followed, env_state_keys
from shoal.faces.torchrl.transforms.keyed import KeyTransform

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.faces.torchrl.specs import Composite
    from shoal.faces.torchrl.transforms.base import Keys


class RenameTransform(KeyTransform):
    """Gives entries other names.

    Args:
        in_keys: Names of what the env returns.
        out_keys: The names that callers see.
        in_keys_inv: Names of what the env reads.
        out_keys_inv: The names that callers write.
        create_copy: Whether the entries keep their old names beside the new ones.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, RenameTransform
        >>> env = GymEnv("CartPole-v1").append_transform(RenameTransform(["observation"], ["state"]))
        >>> env.observation_keys
        ['state']
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        create_copy: bool = False,
    ) -> None:
        super().__init__(in_keys=in_keys, out_keys=out_keys, in_keys_inv=in_keys_inv, out_keys_inv=out_keys_inv)
        for old, new in ((self.in_keys, self.out_keys), (self.in_keys_inv, self.out_keys_inv)):
            if len(old) != len(new):
                raise ArgumentError(
                    f"RenameTransform: {len(old)} names for {len(new)}, there must be as many: {old}, {new}"
                )
        self.create_copy = create_copy

    def _rewrite(self, td: TensorDictBase, sources: list[NestedKey], targets: list[NestedKey], change: Any) -> None:
        # All are read before any is written, so that names can be swapped.
        found = [(source, target, td.get(source, None)) for source, target in zip(sources, targets, strict=True)]
        for source, _, value in found:
            if value is None and not self.missing_tolerance:
                raise self._missing(source, td)
        if not self.create_copy:
            for source, _, value in found:
                if value is not None:
                    del td[source]
        for _, target, value in found:
            if value is not None:
                td.set(target, value)

    def _apply_transform(self, value: Any) -> Any:
        return value

    def _inv_apply_transform(self, value: Any) -> Any:
        return value

    def _rename(self, spec: Composite, old: list[NestedKey], new: list[NestedKey], keep: bool) -> Composite:
        found = [(source, target, spec[source]) for source, target in zip(old, new, strict=True) if source in spec]
        if not keep:
            for source, _, _ in found:
                del spec[source]
        for _, target, leaf in found:
            spec[target] = leaf.clone() if keep else leaf
        return spec

    def _change_outputs(self, spec: Composite) -> Composite:
        return self._rename(spec, self.in_keys, self.out_keys, self.create_copy)

    def _change_inputs(self, spec: Composite) -> Composite:
        renamed = [] if self.create_copy else [key for key in self.in_keys if key not in self.in_keys_inv]
        return drop_followed(self, self._rename(spec, self.in_keys_inv, self.out_keys_inv, self.create_copy), renamed)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done spec with the transform in place."""
        return self._change_outputs(done_spec)


class _Filter(Transform):
    """Leaves some entries out of what the env returns."""

    def _stays(self, key: NestedKey) -> bool:
        raise NotImplementedError

    def _filter(self, td: TensorDictBase) -> TensorDictBase:
        leaving = [key for key in data_keys(td) if not self._stays(key)]
        return _without(td, leaving) if leaving else td

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._filter(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._filter(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Leave entries out of data outside an env."""
        return self._filter(tensordict)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec with the transform in place."""
        for group in output_spec.values():
            for key in leaf_keys(group):
                if not self._stays(key):
                    del group[key]
            _prune(group)
        return output_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec without the entries that are left out and that only transforms read."""
        return drop_followed(self, state_spec, [key for key in leaf_keys(state_spec) if not self._stays(key)])


class SelectTransform(_Filter):
    """Keeps only some of the entries that the env returns; those that it reads back are always kept.

    Args:
        *selected_keys: The entries to keep; keys that the env does not have are ignored.
        keep_rewards: Whether rewards are kept too; outside an env, ``"reward"``.
        keep_dones: Whether done flags are kept too; outside an env, those of the usual names.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, InitTracker, SelectTransform, StepCounter
        >>> env = GymEnv("CartPole-v1").append_transform(StepCounter()).append_transform(InitTracker())
        >>> env.append_transform(SelectTransform("step_count")).observation_keys
        ['step_count']
    """

    def __init__(self, *selected_keys: NestedKey, keep_rewards: bool = True, keep_dones: bool = True) -> None:
        super().__init__()
        self.selected_keys = [key_of(path_of(key)) for key in selected_keys]
        self.keep_rewards = keep_rewards
        self.keep_dones = keep_dones

    def _kept(self) -> set[Any]:
        own = self.__dict__
        if own.get("_kept_paths") is None:
            parent = self._lower
            kept: list[NestedKey] = list(self.selected_keys)
            if parent is not None:
                kept += [*env_state_keys(self), *parent.action_keys]
            if self.keep_rewards:
                kept += ["reward"] if parent is None else parent.reward_keys
            if self.keep_dones:
                kept += FLAGS if parent is None else parent.done_keys
            own["_kept_paths"] = {path_of(key) for key in kept}
        paths: set[Any] = own["_kept_paths"]
        return paths

    def empty_cache(self) -> None:
        """Forget which keys the env below has."""
        super().empty_cache()
        self.__dict__["_kept_paths"] = None

    def _stays(self, key: NestedKey) -> bool:
        kept, path = self._kept(), path_of(key)
        return any(path[:end] in kept for end in range(1, len(path) + 1))


class ExcludeTransform(_Filter):
    """Leaves some entries out.

    Args:
        *excluded_keys: The entries to leave out. An env must have them; data outside one need not.
        inverse: Whether they are left out of what goes into the env instead.

    Example:
        >>> from shoal.faces.torchrl import ExcludeTransform, GymEnv
        >>> env = GymEnv("CartPole-v1").append_transform(ExcludeTransform("observation"))
        >>> env.observation_keys
        []
    """

    changes_actions = False

    def __init__(self, *excluded_keys: NestedKey, inverse: bool = False) -> None:
        super().__init__()
        self.excluded_keys = [key_of(path_of(key)) for key in excluded_keys]
        self.inverse = inverse
        self.__dict__["_paths"] = {path_of(key) for key in excluded_keys}

    def _stays(self, key: NestedKey) -> bool:
        path = path_of(key)
        return self.inverse or not any(path[:end] in self._paths for end in range(1, len(path) + 1))

    _paths: set[Any]

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec with the transform in place."""
        groups = list(output_spec.values())
        for key in [] if self.inverse else self.excluded_keys:
            if not any(key in group.keys(True) for group in groups):
                raise MissingEntry(
                    f"ExcludeTransform: {key!r} was not found in the environment outputs, which are "
                    f"{[name for group in groups for name in leaf_keys(group)]}"
                )
        return super().transform_output_spec(output_spec)

    @property
    def changes_inputs(self) -> bool:
        """Whether anything is left out of what goes into the env."""
        return self.inverse

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return _without(tensordict, self.excluded_keys) if self.inverse else tensordict


class RemoveEmptySpecs(Transform):
    """Leaves nested entries that hold nothing out of the specs and the data.

    Example:
        >>> from shoal.faces.torchrl import Composite, RemoveEmptySpecs
        >>> spec = Composite(inner=Composite())
        >>> list(RemoveEmptySpecs().transform_observation_spec(spec).keys())
        []
    """

    changes_actions = False

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return _drop_hollow(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return _drop_hollow(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Leave empty nested entries out of data outside an env."""
        return _drop_hollow(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Give the env the empty entries that it declares."""
        parent = self._lower
        if parent is None:
            raise StateError("RemoveEmptySpecs needs an env for its inverse: put it into a TransformedEnv")
        for spec in (parent.full_action_spec, parent.full_state_spec):
            for key in hollow_keys(spec):
                if tensordict.get(key, None) is None:
                    tensordict.set(key, TensorDict({}, tensordict.batch_size, device=tensordict.device))
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec without what is empty."""
        return _prune(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec without what is empty."""
        return _prune(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done spec without what is empty."""
        return _prune(done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec without what is empty."""
        return _prune(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec without what is empty."""
        return _prune(state_spec)


def _prune(spec: Composite) -> Composite:
    for key in hollow_keys(spec):
        del spec[key]
    return spec


def _drop_hollow(td: TensorDictBase) -> TensorDictBase:
    levels = {name: value for name, value in td.items() if is_nested(value)}
    for name, level in levels.items():
        if data_keys(level):
            _drop_hollow(level)
        else:
            del td[name]
    return td


def _without(td: TensorDictBase, keys: Iterable[NestedKey]) -> TensorDictBase:
    """The data without some entries, and without nested entries that held nothing else."""
    left = td.exclude(*keys)
    return _drop_hollow(left)
