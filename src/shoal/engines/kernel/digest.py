"""Names for compiled code: a digest of everything that goes into it, so that nothing stale is ever found.

Compiled code depends on the author's functions, on the functions and globals that they use, on versions, options and
the processor. All of that is known without numba. What some objects mean to compiled code cannot be seen from outside,
such as those that other decorators of numba's make; code that uses one has no name and is not kept.
"""

from __future__ import annotations

import dis
import hashlib
import logging
import os
import platform
import sys
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import llvmlite
import numpy as np

from shoal.engines.kernel.machine_code import processor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger("shoal")

# The modules of this package that determine what compiled code does.
_OWN = ("bells", "compiling", "intrinsics", "machine_code", "random")
# The options that numba reads from the environment when it compiles.
_OPTIONS = ("CPU_FEATURES", "CPU_NAME", "DEBUGINFO", "ENABLE_AVX", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE")

# Libraries whose versions are part of every digest: what they have under a name is known by that name.
_VERSIONED = ("builtins", "numba", "numpy")
# Types whose repr says all there is to a value.
_PLAIN = (bool, bytes, complex, float, int, range, slice, str, type(None), type(...))


class _OpaqueError(Exception):
    """Nothing tells what a value means to compiled code."""


def digest_of(*parts: str, functions: Iterable[Any] = ()) -> str | None:
    """A name for code that is made from these texts and functions; None if it uses what cannot be named."""
    state = hashlib.sha256(_surroundings())
    for part in (repr(_checks_bounds()), *parts):
        state.update(part.encode() + b"\0")
    seen: set[Any] = set()
    try:
        for function in functions:
            _add_function(state, function, seen)
    except _OpaqueError as error:
        _log.info("code is compiled for one pool only: %s", error)
        return None
    return state.hexdigest()[:20]


@cache
def _surroundings() -> bytes:
    """What all code of this process depends on."""
    versions = [metadata.version("numba"), llvmlite.__version__, np.__version__, platform.python_version()]
    options = [os.environ.get(f"NUMBA_{name}", "") for name in _OPTIONS]
    text = "\0".join([*versions, *options, processor()])
    return text.encode() + b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in _OWN)


def _checks_bounds() -> int | None:
    """Whether numba checks indices: an option that programs, too, may change."""
    loaded = sys.modules.get("numba")
    if loaded is not None:
        return loaded.config.BOUNDSCHECK  # type: ignore[no-any-return]
    given = os.environ.get("NUMBA_BOUNDSCHECK")
    return int(given) if given else None


def globals_of(function: Any) -> Iterator[tuple[str, Any]]:
    """What the names in a function mean that are not its own: globals, names in the functions around it, attributes.

    The attributes are those of modules, and of modules within those, except for modules whose version is known.
    """
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosing = [(name, cell.cell_contents) for name, cell in closure]
    known = function.__globals__
    for code in _codes(function.__code__):
        # A field of the env may have the name of a global that has nothing to do with it.
        loaded = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
        found = [*enclosing, *((name, known[name]) for name in code.co_names if name in loaded and name in known)]
        seen = set()
        while found:
            name, value = found.pop(0)
            yield name, value
            if isinstance(value, ModuleType) and value not in seen and not _is_of_versioned(value.__name__):
                seen.add(value)
                found += [(inner, getattr(value, inner)) for inner in code.co_names if hasattr(value, inner)]


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
    for name, value in [*globals_of(function), ("", function.__defaults__)]:
        state.update(name.encode())
        _add_value(state, value, seen)


def _add_value(state: Any, value: Any, seen: set[Any]) -> None:
    """Add all that a global or constant means to compiled code, in a form that is the same in every process."""
    if isinstance(value, (BuiltinFunctionType, ModuleType)) or _is_versioned(value):
        state.update(f"{getattr(value, '__module__', '')}.{value.__name__}\0".encode())
    elif isinstance(value, FunctionType):
        _add_function(state, value, seen)
    elif _is_jitted(value):
        _add_jitted(state, value, seen)
    elif isinstance(value, type):
        _add_class(state, value, seen)
    elif isinstance(value, Enum):
        _add_class(state, type(value), seen)
        state.update(value.name.encode() + b"\0")
    else:
        _add_data(state, value, seen)


def _is_versioned(value: Any) -> bool:
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _is_of_versioned(module):
        return False
    return getattr(sys.modules.get(module), name, None) is value


def _is_of_versioned(module: str) -> bool:
    return module.partition(".")[0] in _VERSIONED


def _is_jitted(value: Any) -> bool:
    loaded = sys.modules.get("numba.core.dispatcher")
    return loaded is not None and isinstance(value, loaded.Dispatcher)


def _add_jitted(state: Any, value: Any, seen: set[Any]) -> None:
    """Add a function that is compiled already: its code and how it was compiled."""
    _add_function(state, value.py_func, seen)
    for name, option in sorted(value.targetoptions.items()):
        state.update(name.encode())
        _add_value(state, frozenset(option) if isinstance(option, set) else option, seen)
    types_of_locals = sorted((name, repr(kind)) for name, kind in value.locals.items())
    # With signatures of its own it takes no others, and casts to them.
    signatures = [] if value._can_compile else value.nopython_signatures
    state.update(repr((types_of_locals, signatures)).encode())


def _add_class(state: Any, value: Any, seen: set[Any]) -> None:
    state.update(f"{value.__module__}.{value.__qualname__}\0".encode())
    if issubclass(value, Enum):
        _add_data(state, [(member.name, member.value) for member in value], seen)
    elif issubclass(value, tuple) and hasattr(value, "_fields"):
        defaults = value._field_defaults
        _add_data(state, [(name, name in defaults, defaults.get(name)) for name in value._fields], seen)
    elif not issubclass(value, BaseException):
        raise _OpaqueError(f"nothing tells what {value.__qualname__} means to compiled code")


def _add_data(state: Any, value: Any, seen: set[Any]) -> None:
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        state.update(f"{type(value).__name__}{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, (tuple, list)):
        if hasattr(value, "_fields"):
            _add_class(state, type(value), seen)
        state.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _add_value(state, item, seen)
    elif isinstance(value, frozenset):
        state.update(repr(sorted(map(repr, value))).encode())
    elif type(value) in _PLAIN or isinstance(value, np.dtype) or type(value).__module__ == "numba.core.types.scalars":
        state.update(repr(value).encode() + b"\0")
    else:
        raise _OpaqueError(f"nothing tells what {value!r} means to compiled code")
