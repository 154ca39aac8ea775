"""Names for compiled code: a digest of everything that goes into it, so that nothing stale is ever found.

Compiled code depends on the author's functions, on the functions and globals that they use, on versions, options and
the processor. All of that is known without numba.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import llvmlite
import numpy as np

from shoal.engines.kernel.machine_code import processor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The modules of this package that say what compiled code does.
_OWN = ("bells", "compiling", "intrinsics", "machine_code", "random")
# What numba asks the environment when it compiles.
_OPTIONS = ("CPU_FEATURES", "CPU_NAME", "DEBUGINFO", "ENABLE_AVX", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE")


def digest_of(*parts: str, functions: Iterable[Any] = ()) -> str:
    """A name for code that is made of this text and these functions."""
    state = hashlib.sha256(_surroundings())
    for part in (repr(_checks_bounds()), *parts):
        state.update(part.encode() + b"\0")
    seen: set[Any] = set()
    for function in functions:
        _add_function(state, function, seen)
    return state.hexdigest()[:20]


@cache
def _surroundings() -> bytes:
    """What all code of this process depends on."""
    versions = [metadata.version("numba"), llvmlite.__version__, np.__version__, platform.python_version()]
    options = [os.environ.get(f"NUMBA_{name}", "") for name in _OPTIONS]
    text = "\0".join([*versions, *options, processor()])
    return text.encode() + b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in _OWN)


def _checks_bounds() -> int | None:
    """Whether numba checks indices: an option that programs change as well."""
    loaded = sys.modules.get("numba")
    if loaded is not None:
        return loaded.config.BOUNDSCHECK  # type: ignore[no-any-return]
    given = os.environ.get("NUMBA_BOUNDSCHECK")
    return int(given) if given else None


def globals_of(function: Any) -> Iterator[tuple[str, Any]]:
    """What the names in a function mean, names of a module's attributes included."""
    names = function.__globals__
    for code in _codes(function.__code__):
        used = [(name, names[name]) for name in code.co_names if name in names]
        yield from used
        for module in (value for _, value in used if isinstance(value, ModuleType)):
            yield from ((name, getattr(module, name)) for name in code.co_names if hasattr(module, name))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _add_function(state: Any, function: Any, seen: set[Any]) -> None:
    if function in seen:
        return
    seen.add(function)
    for code in _codes(function.__code__):
        state.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
        for constant in code.co_consts:
            if not isinstance(constant, CodeType):
                _add_value(state, constant, seen)
    cells = [("", cell.cell_contents) for cell in function.__closure__ or ()]
    for name, value in [*globals_of(function), *cells, ("", function.__defaults__)]:
        state.update(name.encode())
        _add_value(state, value, seen)


def _add_value(state: Any, value: Any, seen: set[Any]) -> None:
    """Add what a global or constant means to compiled code, in full, in words that every process has for it."""
    if isinstance(value, FunctionType):
        _add_function(state, value, seen)
    elif isinstance(getattr(value, "py_func", None), FunctionType):
        _add_function(state, value.py_func, seen)
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, (tuple, list)):
        state.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _add_value(state, item, seen)
    elif isinstance(value, type) and issubclass(value, Enum):
        state.update(repr([(member.name, member.value) for member in value]).encode())
    elif isinstance(value, frozenset):
        state.update(repr(sorted(map(repr, value))).encode())
    else:
        # What has a name is known by it: the repr of many a function has its address.
        state.update((getattr(value, "__name__", None) or repr(value)).encode() + b"\0")
