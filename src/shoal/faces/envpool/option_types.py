"""The types of options: EnvPool's configs have types, and so have those of the envs that come with shoal.

What an option takes is what the constructor of the env says in its annotation, if that is one of

    bool, int, float       where ``| None`` may follow
    tuple[float, float]    a range

Everything else is for the env to judge, and envs of the user's own judge all their options themselves: in Python an
annotation binds nobody.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from gymnasium.envs.registration import load_env_creator

from shoal.errors import WrongType

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOMES = ("shoal.envs.", "gymnasium.envs.")
_WORDS = {"bool": "True or False", "int": "an int", "float": "a number", "tuple[float, float]": "(low, high)"}
_NONE = "None"


def declared_types(maker: Any) -> dict[str, str]:
    """The annotations of the options of an env that comes with shoal or Gymnasium, as text."""
    if isinstance(maker, RegisteredSpec):
        home = maker.entry_point
        maker = load_env_creator(home) if isinstance(home, str) else home
    found: dict[str, str] = {}
    for cls in reversed(maker.__mro__) if isinstance(maker, type) else ():
        own = dict(_declared_by(cls))
        is_ours = cls.__module__.startswith(_HOMES)
        found.update(own if is_ours else dict.fromkeys(own, ""))
    return found


def _declared_by(cls: type) -> Iterator[tuple[str, str]]:
    constants = vars(cls).get("constants")
    for name, default in constants.items() if isinstance(constants, Mapping) else ():
        yield name, type(default).__name__
    constructor = vars(cls).get("__init__")
    if inspect.isfunction(constructor):
        for parameter in inspect.signature(constructor).parameters.values():
            annotation = parameter.annotation
            yield parameter.name, annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def as_declared(name: str, declared: str, value: Any) -> Any:
    """A value in the type that its annotation declares; as it is if it declares none of those above.

    Raises:
        WrongType: If it is not such a value.
    """
    parts = {part.strip() for part in declared.split("|")}
    kinds = parts - {_NONE}
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind not in _WORDS or (value is None and _NONE in parts):
        return value
    try:
        return _converted(kind, value)
    except TypeError:
        raise WrongType(f"{name}: expected {_WORDS[kind]}, got {value!r}") from None


def _converted(kind: str, value: Any) -> Any:
    if kind == "int":
        return operator.index(value)
    if kind == "tuple[float, float]":
        # Whether there are two ends is for the env to judge.
        return tuple(_number(end) for end in value) if isinstance(value, (list, tuple)) else value
    return bool(_number(value)) if kind == "bool" else _number(value)


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__") or np.ndim(value):
        raise TypeError(value)
    return float(value)
