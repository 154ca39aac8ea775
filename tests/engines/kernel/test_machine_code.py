"""Machine code: called as it was compiled, kept as bytes, with errors that say where they come from."""

from __future__ import annotations

import gc
import subprocess
import sys
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from shoal.engines.kernel.compiling import compile_function as compiled  # noqa: E402
from shoal.engines.kernel.loading import load_function  # noqa: E402
from shoal.engines.kernel.machine_code import CodeError, Function, MachineCode  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def divided(a: int, b: int) -> int:
    if b == 0:
        raise ZeroDivisionError("b: expected a number that is not zero")
    return a // b


def added(a: int, b: int) -> int:
    return a + b


def told(a: int, b: int) -> int:
    if b < 0:
        raise ValueError("b", b, "beside a", a)
    return a


def allocating(a: int, b: int) -> int:
    return int(np.arange(a).sum() + b)


SMALL = np.arange(9)
LARGE = np.arange(200_000)  # numba writes the address of such an array into the code
STRIDED = np.arange(9)[::2]


def looked_up_small(i: int) -> int:
    return SMALL[i]  # type: ignore[no-any-return]


def looked_up_large(i: int) -> int:
    return LARGE[i]  # type: ignore[no-any-return]


def looked_up_strided(i: int) -> int:
    return STRIDED[i]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("size", "is_kept"), [("small", True), ("large", False), ("strided", False)])
def test_code_with_addresses_in_it_is_not_kept_for_other_processes(
    size: str, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        assert load_function(__name__, f"looked_up_{size}")(3) == (6 if size == "strided" else 3)
        assert bool(list(tmp_path.iterdir())) == is_kept


def test_an_array_lives_for_as_long_as_the_code_that_reads_it() -> None:
    def reader_of(table: Any) -> Any:
        def looked_up(i: int) -> int:
            return table[i]  # type: ignore[no-any-return]

        return looked_up

    table = np.arange(200_000)
    gone = weakref.ref(table)
    function = Function(compiled(reader_of(table)))
    del table
    gc.collect()
    assert function(7) == 7
    assert gone() is not None
    del function
    gc.collect()
    assert gone() is None


def test_a_function_is_called_with_numbers_and_gives_back_one() -> None:
    function = Function(compiled(divided))
    assert function(14, 3) == 4
    assert function(7, 7) == 1


def test_a_call_may_be_made_again_with_other_arguments() -> None:
    call = Function(compiled(divided)).bind(14, 3)
    assert (call(), call()) == (4, 4)
    call.block[3] = 7
    assert call() == 2
    assert call.run() == 0


def test_doors_of_one_name_lead_to_their_own_functions() -> None:
    first, second = Function(compiled(divided)), Function(compiled(added))
    assert (first(9, 3), second(9, 3), first(8, 4)) == (3, 12, 2)


def test_a_call_outlives_the_function_it_is_of() -> None:
    call = Function(compiled(divided)).bind(21, 7)
    others = [Function(compiled(added)) for _ in range(3)]
    assert call() == 3
    assert len(others) == 3


def test_an_error_has_its_text_and_its_line() -> None:
    with pytest.raises(ZeroDivisionError, match="b: expected a number that is not zero") as caught:
        Function(compiled(divided))(1, 0)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, "divided")
    assert last.line == 'raise ZeroDivisionError("b: expected a number that is not zero")'


def test_an_error_may_hold_what_was_not_known_before() -> None:
    function = Function(compiled(told, counts=True))
    for b in (-3, -4):
        with pytest.raises(ValueError, match="beside a") as caught:
            function(5, b)
        assert caught.value.args == ("b", b, "beside a", 5)
    assert function(5, 1) == 5


def test_a_call_goes_on_after_an_error() -> None:
    call = Function(compiled(divided)).bind(6, 0)
    with pytest.raises(ZeroDivisionError):
        call()
    call.block[3] = 2
    assert call() == 3


def test_bytes_are_the_code() -> None:
    code = compiled(divided)
    again = MachineCode.from_bytes(code.to_bytes())
    assert again == code
    assert Function(again)(12, 4) == 3


@pytest.mark.parametrize("damage", [slice(0, 0), slice(0, 10), slice(0, 60), slice(1, None), slice(0, -1)])
def test_damaged_bytes_are_refused(damage: slice) -> None:
    with pytest.raises(CodeError, match="check sum"):
        MachineCode.from_bytes(compiled(divided).to_bytes()[damage])


def test_a_byte_that_has_changed_is_noticed() -> None:
    kept = bytearray(compiled(divided).to_bytes())
    kept[len(kept) // 2] ^= 1
    with pytest.raises(CodeError):
        MachineCode.from_bytes(bytes(kept))


PROGRAM = """
import sys
from pathlib import Path
from shoal.engines.kernel.machine_code import Function, MachineCode

function = Function(MachineCode.from_bytes(Path(sys.argv[1]).read_bytes()))
print(function(5, 2), "numba" in sys.modules)
try:
    print(function(5, int(sys.argv[2])))
except Exception as error:
    print(type(error).__name__, *error.args)
"""


@pytest.mark.parametrize(
    ("function", "counts", "b", "printed"),
    [
        (divided, False, 0, "2 False\nZeroDivisionError b: expected a number that is not zero\n"),
        (allocating, True, 3, "12 True\n13\n"),
        (told, True, -1, "5 True\nValueError b -1 beside a 5\n"),
    ],
    ids=["needs nothing", "allocates", "puts a message together"],
)
def test_another_process_needs_numba_only_for_what_numba_does(
    function: Any, counts: bool, b: int, printed: str, tmp_path: Path
) -> None:
    path = tmp_path / "kept.code"
    path.write_bytes(compiled(function, counts=counts).to_bytes())
    command = [sys.executable, "-c", PROGRAM, str(path), str(b)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr


MAIN = """
from __future__ import annotations
import sys
from pathlib import Path
from shoal.engines.kernel.machine_code import Function, MachineCode

class Aground(Exception):
    pass

def told(a: int) -> int:
    if a < 0:
        raise Aground("aground")
    return a

path = Path(sys.argv[1])
if not path.exists():
    from shoal.engines.kernel.compiling import compile_function

    path.write_bytes(compile_function(told).to_bytes())
try:
    Function(MachineCode.from_bytes(path.read_bytes()))(-1)
except Aground:
    print("known")
"""


def test_an_exception_of_the_main_program_is_known_to_it_in_later_processes_as_well(tmp_path: Path) -> None:
    for _ in range(2):
        command = [sys.executable, "-c", MAIN, str(tmp_path / "kept.code")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "known\n", done.stderr


def test_memory_is_given_back() -> None:
    """A pool that is closed takes its code with it; otherwise a sweep over many pools would fill the memory."""
    psutil = pytest.importorskip("psutil")
    code = compiled(divided)

    def grown_by(count: int) -> int:
        before = psutil.Process().memory_info().rss
        for _ in range(count):
            Function(code)(4, 2)
        return int(psutil.Process().memory_info().rss - before)

    grown_by(50)
    assert grown_by(400) < 400 * 4096, "less than a page for each"
