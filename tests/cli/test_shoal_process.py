"""The ``shoal`` command in a process of its own, ended in its own time or by Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from trainer_processes import assert_gone

if TYPE_CHECKING:
    from pathlib import Path

SHOAL = (sys.executable, "-m", "shoal")


@pytest.mark.slow
def test_json_on_stdout_and_nothing_else() -> None:
    command = [*SHOAL, "run", "CartPole-v1", "--num-envs", "4", "--steps", "2000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["steps"] >= 2000


@pytest.mark.parametrize("engine", ["serial", pytest.param("process", marks=pytest.mark.slow)])
def test_json_is_all_there_is_on_stdout_whatever_the_env_prints(engine: str, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os\nfrom shoal.testing import CountingEnv\nprint('LOUD MODULE')\n"
        "def make():\n    print('LOUD', flush=True)\n    os.write(1, b'LOUD TOO')\n    return CountingEnv()\n"
    )
    command = [*SHOAL, "run", "loud:make", "-n", "2", "--steps", "20", "--engine", engine, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["engine"]) == (0, engine)
    assert "LOUD TOO" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("serial", "thread")), "process"]
)
def test_ctrl_c_prints_what_was_done_and_ends_everything(engine: str) -> None:
    command = [*SHOAL, "run", "CartPole-v1", "-n", "4", "--steps", "1_000_000_000", "--engine", engine]
    # A group of its own, to which Ctrl-C on a terminal goes.
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert running.stderr is not None
        # The first line of progress says that steps are being done.
        assert "steps/s" in running.stderr.readline()
        family = psutil.Process(running.pid).children(recursive=True)
        os.killpg(running.pid, signal.SIGINT)
        stdout, stderr = running.communicate(timeout=15)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 130
    assert "(interrupted)" in stdout
    assert "mean return" in stdout
    assert "Traceback" not in stderr
    assert_gone(family)


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_ends_quietly() -> None:
    code = "import os, signal, time\ndef env():\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\n"
    command = [sys.executable, "-c", f"{code}\nimport sys; sys.modules['envs'] = sys.modules['__main__']\n{_MAIN}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "shoal: interrupted\n"


@pytest.mark.slow
def test_progress_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [*SHOAL, "run", "CartPole-v1", "-n", "4", "--steps", "20000", "--engine", "serial"]
    running = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        shown = _read_all(ours)
        assert running.wait(timeout=15) == 0
    finally:
        os.close(ours)
        running.kill()
        running.wait()
    assert "steps/s" in shown
    assert "recent return" in shown
    assert "mean length" in shown


_MAIN = "sys.argv = ['shoal', 'run', 'envs:env', '--engine', 'serial', '-n', '1']; from shoal.cli import main; main()"


def _read_all(fd: int, timeout_s: float = 20.0) -> str:
    parts = []
    while select.select([fd], [], [], timeout_s)[0]:
        try:
            part = os.read(fd, 1 << 16)
        except OSError:  # Linux's way to say that the other end of a terminal is closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode(errors="replace")
