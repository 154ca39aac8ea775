"""The compiled part of shoal, if there is one: the code that runs on every step of every env, in C.

It is built when shoal is installed, from ``csrc/``, on machines with a C compiler. Without it, or with the environment
variable ``SHOAL_PURE_PYTHON``, the same things are done in Python: the rows are the same, and come later.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


PURE_PYTHON = "SHOAL_PURE_PYTHON"  # the environment variable


def _load() -> Any:
    if os.environ.get(PURE_PYTHON):
        return None
    try:
        return importlib.import_module("shoal._quick")
    except ImportError:  # not built, or for another Python or numpy
        return None


quick: Any = _load()
is_compiled = quick is not None

_CHECKED = frozenset("bBhHiIlLfd")  # types of actions that compiled code can check
_FLOATS = frozenset("fd")


def can_check(dtype: np.dtype[Any]) -> bool:
    """Whether compiled code can check actions of this type."""
    return is_compiled and dtype.isnative and dtype.char in _CHECKED


def can_search(*dtypes: np.dtype[Any]) -> bool:
    """Whether compiled code can search columns of these types for NaN."""
    return is_compiled and all(dtype.isnative and dtype.char in _FLOATS for dtype in dtypes)
