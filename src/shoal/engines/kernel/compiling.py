"""From a kind of kernel env to machine code, kept on disk for the next start.

The author's functions, and the plain functions they call, are compiled into the batch loop of their kind
(``source``). The loop's file is named by a digest of everything that goes into it, so a change anywhere gives
another file, and numba's own cache beside it can be trusted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from gymnasium.spaces import Dict
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.engines.kernel import bells, random
from shoal.engines.kernel.explaining import explain
from shoal.engines.kernel.source import loop_source
from shoal.errors import SpecError
from shoal.kernel import KernelEnv, leaves_tuple

if TYPE_CHECKING:
    from shoal.spec import EnvSpec

_log = logging.getLogger("shoal")

Run = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any], int, int, int], None]

Serve = Callable[[np.ndarray[Any, Any], int, int], None]

_RUN = types.void(types.uint64[::1], types.int32[::1], types.int64, types.int64, types.int64)
_SERVE = types.void(types.int64[::1], types.int64, types.int64)


@dataclass(frozen=True)
class Kernel:
    """The compiled loops of one kind.

    Attributes:
        step_rows: ``run(table, ids, start, stop, slot)`` steps rows ``ids[start:stop]``.
        reset_rows: The same for resets.
        serving: Compiles, or loads, ``serve(bell, slot, looks)``, which steps slices as its bell is rung.
    """

    step_rows: Run
    reset_rows: Run
    serving: Callable[[], Serve]


def compile_kernel(kind: KernelEnv, spec: EnvSpec) -> Kernel:
    """Compile a kind, or load what an earlier process has compiled.

    Raises:
        SpecError: If numba cannot compile it; the text points at the author's line.
    """
    source = loop_source(spec)
    functions = {"reset": kind.reset, "step": kind.step}
    path = _source_file(f"{type(kind).__name__}_{_digest(kind, source, functions.values())}.py", source)
    jitted = _Jitted()
    # What numba has put on disk refers to its module by name, so the module has to be known by one.
    module = sys.modules[f"shoal_kernel_{path.stem}"] = ModuleType(f"shoal_kernel_{path.stem}")
    parts = {
        "RECORD": kind.record_dtype(),
        "rng_at": random.rng_at,
        "pointer": pointer,
        **{name: getattr(bells, name) for name in bells.NAMES},
        "Obs": leaves_tuple(kind.observation_space, "Obs"),
        "Action": leaves_tuple(kind.action_space, "Action"),
        **{name: jitted.of(function) for name, function in functions.items()},
    }
    vars(module).update(parts)
    exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - our own text, from names that were checked
    try:
        return _kernel(module, cached=path.exists())
    except Exception:
        explain(kind, spec, jitted.of)
        # The author's functions are sound, so it was the cache: full, damaged or forbidden. That costs time, no more.
        _log.warning("compiling %s without the cache in %s", type(kind).__name__, path.parent, exc_info=True)
        return _kernel(module, cached=False)


def _kernel(module: Any, *, cached: bool) -> Kernel:
    plain_step, plain_serve = module.step_rows, module.serve_rows
    step, reset = (_compiled(loop, _RUN, cached=cached) for loop in (plain_step, module.reset_rows))

    def serving() -> Serve:
        module.step_rows = numba.njit(nogil=True, error_model="numpy")(plain_step)
        try:
            serve: Serve = _compiled(plain_serve, _SERVE, cached=cached)
        except Exception:
            _log.warning("compiling %s without its cache", module.__name__, exc_info=True)
            serve = _compiled(plain_serve, _SERVE, cached=False)
        return serve

    return Kernel(step, reset, serving)


def _compiled(function: Any, signature: Any, *, cached: bool) -> Any:
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    if cached:
        dispatcher.enable_caching()
    dispatcher.compile(signature)
    # The dispatcher itself would look at the types of the arguments again on every call.
    return dispatcher.overloads[signature.args].entry_point


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """An address as a pointer to anything."""

    def cast(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), cast


class _Jitted:
    """Jitted versions of plain functions and of all the plain functions they refer to."""

    def __init__(self) -> None:
        self._done: dict[FunctionType, Any] = {}

    def of(self, function: Any) -> Any:
        if function not in self._done:
            # The same code in another place: the names of plain functions mean their jitted versions there.
            names = dict(function.__globals__)
            cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
            twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
            # Inlined: a call hands over every array as seven words, which takes longer than many a step.
            self._done[function] = numba.njit(error_model="numpy", forceinline=True)(twin)
            names.update(
                {
                    name: self.of(value)
                    for name, value in _globals_of(function)
                    if isinstance(value, FunctionType) and function.__globals__.get(name) is value
                }
            )
        return self._done[function]

    def _cell(self, cell: CellType) -> CellType:
        value = cell.cell_contents
        return CellType(self.of(value)) if isinstance(value, FunctionType) else cell


def _globals_of(function: Any) -> Iterator[tuple[str, Any]]:
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


# ------------------------------------------------------------------ the file and its name


def _digest(kind: KernelEnv, source: str, functions: Any) -> str:
    state = hashlib.sha256()
    versions = [numba.__version__, np.__version__, platform.python_version()]
    spaces = [repr(list(space)) for space in (kind.observation_space, kind.action_space) if isinstance(space, Dict)]
    parts = [*versions, repr(numba.config.BOUNDSCHECK), source, repr(kind.record_dtype()), *spaces]
    for part in parts:
        state.update(part.encode())
    for file in (__file__, random.__file__, bells.__file__):
        state.update(Path(file).read_bytes())
    seen: set[Any] = set()
    for function in functions:
        _add_function(state, function, seen)
    return state.hexdigest()[:20]


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
    for name, value in [*_globals_of(function), *cells, ("", function.__defaults__)]:
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


def _source_file(name: str, source: str) -> Path:
    """The file of this name, written if it is not there yet. It is never written twice: numba looks at its date."""
    path = cache_folder() / name
    if not path.exists():
        try:
            with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp") as file:
                file.write(source)
                file.flush()
                os.link(file.name, path)
        except FileExistsError:
            pass  # another process was first, with the same text
        except OSError:
            _log.info("no file can be kept in %s", path.parent, exc_info=True)
    return path


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``$SHOAL_CACHE_DIR``, else ``shoal/kernels`` in the user's cache folder."""
    root = os.environ.get("SHOAL_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(root) if root else base / "shoal" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # a home that cannot be written to: the code is kept for this user until the next boot
    folder = Path(tempfile.gettempdir()) / f"shoal-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SpecError(f"{folder} belongs to someone else; set SHOAL_CACHE_DIR to a folder of your own")
    return folder
