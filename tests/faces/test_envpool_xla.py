"""``xla()``, in a process of its own: a process that has imported JAX can no longer fork, and other tests do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("xla_cases.py")


@pytest.mark.slow
def test_pools_inside_compiled_jax_code() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr
