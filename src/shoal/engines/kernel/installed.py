"""Whether numba is there, without importing it."""

from __future__ import annotations

import importlib
import importlib.util
import platform
from functools import cache
from hashlib import sha256

import numpy as np

from shoal.engines.kernel import shelf


def has_numba() -> bool:
    """Whether kernels can be compiled here.

    To import numba takes longer than to start a pool, and with code on the shelf nobody needs it. So that these
    versions go together is found out once, and kept.
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
    """Whether it can be imported here and now."""
    try:
        importlib.import_module("numba")
    except ImportError:  # not there, or not made for the numpy that is
        return False
    return True


@cache
def _sign_of(origin: str | None) -> str:
    from importlib import metadata  # only here: it takes as long to import as half of shoal

    installed = [origin, metadata.version("numba"), np.__version__, platform.python_version()]
    return f"numba_{sha256(repr(installed).encode()).hexdigest()[:20]}.works"
