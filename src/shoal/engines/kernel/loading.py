"""Compiled functions: found on the shelf, or else compiled and, if another process can use them, put there.

Only what is not on the shelf needs numba, which takes longer to import than a pool takes to start without it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.spaces import Dict

from shoal.engines.kernel import shelf
from shoal.engines.kernel.digest import digest_of
from shoal.engines.kernel.machine_code import CodeError, Function, MachineCode
from shoal.engines.kernel.source import loop_source

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from shoal.engines.kernel.compiling import KindCompiler
    from shoal.kernel import KernelEnv
    from shoal.spec import EnvSpec

_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Kernel:
    """The compiled loops of one kind.

    Attributes:
        step_rows: ``step_rows(table, ids, start, stop, slot)`` steps rows ``ids[start:stop]``; arrays by address.
        reset_rows: The same for resets.
        serving: Loads ``serve_rows(bell, slot, looks)``, which steps a slice whenever its bell rings.
    """

    step_rows: Function
    reset_rows: Function
    serving: Callable[[], Function]


def load_kernel(kind: KernelEnv, spec: EnvSpec) -> Kernel:
    """The loops of a kind.

    Raises:
        SpecError: If numba cannot compile it; the text points at the author's line.
    """
    code = _KindCode(kind, spec)
    return Kernel(code.load("step_rows"), code.load("reset_rows"), cache(partial(code.load, "serve_rows")))


def load_function(
    module: str, name: str, dtype: np.dtype[Any] | None = None, *, numbers_of: str | None = None
) -> Function:
    """A compiled function, made for a dtype if it depends on one; its module is imported only to compile it.

    ``numbers_of`` is another module, the numbers of which are in the code.
    """

    def compiled() -> MachineCode:
        from shoal.engines.kernel.compiling import compile_function

        function = getattr(import_module(module), name)
        return compile_function(function if dtype is None else function(dtype))

    suffix = "" if dtype is None else f"_{dtype.name}"
    texts = [_text_of(part) for part in (module, numbers_of) if part is not None]
    return _loaded(name + suffix, digest_of(*texts, suffix), compiled)


def own_function(name: str, dtype: np.dtype[Any] | None = None) -> Function:
    """One of the functions in ``own_code``."""
    return load_function("shoal.engines.kernel.own_code", name, dtype)


def _text_of(module: str) -> str:
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no file of {module}")
    return Path(found.origin).read_text("utf-8")


def kind_digest(kind: KernelEnv, source: str) -> str | None:
    """A name for the code of a kind; None if it uses what cannot be named."""
    spaces = [repr(list(space)) for space in (kind.observation_space, kind.action_space) if isinstance(space, Dict)]
    return digest_of(source, repr(kind.record_dtype()), *spaces, functions=(kind.reset, kind.step))


class _KindCode:
    """The code of one kind, by the names of its loops."""

    def __init__(self, kind: KernelEnv, spec: EnvSpec) -> None:
        self._kind, self._spec = kind, spec
        self._source = loop_source(spec)
        self._digest = kind_digest(kind, self._source)

    def load(self, loop: str) -> Function:
        return _loaded(f"{type(self._kind).__name__}_{loop}", self._digest, lambda: self._compiler.compile(loop))

    @cached_property
    def _compiler(self) -> KindCompiler:
        from shoal.engines.kernel.compiling import KindCompiler

        return KindCompiler(self._kind, self._spec, self._source)


def _loaded(name: str, digest: str | None, compile_it: Callable[[], MachineCode]) -> Function:
    if digest is None:
        return Function(compile_it())
    file = f"{name}_{digest}.code"
    kept = shelf.find(file)
    if kept is not None:
        try:
            return Function(MachineCode.from_bytes(kept))
        except CodeError as error:
            _log.warning("compiling %s anew, since %s cannot be used: %s", name, shelf.cache_folder() / file, error)
    code = compile_it()
    if code.owner is None:
        shelf.keep(file, code.to_bytes())
    return Function(code)
