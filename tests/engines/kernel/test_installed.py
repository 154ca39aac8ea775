"""Whether numba is there: found out once, and then known without importing it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("numba")

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
from shoal.engines.kernel.installed import has_numba
print(has_numba(), "numba" in sys.modules)
"""


def asked(folder: Path, first: str = "") -> str:
    """What a new process says, and whether it had to import numba, after some lines of preparation."""
    done = subprocess.run(
        [sys.executable, "-c", first + PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "SHOAL_CACHE_DIR": str(folder)},
    )
    return done.stdout.strip()


def test_numba_is_imported_once_and_then_known(tmp_path: Path) -> None:
    assert asked(tmp_path) == "True True"
    assert asked(tmp_path) == "True False"


def test_another_numba_is_looked_at_for_itself(tmp_path: Path) -> None:
    assert asked(tmp_path / "cache") == "True True"
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('not made for this numpy')")
    other = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    assert asked(tmp_path / "cache", other) == "False False"


def test_a_numba_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert asked(tmp_path) == "True True"
    assert asked(tmp_path, "import sys; sys.modules['numba'] = None\n") == "False True"
