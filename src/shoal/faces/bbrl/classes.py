"""Objects from a config: the key ``classname`` says what to make, all others are its arguments."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from shoal.errors import ArgumentError


def get_class(arguments: Any) -> Any:
    """The class, or function, that a config names.

    Example:
        >>> get_class({"classname": "fractions.Fraction", "numerator": 3})
        <class 'fractions.Fraction'>
    """
    name = _items(arguments).get("classname")
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
    return dict(vars(arguments))
