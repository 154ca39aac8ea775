"""The programs in benchmarks/ refuse what they cannot do, and never take a failure for a result."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def load(program: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(program, FOLDER / f"{program}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("program", "arguments", "told"),
    [
        ("fault_table.py", ["F99"], "there is no case F99; there are F01, F02"),
        ("torchrl_transforms.py", ["--only", "nothing-like-this"], "there are: transforms 8; chess"),
        pytest.param("soak.py", ["--steps", "-5"], "steps must be at least 1, got -5", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_done_is_refused(program: str, arguments: list[str], told: str) -> None:
    ended = run(program, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr


def fail(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(command, 1, "", "Traceback: broken")


def hang(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    raise subprocess.TimeoutExpired(command, 60)


@pytest.mark.parametrize(("outcome", "told"), [(fail, "F01 failed with exit code 1"), (hang, "F01 hangs")])
def test_a_case_that_fails_is_not_written_into_the_page(
    outcome: object, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load("fault_table")
    page = tmp_path / "faults.md"
    page.write_text("as it was")
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(subprocess, "run", outcome)
    monkeypatch.setattr(sys, "argv", ["fault_table.py"])
    with pytest.raises(SystemExit, match=told):
        table.main()
    assert page.read_text() == "as it was"


@pytest.mark.slow
def test_a_library_that_fails_says_why_without_being_asked() -> None:
    ended = run("ding_managers.py", "--rounds", "1", "--kinds", "NoSuchManager")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "what it wrote to stderr tells why" in ended.stderr


TWO_LOOPS = """
import mmap, os
from functools import partial
import numpy as np
from contenders import raw_loops_in_step

class Noting:
    def __init__(self, place):
        self.place, self.steps = place, 0
    def reset(self):
        return 0, {}
    def step(self, action):
        notes[self.place] = 10 * notes[self.place] + action
        self.steps += 1
        return self.steps, 0.0, self.steps % 3 == 0, False, {}
    def close(self):
        pass

notes = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")  # which both processes have
session = raw_loops_in_step(None, [partial(Noting, place) for place in range(5)])
for actions in ([1, 2, 3, 4, 5], [6, 7, 8, 9, 0]):
    session.step(np.array(actions))
print(*notes[:5])
session.close()
try:
    os.wait()
except ChildProcessError:
    print("alone")
"""


def test_two_raw_loops_give_every_env_its_own_action_and_leave_no_process() -> None:
    command = [sys.executable, "-c", TWO_LOOPS]
    ended = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.stdout.split("\n"), ended.stderr) == (["16 27 38 49 50", "alone", ""], "")
