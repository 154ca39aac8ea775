"""Whether numba is installed and works, if possible without importing it, and what it can compile."""

from __future__ import annotations

import importlib
import importlib.util
import platform
from functools import cache
from hashlib import sha256

import numpy as np

from shoal.engines.kernel import shelf

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))  # those that compiled code can read


def has_numba() -> bool:
    """Whether kernels can be compiled here.

    Importing numba takes longer than starting a pool, and with code on the shelf nobody needs it. So once these
    versions have been found to work together, that is remembered.
    """
    found = importlib.util.find_spec("numba")
    if found is None:
        return False
    sign = _sign_of(found.origin)
    if shelf.find(sign) is not None:
        return True
    if imports_numba():
        shelf.keep(sign, b"")
        return True
    return False


def imports_numba() -> bool:
    """Whether numba can be imported here and now."""
    try:
        importlib.import_module("numba")
    except ImportError:  # not installed, or not made for the installed numpy
        return False
    return True


@cache
def _sign_of(origin: str | None) -> str:
    from importlib import metadata  # only here: importing it takes as long as half of shoal

    installed = [origin, metadata.version("numba"), np.__version__, platform.python_version()]
    return f"numba_{sha256(repr(installed).encode()).hexdigest()[:20]}.works"
