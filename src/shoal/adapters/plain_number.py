"""Numbers of foreign envs as Python's own."""

from __future__ import annotations

from typing import Any

from shoal.errors import SpecError


def plain_number(value: Any, name: str) -> float:
    """A reward or the like as a float, whichever library's number it is.

    Raises:
        SpecError: If it is none. A text is none either, even if it could be read as one.
    """
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass  # an array of several, for instance
    raise SpecError(f"{name}: expected a number, got {type(value).__name__} {value!r:.60}")
