"""Envs written in JAX, in a process of their own: a process that has imported JAX can no longer fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("jax_env_cases.py")


@pytest.mark.timeout(300)  # where Brax, gymnax and Jumanji are installed, they compile for minutes
def test_envs_written_in_jax() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
