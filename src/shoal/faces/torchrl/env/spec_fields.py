"""The attributes through which the specs of an env are read and set.

Ten specs have the same getters and setters, with and without the env's batch dims: descriptors say each of them once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.env.specs import EnvSpecs
    from shoal.faces.torchrl.specs import Composite, TensorSpec


class FullSpecField:
    """One of the five specs, always as a composite."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, env: EnvSpecs | None, owner: type[EnvSpecs]) -> Composite:
        return self if env is None else env._full_spec(self._name)  # type: ignore[return-value]

    def __set__(self, env: EnvSpecs, value: TensorSpec) -> None:
        env._set_spec(self._name, value)


class LeafSpecField:
    """One of the five specs: its leaf, if the one that the spec is named after is the only one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, env: EnvSpecs | None, owner: type[EnvSpecs]) -> Any:
        return self if env is None else env._leaf_or_all(self._name)

    def __set__(self, env: EnvSpecs, value: TensorSpec) -> None:
        env._set_spec(self._name, value)


class UnbatchedField:
    """A spec without the env's batch dims; they are added when it is set."""

    def __init__(self, of: str) -> None:
        self._of = of

    def __get__(self, env: EnvSpecs | None, owner: type[EnvSpecs]) -> Any:
        if env is None:
            return self
        spec: TensorSpec = getattr(env, self._of)
        return spec[(0,) * env.batch_dims] if env.batch_dims else spec

    def __set__(self, env: EnvSpecs, value: TensorSpec) -> None:
        setattr(env, self._of, value.expand((*env.batch_size, *value.shape)))


class KeysField:
    """The keys of all leaves of a spec, the shallow ones first and then by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, env: EnvSpecs | None, owner: type[EnvSpecs]) -> list[NestedKey]:
        return self if env is None else list(env._keys_of(self._name))  # type: ignore[return-value]
