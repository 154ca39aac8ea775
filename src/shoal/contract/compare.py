"""Whether two nested values are the same, and if not, where they differ."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np


def difference(a: Any, b: Any, path: str) -> str | None:
    """Where ``a`` and ``b`` first differ, in words; None if they are equal, with NaN equal to NaN."""
    if a is b:
        return None
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _array_difference(np.asarray(a), np.asarray(b), path)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return f"{path} has the keys {list(a)} and {list(b)}"
        return _first((a[key], b[key], f"{path}[{key!r}]") for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{path} has {len(a)} and {len(b)} items"
        return _first((one, other, f"{path}[{i}]") for i, (one, other) in enumerate(zip(a, b, strict=True)))
    return None if _equal(a, b) else f"{path} is {brief(a)} and {brief(b)}"


def _first(pairs: Any) -> str | None:
    return next((found for a, b, path in pairs if (found := difference(a, b, path))), None)


def _equal(a: Any, b: Any) -> bool:
    try:
        # Only NaN differs from itself.
        return bool(a == b) or bool(a != a and b != b)
    except Exception:
        return False


def _array_difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], path: str) -> str | None:
    if a.shape != b.shape:
        return f"{path} has the shapes {a.shape} and {b.shape}"
    if a.dtype == b.dtype and a.dtype != object and a.tobytes() == b.tobytes():
        return None
    if a.dtype == object or b.dtype == object:  # the items may be arrays, for which ``!=`` has many answers
        pairs = zip(np.ndindex(a.shape), a.flat, b.flat, strict=True)
        return _first((one, other, f"{path}{index(place)}") for place, one, other in pairs)
    unequal = a != b
    if a.dtype.kind in "fc" and b.dtype.kind in "fc":
        unequal = unequal & ~(np.isnan(a) & np.isnan(b))
    if not np.any(unequal):
        return None
    place = tuple(int(i) for i in np.argwhere(unequal)[0])
    return f"{path}{index(place)} is {brief(a[place])} and {brief(b[place])}"


def index(place: tuple[int, ...]) -> str:
    """A place in an array as it is written in code: ``[2, 0]``, or nothing for a scalar."""
    return f"[{', '.join(map(str, place))}]" if place else ""


def brief(value: Any) -> str:
    """A value in a few characters."""
    # Not the repr, which names the type, nor a Python float, which would have more digits than a float32.
    text = str(value) if isinstance(value, np.number) else " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


class GlobalRandom:
    """The state, at one moment, of the random generators that all code of a process shares."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state(legacy=True)

    def changed(self) -> list[str]:
        """Names of the generators that somebody has used or seeded since."""
        names = [] if random.getstate() == self._python else ["random"]
        now: Any = np.random.get_state(legacy=True)
        same = now[2:] == self._numpy[2:] and np.array_equal(now[1], self._numpy[1])
        return names if same else [*names, "np.random"]
