"""Whether numba is there, without importing it."""

from __future__ import annotations

import importlib
import importlib.util
import platform
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
    from importlib import metadata  # only here: it takes as long to import as half of shoal

    installed = [found.origin, metadata.version("numba"), np.__version__, platform.python_version()]
    sign = f"numba_{sha256(repr(installed).encode()).hexdigest()[:20]}.works"
    if shelf.find(sign) is not None:
        return True
    try:
        importlib.import_module("numba")
    except ImportError:  # not made for the numpy that is there
        return False
    shelf.keep(sign, b"")
    return True
