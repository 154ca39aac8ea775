"""Explains why an env cannot be compiled, in terms of its author's own lines.

If the batch loop fails to compile, the author's functions are compiled on their own, so that the error is about them
and not about the loop around them.
"""

from __future__ import annotations

import dis
import re
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import numba
from numba import types

from shoal.engines.kernel.random import RngType
from shoal.errors import SpecError
from shoal.kernel import KernelEnv, leaves_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.spec import EnvSpec, SpaceTree

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_UNKNOWN_NAME = re.compile(r"name '(\w+)' is not defined")
_NAMING = {"LOAD_ATTR", "STORE_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"}


def explain(kind: KernelEnv, spec: EnvSpec, jitted: Callable[[Any], Any]) -> None:
    """Raise ``SpecError`` if ``reset`` or ``step`` cannot be compiled on its own, or returns the wrong thing."""
    record, rng = numba.from_dtype(kind.record_dtype()), RngType()
    obs = _argument(spec.observation, leaves_tuple(kind.observation_space, "Obs"), written=True)
    action = _argument(spec.action, leaves_tuple(kind.action_space, "Action"), written=False)
    for name, arguments in (("reset", (record, rng, obs)), ("step", (record, action, rng, obs))):
        function = getattr(kind, name)
        dispatcher = jitted(function)
        try:
            dispatcher.compile(arguments)
        except KeyError as error:
            # numba's way of saying that a record has no such field.
            field = error.args[0]
            raise SpecError(
                f"{type(kind).__name__}.{name}: env has no field {field!r}; "
                f"it has {list(kind.record_dtype().names or ())}{_place(function, field)}"
            ) from None
        except Exception as error:
            told = _readable(error)
            if 'File "' not in told:
                unknown = _UNKNOWN_NAME.search(told)
                told += _place(function, unknown[1]) if unknown else _start(function.__code__)
            raise SpecError(f"{type(kind).__name__}.{name} cannot be compiled:\n{told}") from None
        result = dispatcher.overloads[arguments].signature.return_type
        if name == "step" and not _is_outcome(result):
            raise SpecError(
                f"{type(kind).__name__}.step must return (reward, terminated), it returns {result}"
                f"{_start(function.__code__)}"
            )


def _is_outcome(result: Any) -> bool:
    if not isinstance(result, types.BaseTuple) or len(result) != 2:
        return False
    reward, terminated = (types.unliteral(part) for part in result)
    return isinstance(reward, (types.Number, types.Boolean)) and isinstance(terminated, (types.Boolean, types.Integer))


def _argument(tree: SpaceTree, group: Any, *, written: bool) -> Any:
    """The numba type of an observation or action."""
    leaves = []
    for leaf in tree.leaves:
        scalar, ndim = numba.from_dtype(leaf.dtype), len(leaf.shape) or int(written)
        leaves.append(types.Array(scalar, ndim, "C") if ndim else scalar)
    if group is None:
        return leaves[0]
    return types.BaseTuple.from_types(leaves, None if group is tuple else group)


def _readable(error: Exception) -> str:
    """The text of an error without colours, and without the lines about numba's own calls."""
    lines = _COLOURS.sub("", str(error)).splitlines()
    return "\n".join(line for line in lines if not line.startswith("During:")).strip()


def _start(code: CodeType) -> str:
    return f" ({code.co_filename}, line {code.co_firstlineno})"


def _place(function: Any, name: str) -> str:
    """Where a function, or one that it calls, first uses an attribute or a global name."""
    for code in _codes(function, set()):
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = instruction.starts_line or line
            if instruction.opname in _NAMING and instruction.argval == name:
                return f" ({code.co_filename}, line {line})"
    return _start(function.__code__)


def _codes(function: Any, seen: set[Any]) -> Iterator[CodeType]:
    seen.add(function)
    yield function.__code__
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, FunctionType) and called not in seen:
            yield from _codes(called, seen)
