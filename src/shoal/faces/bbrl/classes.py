"""Objects from a config: the key ``classname`` says what to make, all others are its arguments."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from shoal.errors import ArgumentError


class MissingClassname(ArgumentError, KeyError):
    """A config does not say what to make."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


def get_class(arguments: Any) -> Any:
    """The class, or function, that a config names.

    Example:
        >>> get_class({"classname": "fractions.Fraction", "numerator": 3})
        <class 'fractions.Fraction'>
    """
    items = _items(arguments)
    if "classname" not in items:
        raise MissingClassname(f"classname: expected 'module.Class', but the config has only {list(items)}")
    name = items["classname"]
    module, _, attribute = str(name).rpartition(".")
    if name is None or not module:
        raise ArgumentError(f"classname: expected 'module.Class', got {name!r}")
    return getattr(importlib.import_module(module), attribute)


def get_arguments(arguments: Any) -> dict[str, Any]:
    """Everything in a config except the name of the class.

    Example:
        >>> get_arguments({"classname": "fractions.Fraction", "numerator": 3})
        {'numerator': 3}
    """
    return {key: value for key, value in _items(arguments).items() if key != "classname"}


def instantiate_class(arguments: Any) -> Any:
    """The object that a config describes.

    Example:
        >>> instantiate_class({"classname": "fractions.Fraction", "numerator": 3})
        Fraction(3, 1)
    """
    return get_class(arguments)(**get_arguments(arguments))


def _items(arguments: Any) -> dict[str, Any]:
    # Configs of other libraries can be read like dicts without being dicts.
    if isinstance(arguments, Mapping) or hasattr(arguments, "keys"):
        return {str(key): arguments[key] for key in arguments}
    # A config may be a class, or have its values in one.
    kinds = (arguments if isinstance(arguments, type) else type(arguments)).__mro__[:-1]
    found = {name: value for kind in reversed(kinds) for name, value in vars(kind).items() if _is_value(name, value)}
    return found if isinstance(arguments, type) else {**found, **getattr(arguments, "__dict__", {})}


def _is_value(name: str, value: Any) -> bool:
    """Whether a member of a class is a value, and not a method, a property or Python's own."""
    return not name.startswith("_") and not hasattr(value, "__get__")
