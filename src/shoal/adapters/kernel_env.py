"""A kernel env as an ordinary Gymnasium env: its functions as they stand, uncompiled.

This is how kernel envs run on every engine but the kernel engine, and how the kernel engine answers questions
about one of its envs: the record is then the engine's own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from shoal.errors import ArgumentError
from shoal.kernel import KernelEnv, checked_cast, leaves_tuple
from shoal.spec import SpaceTree

if TYPE_CHECKING:
    from collections.abc import Mapping


class PlainKernelEnv(gym.Env[Any, Any]):
    """One env of a kind, with a record of its own or a given one.

    Attributes:
        kind: What it runs.
        record: Its fields.
    """

    def __init__(self, kind: KernelEnv, records: np.ndarray[Any, Any] | None = None) -> None:
        kind.check()
        self.kind = kind
        self.record = Record((kind.records(1) if records is None else records)[0])
        self.observation_space = kind.observation_space
        self.action_space = kind.action_space
        self.render_mode = kind.render_mode
        self.metadata = kind.metadata
        self._obs_tree = SpaceTree(kind.observation_space, "observation")
        self._action_tree = SpaceTree(kind.action_space, "action")
        self._obs_tuple = leaves_tuple(kind.observation_space, "Obs")
        self._action_tuple = leaves_tuple(kind.action_space, "Action")
        self._twin: Any = None
        self._own = frozenset((*vars(self), "spec", "np_random", "_np_random", "_np_random_seed"))

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; ``options`` may set what the kind declares as ``reset_options``."""
        super().reset(seed=seed)
        leaves, obs = self._blank()
        try:
            for name, value in checked_options(self.kind, options).items():
                setattr(self.record, name, value)
            self.kind.reset(self.record, self.np_random, obs)
        finally:
            for name, value in self.kind.reset_options.items():
                setattr(self.record, name, value)
        return self._observation(leaves), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; there is no time limit here: enforcing one is left to whoever runs the env."""
        leaves, obs = self._blank()
        if self._action_tuple is not None:
            action = _group(self._action_tuple, self._action_tree.flatten(action))
        reward, terminated = self.kind.step(self.record, action, self.np_random, obs)
        return self._observation(leaves), float(reward), bool(terminated), False, self.info()

    def info(self) -> dict[str, Any]:
        """The info fields, as copies."""
        fields = {name: self.record[name] for name in self.kind.info}
        # Gymnasium batches Python's bools, and takes numpy's for objects.
        return {name: bool(value) if isinstance(value, np.bool_) else value for name, value in fields.items()}

    def render(self) -> Any:
        """A picture of the env, drawn by Gymnasium's env of the same kind."""
        kind = self.kind
        if kind.render_mode is None:
            raise ArgumentError(f"{type(kind).__name__}: to render, make it with render_mode='rgb_array'")
        if kind.gymnasium_id is None:
            raise ArgumentError(f"{type(kind).__name__} has no renderer")
        if self._twin is None:
            # Gymnasium draws with SDL, which would catch SIGTERM for an event that nobody reads.
            os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
            options = {"render_mode": kind.render_mode, "disable_env_checker": True, **kind.twin_kwargs()}
            self._twin = gym.make(kind.gymnasium_id, **options).unwrapped
            self._twin.reset()
        type(kind).pose(self.record, self._twin)
        return self._twin.render()

    def close(self) -> None:
        """Close the env that draws."""
        if self._twin is not None:
            self._twin.close()
            self._twin = None

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute by its name; a field may have the name of a method of the env's, such as ``step``."""
        return self.record[name] if name in self.record else super().get_wrapper_attr(name)

    def __getattr__(self, name: str) -> Any:
        record = self.__dict__.get("record")
        if record is not None and name in record:
            return record[name]
        raise AttributeError(f"{type(self.__dict__.get('kind')).__name__} has no field {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        record = self.__dict__.get("record")
        if record is not None and name in record:
            setattr(record, name, checked_cast(name, value, record[name].dtype))
            return
        own = self.__dict__.get("_own")
        if own is not None and name not in own:
            # Gymnasium's env of the same kind may have it. What nobody reads must not look as if it were set.
            kind, names = type(self.kind).__name__, list(self.kind.record_dtype().names or ())
            raise AttributeError(f"{kind} has no field {name!r}; it has {names}")
        super().__setattr__(name, value)

    def _blank(self) -> tuple[list[Any], Any]:
        """Room for the leaves of an observation, and the same in the form in which kernels write to it."""
        # A scalar cannot be written to, so it is an array of one.
        leaves = [np.zeros(leaf.shape or 1, leaf.dtype) for leaf in self._obs_tree.leaves]
        return leaves, leaves[0] if self._obs_tuple is None else _group(self._obs_tuple, leaves)

    def _observation(self, leaves: list[Any]) -> Any:
        values = [a if leaf.shape else a[0] for a, leaf in zip(leaves, self._obs_tree.leaves, strict=True)]
        return self._obs_tree.unflatten(values)


_WIDE: dict[str, Any] = {
    "f": np.float64,
    "i": np.int64,
    "u": lambda n: n if n.itemsize == 8 else np.int64(n),
    "b": bool,
}


class Record:
    """The fields of one env as attributes, whatever they are called: writing to one writes to the array behind it."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Any) -> None:
        object.__setattr__(self, "_fields", fields)

    def __reduce__(self) -> Any:
        return _copied_record, (np.array(self._fields),)

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._fields[name]
        except ValueError:
            raise AttributeError(f"env has no field {name!r}; it has {list(self._fields.dtype.names)}") from None
        # Compiled code widens narrow numbers where it mixes them with others; numpy does not.
        return _WIDE[value.dtype.kind](value) if value.shape == () else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self:
            raise AttributeError(f"env has no field {name!r}; it has {list(self._fields.dtype.names)}")
        self._fields[name] = value

    def __getitem__(self, name: str) -> Any:
        """A copy of a field, in its own type; not a method with a name, which a field could have as well."""
        return np.copy(self._fields[name])[()]

    def __contains__(self, name: object) -> bool:
        return name in self._fields.dtype.names


def _copied_record(fields: np.ndarray[Any, Any]) -> Record:
    return Record(fields.reshape(1)[0])


def _group(kind: Any, leaves: list[Any]) -> Any:
    return tuple(leaves) if kind is tuple else kind(*leaves)


def checked_options(kind: KernelEnv, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Reset options, each of which the kind declares, in the types of their defaults.

    Raises:
        ArgumentError: If one is unknown or does not fit its type.
    """
    unknown = sorted((options or {}).keys() - kind.reset_options.keys())
    if unknown:
        known = sorted(kind.reset_options) or "none"
        raise ArgumentError(f"options: {type(kind).__name__} does not know {unknown}; it has {known}")
    defaults = kind.reset_options
    return {
        name: checked_cast(f"options[{name!r}]", value, np.asarray(defaults[name]).dtype)
        for name, value in (options or {}).items()
    }
