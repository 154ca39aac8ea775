"""The specs of an env: how they are set, locked, read, and which keys they name.

Everything is kept in two composites, the input spec (actions, state) and the output spec (observations, rewards, done
flags). While they are locked, keys and plans that follow from them are kept; every setter unlocks them, writes,
discards what was kept, and locks them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from shoal.errors import ArgumentError, SpecError, TensorEnvError, WrongType
from shoal.faces.torchrl.env.done import complete_done_spec, done_levels
from shoal.faces.torchrl.env.keys import NestedKey, Path, leaf_keys
from shoal.faces.torchrl.env.spec_fields import FullSpecField, KeysField, LeafSpecField, UnbatchedField
from shoal.faces.torchrl.specs import Categorical, Composite, TensorSpec, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_GROUP_OF = {
    "full_action_spec": "_input_spec",
    "full_state_spec": "_input_spec",
    "full_observation_spec": "_output_spec",
    "full_reward_spec": "_output_spec",
    "full_done_spec": "_output_spec",
}
_LEAF_NAME = {"full_action_spec": "action", "full_reward_spec": "reward", "full_observation_spec": "observation"}
# Names under which other dialects keep their specs; here they would be ignored.
_RESERVED = frozenset(
    {f"_{name}_spec" for name in ("action", "reward", "done", "observation", "state", "input", "output")}
)


class EnvSpecs(nn.Module):
    """The specs of an env; `EnvBase` adds what is done with them."""

    _batch_locked = True
    _kept: dict[str, Any]
    _strays: set[Path]
    _batch_size: torch.Size
    _device: torch.device | None

    def __init__(self, batch_size: torch.Size, device: torch.device | None) -> None:
        super().__init__()
        own = self.__dict__
        own["_batch_size"] = batch_size
        own["_device"] = device
        own["_kept"] = {}
        own["_strays"] = set()  # where steps have returned what no spec declares
        own["_age"] = 0  # counts changes of the specs, for envs that build theirs on these
        own["_specs_locked"] = False
        own["_built"] = False
        own["_input_spec"] = Composite(shape=batch_size, device=device)
        own["_output_spec"] = Composite(shape=batch_size, device=device)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RESERVED:
            raise AttributeError(f"{type(self).__name__}: set {name[1:]} instead of {name}, so that it is checked")
        # What is in the instance's dict is not a parameter, buffer or module: overwriting it needs none of the look-ups
        # by which nn.Module sorts them.
        if name in self.__dict__ and not isinstance(value, (nn.Module, nn.Parameter)):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # -- the batch and the device -------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> torch.Size:
        """How many envs there are in this one, as the leading dims of all data."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        self.__dict__["_batch_size"] = torch.Size(value)
        for name in ("_input_spec", "_output_spec"):
            if not self.__dict__[name].is_empty():
                raise TensorEnvError(f"{type(self).__name__}.batch_size: set it before the specs, which depend on it")
            self.__dict__[name] = Composite(shape=self.batch_size, device=self.device)
        self.empty_cache()

    @property
    def shape(self) -> torch.Size:
        """The batch size."""
        return self.batch_size

    @property
    def batch_dims(self) -> int:
        """The number of dims of the batch size."""
        return len(self.batch_size)

    @property
    def ndim(self) -> int:
        """The number of dims of the batch size."""
        return len(self.batch_size)

    def ndimension(self) -> int:
        """The number of dims of the batch size."""
        return len(self.batch_size)

    def numel(self) -> int:
        """The number of envs."""
        return int(self.batch_size.numel())

    @property
    def batch_locked(self) -> bool:
        """Whether data must have the env's batch size; otherwise an env without one takes it from its input."""
        return self._batch_locked

    @batch_locked.setter
    def batch_locked(self, value: bool) -> None:
        raise TensorEnvError(f"{type(self).__name__}.batch_locked is read-only: it is a property of the class")

    @property
    def device(self) -> torch.device | None:
        """Where data is expected and returned; None when the env does not say."""
        return self._device

    @device.setter
    def device(self, value: Any) -> None:
        if self.__dict__["_device"] is not None:
            raise TensorEnvError(f"{type(self).__name__}.device is set: move the env with env.to({value!r})")
        if self.__dict__["_built"] and value is not None:
            self.to(value)
        else:
            self.__dict__["_device"] = None if value is None else torch.device(value)

    # -- locks and what is kept under them ----------------------------------------------------------------------------

    @property
    def is_spec_locked(self) -> bool:
        """Whether the specs can only be changed through the env's setters."""
        locked: bool = self.__dict__["_specs_locked"]
        return locked

    def set_spec_lock_(self, mode: bool = True) -> EnvSpecs:
        """Lock or unlock the specs.

        Unlocked specs may be changed in place. Nothing that follows from them is kept meanwhile, so the env is slower.

        Args:
            mode: Whether to lock.

        Returns:
            The env itself.
        """
        self._lock_own_specs(mode)
        return self

    def _lock_own_specs(self, mode: bool) -> None:
        self.__dict__["_specs_locked"] = bool(mode)
        self._apply_lock()
        self._forget()

    def _apply_lock(self) -> None:
        locked = self.__dict__["_specs_locked"] and self.__dict__["_built"]
        for name in ("_input_spec", "_output_spec"):
            spec = self.__dict__[name]
            if locked:
                spec.lock_(recurse=True)
            elif spec.is_locked:
                spec.unlock_(recurse=True)

    def empty_cache(self) -> None:
        """Forget keys and plans that were worked out from the specs."""
        self._forget()

    def _forget(self) -> None:
        own = self.__dict__
        own["_kept"].clear()
        own["_strays"].clear()
        own["_age"] += 1

    def _keep(self, name: str, work_out: Callable[[], T]) -> T:
        """A value that follows from the specs, kept while they are locked."""
        kept: dict[str, T] = self.__dict__["_kept"]
        if name in kept:
            return kept[name]
        value = work_out()
        if self.__dict__["_specs_locked"] and self.__dict__["_built"]:
            kept[name] = value
        return value

    # -- reading and writing a spec -----------------------------------------------------------------------------------

    def _full_spec(self, name: str) -> Composite:
        group = self._group(_GROUP_OF[name])
        spec: Composite | None = group.get(name, None)
        if spec is None:
            self._store_spec(name, self._default_spec(name))
            spec = self._group(_GROUP_OF[name])[name]
        return spec

    def _group(self, name: str) -> Composite:
        group: Composite = self.__dict__[name]
        return group

    def _default_spec(self, name: str) -> Composite:
        empty = Composite(shape=self.batch_size, device=self.device)
        if name == "full_reward_spec":
            empty["reward"] = Unbounded((*self.batch_size, 1), device=self.device)
        elif name == "full_done_spec":
            complete_done_spec(empty, self._default_flag())
        return empty

    def _default_flag(self) -> TensorSpec:
        return Categorical(2, shape=(*self.batch_size, 1), dtype=torch.bool, device=self.device)

    def _store_spec(self, name: str, value: Composite) -> None:
        group = self._group(_GROUP_OF[name])
        if group.is_locked:
            group.unlock_(recurse=True)
        group[name] = value
        self._apply_lock()
        self._forget()

    def _set_spec(self, name: str, value: TensorSpec | None) -> None:
        """Check a spec, wrap a leaf, and store it as one of the five."""
        where = f"{type(self).__name__}.{name.removeprefix('full_')}"
        if value is None and name == "full_state_spec":
            value = Composite(shape=self.batch_size)
        if value is None:
            raise SpecError(f"{where}: expected a spec, got None")
        if name == "full_state_spec" and not isinstance(value, Composite):
            raise WrongType(f"{where}: expected a Composite, got {type(value).__name__}")
        if not isinstance(value, TensorSpec):
            raise WrongType(f"{where}: expected a spec, got {value!r}")
        size = self.batch_size
        if value.shape[: len(size)] != size:
            raise SpecError(
                f"{where}: expected a shape that begins with the batch size {tuple(size)}, got {tuple(value.shape)}; "
                f"{name.removeprefix('full_')}_unbatched takes a spec without it"
            )
        if self.device is not None:
            value = value.to(self.device)
        spec = self._as_composite(name, value, where)
        if name == "full_done_spec":
            complete_done_spec(spec, self._default_flag())
            done_levels(spec)
        self._store_spec(name, spec)

    def _as_composite(self, name: str, value: TensorSpec, where: str) -> Composite:
        if isinstance(value, Composite):
            # A composite that belongs to another env, or is another spec of this one, would be locked twice.
            used = any(
                value is own for own in (*self._group("_input_spec").values(), *self._group("_output_spec").values())
            )
            spec = value.clone() if value.is_locked or used else value
        else:
            spec = Composite(shape=self.batch_size, device=self.device)
            for leaf in ("done", "terminated") if name == "full_done_spec" else (_LEAF_NAME[name],):
                spec[leaf] = value.clone() if leaf == "terminated" else value
        if name in ("full_reward_spec", "full_done_spec"):
            for key in spec.keys(True, True):
                if not len(spec[key].shape):
                    raise TensorEnvError(f"{where}: {key!r} has no dim; give it one, for instance shape=(1,)")
        return spec

    def _move_specs(self, device: torch.device) -> None:
        for name in ("_input_spec", "_output_spec"):
            spec = self.__dict__[name]
            if spec.is_locked:
                spec.unlock_(recurse=True)
            self.__dict__[name] = spec.to(device)
        self._apply_lock()
        self._forget()

    # -- what users read ----------------------------------------------------------------------------------------------

    @property
    def input_spec(self) -> Composite:
        """What the env reads: ``full_action_spec`` and ``full_state_spec``."""
        for name in ("full_state_spec", "full_action_spec"):
            self._full_spec(name)
        return self._group("_input_spec")

    @input_spec.setter
    def input_spec(self, value: Any) -> None:
        raise TensorEnvError(f"{type(self).__name__}.input_spec is protected: set action_spec and state_spec")

    @property
    def output_spec(self) -> Composite:
        """What the env writes: ``full_observation_spec``, ``full_reward_spec`` and ``full_done_spec``."""
        for name in ("full_reward_spec", "full_done_spec", "full_observation_spec"):
            self._full_spec(name)
        return self._group("_output_spec")

    @output_spec.setter
    def output_spec(self, value: Any) -> None:
        raise TensorEnvError(
            f"{type(self).__name__}.output_spec is protected: set observation_spec, reward_spec and done_spec"
        )

    @property
    def specs(self) -> Composite:
        """The input spec and the output spec in one."""
        both = {"input_spec": self.input_spec, "output_spec": self.output_spec}
        return Composite({name: spec.clone() for name, spec in both.items()}, shape=self.batch_size, device=self.device)

    def _leaf_or_all(self, name: str) -> TensorSpec:
        full = self._full_spec(name)
        only = _LEAF_NAME[name]
        return full[only] if list(full.keys(True, True)) == [only] else full

    action_spec = LeafSpecField("full_action_spec")
    reward_spec = LeafSpecField("full_reward_spec")
    observation_spec = FullSpecField("full_observation_spec")
    done_spec = FullSpecField("full_done_spec")
    state_spec = FullSpecField("full_state_spec")
    full_action_spec = FullSpecField("full_action_spec")
    full_reward_spec = FullSpecField("full_reward_spec")
    full_observation_spec = FullSpecField("full_observation_spec")
    full_done_spec = FullSpecField("full_done_spec")
    full_state_spec = FullSpecField("full_state_spec")

    action_spec_unbatched = UnbatchedField("action_spec")
    reward_spec_unbatched = UnbatchedField("reward_spec")
    observation_spec_unbatched = UnbatchedField("observation_spec")
    done_spec_unbatched = UnbatchedField("done_spec")
    state_spec_unbatched = UnbatchedField("state_spec")
    full_action_spec_unbatched = UnbatchedField("full_action_spec")
    full_reward_spec_unbatched = UnbatchedField("full_reward_spec")
    full_observation_spec_unbatched = UnbatchedField("full_observation_spec")
    full_done_spec_unbatched = UnbatchedField("full_done_spec")
    full_state_spec_unbatched = UnbatchedField("full_state_spec")
    input_spec_unbatched = UnbatchedField("input_spec")
    output_spec_unbatched = UnbatchedField("output_spec")

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _keys_of(self, name: str) -> list[NestedKey]:
        return self._keep(f"keys of {name}", lambda: leaf_keys(self._full_spec(name)))

    def _only_key(self, kind: str, keys: list[NestedKey]) -> NestedKey:
        if len(keys) != 1:
            raise _SeveralKeys(f"{type(self).__name__}.{kind}_key: the env has {len(keys)} {kind} keys: {keys}")
        return keys[0]

    action_keys = KeysField("full_action_spec")
    reward_keys = KeysField("full_reward_spec")
    observation_keys = KeysField("full_observation_spec")
    done_keys = KeysField("full_done_spec")
    state_keys = KeysField("full_state_spec")

    @property
    def action_key(self) -> NestedKey:
        """The key of the action, where there is only one."""
        return self._only_key("action", self.action_keys)

    @property
    def reward_key(self) -> NestedKey:
        """The key of the reward, where there is only one."""
        return self._only_key("reward", self.reward_keys)

    @property
    def done_key(self) -> NestedKey:
        """The key of the done flag, where there is only one; an env that has "done" has "terminated" too."""
        return self._only_key("done", self.done_keys)

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Where the masks of partial resets are: beside the done flags of every level."""
        return self._keep("reset keys", lambda: [level.reset_key for level in done_levels(self.full_done_spec)])

    @property
    def done_keys_groups(self) -> list[list[NestedKey]]:
        """The done keys of each level, in the order of ``reset_keys``."""
        return self._keep("done groups", lambda: [level.keys for level in done_levels(self.full_done_spec)])

    def check_key_collisions(self) -> None:
        """Refuse specs that use one key twice among what is written, or among what is read."""
        for names in (
            ("full_observation_spec", "full_reward_spec", "full_done_spec"),
            ("full_state_spec", "full_action_spec"),
        ):
            seen: dict[NestedKey, str] = {}
            for name in names:
                for key in self._full_spec(name).keys(True, True):
                    if key in seen:
                        raise TensorEnvError(
                            f"{type(self).__name__}: {key!r} is in both {seen[key]} and {name}; rename one of them"
                        )
                    seen[key] = name


class _SeveralKeys(ArgumentError, KeyError):
    """One key was asked for where there are several, or none."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr
