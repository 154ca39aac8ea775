"""``shoal doctor`` as it is typed, on machines that are short of something."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from shoal.cli import doctor as command
from shoal.cli.app import app
from shoal.doctor import Diagnosis, env, race

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typer.testing import Result

SHOAL = (sys.executable, "-m", "shoal")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_TURN_S", 0.01)
    monkeypatch.setattr(env, "_MEASURE_S", 0.02)


def shoal_doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def under(
    limits: Mapping[int, int], *arguments: str, variables: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """The exit code and the findings about the machine of ``shoal doctor`` in a process with these limits."""

    def limit() -> None:
        for which, value in limits.items():
            resource.setrlimit(which, (value, value))

    done = subprocess.run(
        [*SHOAL, "doctor", "--json", *arguments],
        preexec_fn=limit,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
    )
    told = json.loads(done.stdout)
    return done.returncode, {finding["topic"]: finding for finding in told["machine"]}


@pytest.mark.slow
def test_few_open_files_are_a_warning() -> None:
    code, found = under({resource.RLIMIT_NOFILE: 64})
    told = found["open files"]
    assert (code, told["verdict"]) == (0, "warning")
    assert "64 (hard limit 64)" in told["found"]
    # Seven descriptors each, of what the pool itself and whoever started it leave of the 64.
    assert re.search(r"room for [3-6] workers, 7 each", told["found"])
    assert "--ulimit nofile=" in told["fix"]
    assert found["workers, forkserver"]["verdict"] == "ok"


@pytest.mark.slow
def test_too_few_open_files_are_a_problem() -> None:
    code, found = under({resource.RLIMIT_NOFILE: 14})
    assert (code, found["open files"]["verdict"]) == (1, "problem")
    assert "nofile" in found["open files"]["fix"]
    told = found["workers, forkserver"]
    assert told["verdict"] == "problem"
    assert "Too many open files" in told["found"]
    assert "engine='serial'" in told["fix"]


@pytest.mark.slow
def test_little_address_space_is_told() -> None:
    _, found = under({resource.RLIMIT_AS: 2 << 30})
    assert found["address space"]["verdict"] == "warning"
    assert "ulimit -v" in found["address space"]["fix"]


@pytest.mark.slow
def test_a_folder_for_temporary_files_with_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    folder.mkdir(parents=True)
    code, found = under({}, variables={"TMPDIR": str(folder)})
    told = found["workers, forkserver"]
    assert (code, told["verdict"]) == (1, "problem")
    assert "TMPDIR" in told["fix"]


@pytest.mark.slow
def test_variables_for_threads_and_a_cache_that_cannot_be_written_to() -> None:
    # The folder that is taken instead is a temporary one; the path of pytest's own is too long for sockets.
    with tempfile.TemporaryDirectory() as folder:
        no_cache = {"SHOAL_CACHE_DIR": "/proc/no/such/folder", "TMPDIR": folder}
        code, found = under({}, variables={"OMP_NUM_THREADS": "3", **no_cache})
    assert code == 0
    assert found["library threads"]["found"].startswith("OMP_NUM_THREADS=3")
    assert found["compiled envs"]["verdict"] == "warning"
    assert "SHOAL_CACHE_DIR" in found["compiled envs"]["fix"]


@pytest.mark.slow
def test_json_is_all_there_is_on_stdout_whatever_the_env_prints(tmp_path: Path) -> None:
    (tmp_path / "loud_env_of_a_test.py").write_text(
        "from shoal.testing import CountingEnv\ndef make():\n    print('LOUD', flush=True)\n    return CountingEnv()\n"
    )
    command = [*SHOAL, "doctor", "loud_env_of_a_test:make", "-n", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["name"], told["problems"]) == (0, "loud_env_of_a_test:make", 0), told
    assert "LOUD" in done.stderr
    assert done.stderr.replace("LOUD", "").strip() == ""
    assert {"topic", "verdict", "found", "fix"} == set(told["env"][0])


@pytest.mark.slow
def test_findings_as_lines() -> None:
    result = shoal_doctor("CartPole-v1", "-n", "2", "--quiet")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "This machine"
    assert "CartPole-v1" in lines
    assert any(line.startswith("✓ repeatable ") for line in lines)
    assert any(line.startswith("✓ engine='auto' ") and "takes kernel" in line for line in lines)
    assert lines[-1] == "shoal check CartPole-v1 looks at whether the env keeps its contract."
    assert result.stderr == ""


def test_a_problem_comes_with_its_fix_and_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ill_env_of_a_test.py").write_text("def make():\n    raise ValueError('no level')\n")
    monkeypatch.chdir(tmp_path)
    result = shoal_doctor("ill_env_of_a_test:make")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("✗ in a worker"))
    assert "ValueError: no level" in lines[at]
    assert lines[at + 1].strip().startswith("fix: shoal run ill_env_of_a_test:make")
    assert "2 problems" in result.stdout


def test_what_is_no_env_is_exit_code_2_before_the_machine_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "examine_machine", lambda **options: pytest.fail("too early"))
    result = shoal_doctor("NoSuchEnv-v0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("shoal: env: ")


@pytest.mark.parametrize("is_dangerous", [True, False])
def test_an_env_that_is_dangerous_is_not_recommended_for_a_check(
    is_dangerous: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Diagnosis("in a worker", "problem", "the worker process is gone")]
    found += [] if is_dangerous else [Diagnosis("in this process", "ok", "built")]
    command._print_findings("mine:Env", {"env": found})
    assert ("shoal check mine:Env" in capsys.readouterr().out) is not is_dangerous


def test_help_has_examples_and_every_option() -> None:
    text = shoal_doctor("--help").stdout
    assert "shoal doctor CartPole-v1" in text
    for option in ("num-envs", "num-workers", "thorough", "json", "quiet", "debug"):
        assert f"--{option}" in text


@pytest.mark.slow
def test_on_a_terminal_there_are_marks_in_colour_and_what_is_going_on() -> None:
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    running = subprocess.Popen([*SHOAL, "doctor"], stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    try:
        shown = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux's way to say that the other end of a terminal is closed
                break
            if not part:
                break
            shown += part
        running.wait(timeout=15)
    finally:
        os.close(ours)
        running.kill()
        running.wait()
    text = shown.decode()
    assert "examining: worker processes" in text
    assert "\x1b[32m✓" in text
    assert text.rindex("examining") < text.index("This machine")
