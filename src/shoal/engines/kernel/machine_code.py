"""Machine code that is kept as bytes, and called from Python without its compiler.

Numba takes longer to import than everything else together, and code that has been compiled needs no numba: LLVM alone
can load it. So a unit of code is two object files: the function as numba has compiled it, and a door to it. The
function takes an argument for each of its numbers, one for its result and one for its error, and passing that many
takes ctypes longer than many a step takes. The door takes the address of a block of words that holds them all:

    block[0]    result        block[1]    what went wrong        block[2:]    the arguments
"""

from __future__ import annotations

import ast
import ctypes
import sys
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DOOR = "shoal_door"
_DOOR_TYPE: Any = ctypes.CFUNCTYPE(ctypes.c_int)
_WHOLE_LINE = 10_000
_UNKNOWN = "(unknown)"
_CHECK_BYTES = 32
_SIZE_BYTES = 8
# One entry of the table of symbols in an ELF file.
_SYMBOL = np.dtype([("name", "<u4"), ("kind", "u1"), ("scope", "u1"), ("section", "<u2"), ("place", "<u8", (2,))])


class CodeError(Exception):
    """Kept code cannot be run."""


class MachineCode(NamedTuple):
    """A compiled function, in the form in which it can be kept.

    Attributes:
        function: An object file for this very processor.
        door: The object file of the door to it.
        constants: Objects from which the function makes others, if it does: a dict, packed by numba's serializer.
        owner: Keeps the objects alive whose addresses are in the code, such as large arrays. None if there are none;
            otherwise, the code is good for this process alone.
    """

    function: bytes
    door: bytes
    constants: bytes
    owner: Any = None

    def to_bytes(self) -> bytes:
        """The code as bytes to be kept in a file, unless it has an owner."""
        parts = (self.function, self.door, self.constants)
        rest = b"".join(len(part).to_bytes(_SIZE_BYTES, "little") + part for part in parts)
        return sha256(rest).digest() + rest

    @classmethod
    def from_bytes(cls, kept: bytes) -> MachineCode:
        """The code behind ``to_bytes``.

        Raises:
            CodeError: If the bytes are damaged: what they would do is anybody's guess.
        """
        check, rest = kept[:_CHECK_BYTES], kept[_CHECK_BYTES:]
        if sha256(rest).digest() != check:
            raise CodeError("the check sum is wrong")
        parts = []
        while rest:
            size, rest = int.from_bytes(rest[:_SIZE_BYTES], "little"), rest[_SIZE_BYTES:]
            parts.append(rest[:size])
            rest = rest[size:]
        return cls(*parts)


def door_to(symbol: str, num_arguments: int) -> bytes:
    """The door to a function that numba has compiled under this symbol."""
    words = range(num_arguments)
    loads = "\n".join(
        f"%at{i} = getelementptr i64, ptr %block, i64 {i + 2}\n%word{i} = load i64, ptr %at{i}" for i in words
    )
    parameters = ", ".join(["ptr", "ptr", *("i64" for _ in words)])
    given = ", ".join(["ptr %block", "ptr %trouble", *(f"i64 %word{i}" for i in words)])
    text = f"""
        declare i32 @"{symbol}"({parameters})
        define i32 @{_DOOR}(ptr %block) {{
            %trouble = getelementptr i64, ptr %block, i64 1
            {loads}
            %state = call i32 @"{symbol}"({given})
            ret i32 %state
        }}
    """
    return bytes(_machine().emit_object(llvm.parse_assembly(text)))


def processor() -> str:
    """The processor that code is made for: it runs on no other."""
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


class Function:
    """Machine code, ready to be called.

    Raises:
        CodeError: If it calls something that does not exist.
    """

    def __init__(self, code: MachineCode) -> None:
        function, door = map(llvm.ObjectFileRef.from_data, (code.function, code.door))
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        wanted = list(_wanted(function))
        if _missing(wanted):
            _offer_numba()
        if lacks := [name for name in _missing(wanted) if name != _UNKNOWN]:
            raise CodeError(f"it calls {', '.join(lacks)}, which is nowhere to be found")
        engine.add_object_file(function)
        engine.add_object_file(door)
        engine.finalize_object()
        self._enter: Any = _DOOR_TYPE(engine.get_function_address(_DOOR))
        # The engine owns the memory of the code, so it has to live for as long as anybody may call the code.
        self._enter.owners = [engine, code.owner, *_hand_over(engine, code.constants)]

    def bind(self, *arguments: int) -> Call:
        """A call with these arguments, to be made many times, by one thread at a time."""
        return Call(self._enter, arguments)

    def __call__(self, *arguments: int) -> int:
        """Call it once."""
        return self.bind(*arguments)()


class Call:
    """A function and its arguments.

    Attributes:
        run: Makes the call; nonzero if it has failed. An attribute rather than a method, because a call from Python
            to Python takes as long as the step of an env.
        block: Result, trouble and arguments, which may be changed between calls.
    """

    __slots__ = ("block", "run")

    def __init__(self, enter: Callable[..., int], arguments: tuple[int, ...]) -> None:
        self.block = (ctypes.c_uint64 * (2 + len(arguments)))(0, 0, *arguments)
        self.run: Callable[[], int] = partial(enter, ctypes.byref(self.block))

    def __call__(self) -> int:
        """Make the call, and return the result or raise."""
        if self.run():
            raise self.error()
        return int(self.block[0])

    def error(self) -> BaseException:
        """What the function raised in the call that has just failed, with its line in the traceback."""
        return _error(self.block[1]) if self.block[1] else SystemError("compiled code has failed, and does not say why")


# ------------------------------------------------------------------ LLVM


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def _machine() -> Any:
    """A target machine for this processor, with the options for code that is loaded in place; each engine needs one."""
    target = _target()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def _wanted(part: Any) -> Iterator[str]:
    """The symbols that code expects to find where it is loaded; LLVM ends the process if one is missing.

    For anything but an ELF file, this yields a name that nobody has.
    """
    sections = {section.name(): section.data() for section in part.sections()}
    table, names = sections.get(b".symtab"), sections.get(b".strtab")
    if table is None or names is None:
        yield _UNKNOWN
        return
    for entry in np.frombuffer(table, _SYMBOL)[1:]:
        if entry["section"] == 0:
            yield names[entry["name"] : names.index(b"\0", entry["name"])].decode()


def _missing(names: list[str]) -> list[str]:
    return [name for name in names if llvm.address_of_symbol(name) is None]


def _offer_numba() -> None:
    """Make numba's own functions known by name: those that allocate, print and so on."""
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    rtsys.initialize(cpu_target.target_context)


def _hand_over(engine: Any, constants: bytes) -> Iterator[Any]:
    """Give code the objects from which it makes others, for messages that it puts together and prints."""
    if "numba" not in sys.modules:
        return  # code that does without numba makes none
    from numba.core import serialize
    from numba.core.environment import Environment

    for symbol, values in serialize.loads(constants).items():
        environment = Environment({})
        environment.consts.extend(values)
        ctypes.c_void_p.from_address(engine.get_global_value_address(symbol)).value = id(environment)
        yield environment


# ------------------------------------------------------------------ errors


class _Trouble(ctypes.Structure):
    """How compiled code says what it raises."""

    _fields_ = [
        ("pickled", ctypes.c_void_p),
        ("size", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("box", ctypes.c_void_p),
        ("num_values", ctypes.c_int32),
    ]


def _error(address: int) -> BaseException:
    trouble = _Trouble.from_address(address)
    kept = ctypes.string_at(trouble.pickled, trouble.size)
    # Numba has packed the error, and knows how to unpack it.
    from numba.core import serialize

    if trouble.num_values:  # some of its arguments were not known before the code ran
        box = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(trouble.box)
        kind, arguments, place = serialize.runtime_build_excinfo_struct(kept, box(trouble.values))
    else:
        kind, arguments, place = serialize.loads(kept)
    error: BaseException = _own_class(kind or RuntimeError)(*arguments)
    return error if place is None else _raised_at(error, *place)


def _own_class(kind: type[BaseException]) -> type[BaseException]:
    """The class that this process has under the name of the given one, so that ``except`` knows it.

    A class of the main program is kept as a whole in the code, and unpacking it makes another class.
    """
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else kind


def _raised_at(error: BaseException, function: str, file: str, line: int) -> BaseException:
    """The error as if Python had raised it in the author's own line."""
    tree = ast.parse("raise error")
    for node in ast.walk(tree):
        # The whole line, or Python would underline the part that these two words take up.
        vars(node).update(lineno=line, end_lineno=line, col_offset=0, end_col_offset=_WHOLE_LINE)
    code = compile(tree, file, "exec").replace(co_name=function)
    try:
        exec(code, {"error": error})  # noqa: S102 - two words of our own
    except BaseException:
        traceback = sys.exc_info()[2]
    return error.with_traceback(traceback.tb_next if traceback else None)
