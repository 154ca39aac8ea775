"""MuJoCo's library itself, for what its Python module does not show."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import mujoco

Address = ctypes.c_void_p

# Of the C interface of ``mujoco.batch``: which functions return addresses, and what they all take.
_RETURNING_ADDRESSES = ("mjb_makeBatch", "mjb_output", "mjb_state", "mjb_warning")
_PARAMETERS = {
    "mjb_makeBatch": [Address, ctypes.c_int, Address, ctypes.c_char_p, ctypes.c_int],
    "mjb_output": [Address, ctypes.c_char_p, Address, Address],
    "mjb_state": [Address],
    "mjb_warning": [Address],
    "mjb_deleteBatch": [Address],
}


@cache
def library() -> ctypes.CDLL | None:
    """The library, which Python has loaded already; None if it is not where it is expected."""
    for file in Path(mujoco.__file__).parent.glob("libmujoco*"):
        try:
            found = ctypes.CDLL(str(file))
            for name, parameters in _PARAMETERS.items():
                getattr(found, name).argtypes = parameters
            for name in _RETURNING_ADDRESSES:
                getattr(found, name).restype = Address
        except (OSError, AttributeError):
            continue
        return found
    return None


def address_of(owner: ctypes.CDLL, function: str) -> int:
    """Where a function of a library is."""
    return ctypes.cast(getattr(owner, function), Address).value or 0


def callback(name: str) -> ctypes.c_void_p | None:
    """The place where MuJoCo keeps a callback."""
    found = library()
    return None if found is None else Address.in_dll(found, f"mjcb_{name}")
