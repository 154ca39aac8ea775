"""Standard streams that cannot take all that a command writes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

RUN = ("run", "CartPole-v1", "-n", "2", "--steps", "40", "--engine", "serial", "--quiet")
CLOSED = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'shoal', *sys.argv[1:]])"


def shoal(
    *arguments: str, before: tuple[str, ...] = ("-m", "shoal"), stdout: Any = subprocess.PIPE, **variables: str
) -> tuple[int, str, str]:
    command, environment = [sys.executable, *before, *arguments], {**os.environ, "PYTHONUNBUFFERED": "", **variables}
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    return done.returncode, done.stdout or "", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [RUN, ("--version",)], ids=["run", "version"])
def test_a_closed_stdout_is_told_in_one_line(arguments: tuple[str, ...]) -> None:
    code, out, err = shoal(*arguments, before=("-c", CLOSED))
    assert (code, out) == (2, "")
    assert err == "shoal: stdout is closed, so there is nowhere to write the result to\n"


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [RUN, (*RUN, "--json"), ("--help",), ("doctor", "-q")], ids=lambda a: a[-1])
def test_a_full_stdout_is_told_in_one_line(arguments: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        code, _, err = shoal(*arguments, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert (code, err) == (2, "shoal: stdout cannot be written to (No space left on device)\n")


@pytest.mark.slow
def test_a_reader_that_is_gone_is_no_error_to_tell() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, _, err = shoal(*RUN, stdout=writer)
    finally:
        os.close(writer)
    assert (code, err) == (1, "")


@pytest.mark.slow
def test_letters_that_the_encoding_lacks_are_written_as_others() -> None:
    code, out, err = shoal(*RUN, PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert "2 x CartPole-v1" in out
    code, out, err = shoal("doctor", "-q", PYTHONIOENCODING="ascii")
    assert (code in (0, 1), err, "+ python" in out) == (True, "", True)
