"""From Python to machine code, by numba.

An author's functions, and the plain functions they call, are compiled into the batch loops of their kind
(``source``). The results are functions of addresses and numbers, as bytes (``machine_code``).
"""

from __future__ import annotations

import logging
from functools import cache
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import numba
from numba import types
from numba.core import serialize

from shoal.engines.kernel import bells, intrinsics, random
from shoal.engines.kernel.digest import globals_of
from shoal.engines.kernel.explaining import explain
from shoal.engines.kernel.machine_code import MachineCode, door_to
from shoal.kernel import KernelEnv, leaves_tuple

if TYPE_CHECKING:
    from shoal.spec import EnvSpec

_log = logging.getLogger("shoal")


class KindCompiler:
    """Compiles the loops of one kind."""

    def __init__(self, kind: KernelEnv, spec: EnvSpec, source: str) -> None:
        self._kind, self._spec, self._source = kind, spec, source

    def compile(self, loop: str) -> MachineCode:
        """One of the loops, by its name in the source.

        Raises:
            SpecError: If numba cannot compile it; the text points at the author's line.
        """
        try:
            return self._compiled(loop, counts=False)
        except Exception:
            # Perhaps the author's functions allocate memory; perhaps it is something else.
            _log.debug("%s of %r cannot do without counts of references", loop, self._kind, exc_info=True)
        try:
            return self._compiled(loop, counts=True)
        except Exception:
            explain(self._kind, self._spec, _Jitted().of)
            raise

    def _compiled(self, loop: str, *, counts: bool) -> MachineCode:
        names = self._names(counts)
        function = names[loop]
        if loop == "serve_rows":
            stepping = numba.njit(nogil=True, error_model="numpy")(names["step_rows"])
            function = FunctionType(function.__code__, {**names, "step_rows": stepping}, loop)
        return compile_function(function, counts=counts)

    @cache  # noqa: B019 - a compiler lives for as long as its kind is being compiled
    def _names(self, counts: bool) -> dict[str, Any]:
        """The source's globals; the author's functions are jitted anew for code that counts references."""
        kind, jitted = self._kind, _Jitted()
        names: dict[str, Any] = {
            "__name__": f"shoal_kernel_{type(kind).__name__}",
            "RECORD": kind.record_dtype(),
            "rng_at": random.rng_at,
            **{name: getattr(intrinsics, name) for name in intrinsics.NAMES},
            **{name: getattr(bells, name) for name in bells.NAMES},
            "Obs": leaves_tuple(kind.observation_space, "Obs"),
            "Action": leaves_tuple(kind.action_space, "Action"),
            "reset": jitted.of(kind.reset),
            "step": jitted.of(kind.step),
        }
        exec(compile(self._source, f"<loops of {type(kind).__name__}>", "exec"), names)  # noqa: S102 - our own text
        return names


def compile_function(function: Any, *, counts: bool = False) -> MachineCode:
    """Compile a function of integers, and of addresses in parameters named ``*_at``, together with what it calls.

    The function returns nothing, or an integer if it is annotated so. Code that counts references can allocate, but
    needs numba wherever it is loaded. So would the wrappers through which Python and C call code: there are none.
    """
    code = function.__code__
    words = [types.uint64 if name.endswith("_at") else types.int64 for name in code.co_varnames[: code.co_argcount]]
    signature = (types.int64 if function.__annotations__.get("return") == "int" else types.void)(*words)
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": counts}
    dispatcher = numba.njit(nogil=True, error_model="numpy", **options)(function)
    dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature.args]
    _, _, (machine_code, _) = compiled.library.serialize_using_object_code()
    door = door_to(compiled.fndesc.llvm_func_name, len(words))
    constants = {known.env_name: known.consts for known in compiled._find_referenced_environments()}
    # Numba writes the addresses of some globals into the code; the dispatcher keeps all globals alive.
    owner = dispatcher if compiled.library.has_dynamic_globals else None
    return MachineCode(bytes(machine_code), door, serialize.dumps(constants), owner)


class _Jitted:
    """Jitted versions of plain functions and of all the plain functions they refer to."""

    def __init__(self) -> None:
        self._done: dict[FunctionType, Any] = {}

    def of(self, function: Any) -> Any:
        if function not in self._done:
            # The same code with globals of its own, in which the names of plain functions mean their jitted versions.
            names = dict(function.__globals__)
            cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
            twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
            # Inlined: a call passes every array as seven words, which takes longer than many a step.
            self._done[function] = numba.njit(error_model="numpy", forceinline=True)(twin)
            names.update(
                {
                    name: self.of(value)
                    for name, value in globals_of(function)
                    if isinstance(value, FunctionType) and function.__globals__.get(name) is value
                }
            )
        return self._done[function]

    def _cell(self, cell: CellType) -> CellType:
        value = cell.cell_contents
        return CellType(self.of(value)) if isinstance(value, FunctionType) else cell
