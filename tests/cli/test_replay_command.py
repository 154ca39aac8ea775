"""``shoal replay`` as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import replay as command
from shoal.cli.app import app
from shoal.recording import Origin, Recording

if TYPE_CHECKING:
    from typer.testing import Result

MINES = '''
import ctypes, time
import numpy as np
from shoal.testing import CountingEnv

class Mine(CountingEnv):
    """Goes off in the third step of an episode whose draw ends in 7."""

    def __init__(self, fate="raise"):
        super().__init__()
        self.fate = fate

    def step(self, action):
        row = super().step(action)
        if self._step == 3 and self._draw % 10 == 7:
            print("click")
            self.go_off()
        return row

    def go_off(self):
        if self.fate == "raise":
            raise ValueError(f"[bold]boom[/] at draw {self._draw}")
        if self.fate == "crash":
            ctypes.string_at(0)
        if self.fate == "sleep":
            time.sleep(60)
        if self.fate in ("lock", "lock_gil"):
            lock = (ctypes.CDLL if self.fate == "lock" else ctypes.PyDLL)(None).pthread_mutex_lock
            mutex = ctypes.create_string_buffer(64)
            lock(mutex)
            lock(mutex)

class Sound(Mine):
    def go_off(self):
        pass

class Other(Mine):
    def go_off(self):
        raise TypeError("thud")
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module in it, which is where we are."""
    (tmp_path / "mines.py").write_text(MINES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mines", raising=False)
    return tmp_path


@pytest.fixture
def folder(place: Path) -> Path:
    """A recorded ValueError."""
    import mines

    with shoal.make_pool(mines.Mine, 2, engine="serial", env_kwargs={"fate": "raise"}, fault_dir="faults") as pool:
        pool.reset(seed=1)
        with suppress(shoal.errors.FaultError):
            while True:
                pool.step([0, 1])
    (found,) = (place / "faults").iterdir()
    return found


def told_as(folder: Path, fate: str, kind: str, summary: str) -> Path:
    """The same recording, as of another fault."""
    recording = Recording.load(folder)
    assert recording.fault is not None
    fault = {**recording.fault, "kind": kind, "message": f"step failed in env 0, worker 1: {summary}"}
    changed = {**vars(recording), "origin": Origin("callable", "mines:Mine", {"fate": fate}), "fault": fault}
    return Recording(**changed).save(folder.parent.parent / fate)


def shoal_replay(*arguments: Any, **options: Any) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)], **options)


def in_a_process(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "shoal", "replay", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    return subprocess.run(line, capture_output=True, text=True, timeout=30, env=environment, check=False, **options)


def test_help_has_examples_and_every_option() -> None:
    text = shoal_replay("--help").stdout
    assert "shoal replay faults/" in text
    for option in ("env", "pdb", "timeout", "json", "quiet", "debug"):
        assert f"--{option}" in text


def test_a_fault_is_reproduced_with_its_traceback(folder: Path) -> None:
    result = shoal_replay(folder, "--env", "mines:Mine")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    steps = Recording.load(folder).num_steps
    assert lines[0] == "Traceback (most recent call last):"
    assert "mines.py" in lines[1]  # the frames of shoal are left out
    assert lines[-3].startswith("ValueError: [bold]boom[/] at draw ")
    assert lines[-2:] == ["", f"reproduced: EnvStepError after {steps} steps"]
    assert result.stderr == "click\n"


def test_json(folder: Path) -> None:
    result = shoal_replay(folder, "--env", "mines:Mine", "--json")
    told = json.loads(result.stdout)
    assert list(told) == ["folder", "env", "verdict", "steps", "found", "recorded", "notes"]
    assert (told["verdict"], told["env"], told["notes"]) == ("reproduced", "mines:Mine(fate='raise')", [])
    assert told["found"]["kind"] == told["recorded"]["kind"] == "EnvStepError"
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("env", "verdict", "more"),
    [
        ("mines:Other", "another fault: EnvStepError after", "  recorded: ValueError: [bold]boom"),
        ("mines:Sound", "no fault after", "  recorded: EnvStepError: ValueError: [bold]boom"),
    ],
)
def test_what_is_not_reproduced_exits_with_1(folder: Path, env: str, verdict: str, more: str) -> None:
    result = shoal_replay(folder, "--env", env)
    assert result.exit_code == 1
    assert f"\n{verdict} " in f"\n{result.stdout}"
    assert f"\n{more}" in result.stdout


def test_another_env_than_the_recorded_one_is_the_explanation(folder: Path) -> None:
    gym.register("Sound-v0", entry_point="mines:Sound", disable_env_checker=True)
    gym.register("Other-v0", entry_point="mines:Other", disable_env_checker=True)
    gym.register("Mine-v0", entry_point="mines:Mine", disable_env_checker=True)
    try:
        sound = shoal_replay(folder, "--env", "Sound-v0")
        other = shoal_replay(folder, "--env", "mines:Other-v0")
        mine = shoal_replay(folder, "--env", "Mine-v0")
    finally:
        for name in ("Sound-v0", "Other-v0", "Mine-v0"):
            del gym.registry[name]
    note = "{} is not the env that was recorded: that is mines:Mine(fate='raise')"
    assert sound.stdout.splitlines()[-1] == "  " + note.format("Sound-v0")
    assert "nothing is missing" not in sound.stdout
    assert other.stdout.splitlines()[-1] == "  " + note.format("Other-v0")
    assert mine.exit_code == 0
    assert "is not the env" not in mine.stdout


def test_gaps_are_the_explanation(folder: Path) -> None:
    recording = Recording.load(folder)
    Recording(**{**vars(recording), "gaps": ("the start is missing",)}).save(folder)
    result = shoal_replay(folder, "--env", "mines:Sound")
    assert result.stdout.splitlines()[-1] == "  the start is missing"


def test_without_an_env_the_message_says_which_one_it_was(folder: Path) -> None:
    result = shoal_replay(folder)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the env was mines:Mine(fate='raise')" in result.stderr
    assert result.stderr.endswith("Say what makes it: --env mines:Mine\n")


@pytest.mark.parametrize(
    ("origin", "advice"),
    [
        (Origin("callable", "__main__:Maze"), "--env module:Maze, with the module that has it"),
        (Origin("callable", "m:make.<locals>.Env"), "--env module:callable, with the module that has it"),
        (Origin("id", "Maze-v0"), "--env module:Maze-v0, with the module that has it"),
        (Origin("id", "CartPole-v1", wrappers=("m:W",)), "--env module:callable, where the callable makes it in full"),
        (Origin("callable", "m:Maze", lost=("rng",)), "--env module:callable, where the callable makes it in full"),
    ],
    ids=str,
)
def test_the_advice_fits_the_env(folder: Path, origin: Origin, advice: str) -> None:
    Recording(**{**vars(Recording.load(folder)), "origin": origin}).save(folder)
    assert shoal_replay(folder).stderr.endswith(f"{advice}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no such folder"),
        (["."], "neither a recording nor a folder with recordings in it"),
        (["FOLDER", "--env", "mines:Nothing"], "Nothing"),
        (["FOLDER", "--env", "Pendulum-v1"], "it takes other actions"),
        (["FOLDER", "--pdb", "--json"], "--pdb and --json: one of them, not both"),
    ],
)
def test_what_cannot_be_tried_exits_with_2(folder: Path, arguments: list[str], message: str) -> None:
    result = shoal_replay(*(folder if argument == "FOLDER" else argument for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_recording_without_a_fault_is_as_recorded(folder: Path) -> None:
    Recording(**{**vars(Recording.load(folder)), "fault": None}).save(folder)
    result = shoal_replay(folder, "--env", "mines:Sound")
    assert (result.exit_code, result.stdout.endswith(" steps; none was recorded\n")) == (0, True)
    assert shoal_replay(folder, "--env", "mines:Mine").exit_code == 1


def test_a_folder_of_recordings_is_listed(folder: Path) -> None:
    broken = folder.parent / "broken"
    broken.mkdir()
    (broken / "fault.json").write_text("{}")
    (folder.parent / "something else").mkdir()
    result = shoal_replay("faults")
    head, first, second, blank, hint = result.stdout.splitlines()
    assert head.split() == ["recording", "env", "steps", "fault"]
    assert first.split()[:2] == [folder.name, "mines:Mine(fate='raise')"]
    assert "[bold]boom[/]" in first
    assert second.split(maxsplit=1)[0] == "broken"
    assert second.endswith("  not a recording that can be read (there is no file actions.npz)")
    assert (blank, hint) == ("", "shoal replay faults/RECORDING replays one of them.")
    rows = json.loads(shoal_replay("faults", "--json").stdout)
    assert [row["recording"] for row in rows] == [folder.name, "broken"]


def test_a_terminal_is_not_told_what_to_do_by_a_recording(folder: Path) -> None:
    recording = Recording.load(folder)
    fault = {**(recording.fault or {}), "message": "step failed in env 0: ValueError: \x1b[2J\x07 gone"}
    Recording(**{**vars(recording), "fault": fault}).save(folder)
    for result in (shoal_replay("faults"), shoal_replay(folder, "--env", "mines:Sound")):
        assert "\x1b" not in result.stdout
        assert "gone" in result.stdout


def test_the_debugger_is_entered_where_the_env_failed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Any] = []
    monkeypatch.setattr(command.pdb, "post_mortem", entered.append)
    result = shoal_replay(folder, "--env", "mines:Mine", "--pdb")
    (trace,) = entered
    assert result.exit_code == 0
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names == ["step", "go_off"]


def test_progress_goes_to_stderr_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LINE_EVERY_S", 0.0)
    total = Recording.load(folder).num_commands
    result = shoal_replay(folder, "--env", "mines:Mine")
    assert f"{total - 1:,} of {total:,} resets and steps\n" in result.stderr
    assert "resets and steps" not in shoal_replay(folder, "--env", "mines:Mine", "--quiet").stderr


# ---------------------------------------------------------------------- what ends or stops a process


@pytest.mark.slow
def test_a_crash_is_announced_and_its_stack_shown(folder: Path) -> None:
    crash = told_as(folder, "crash", "WorkerDied", "the worker process is gone: killed by SIGSEGV")
    done = in_a_process(crash, "--env", "mines:Mine")
    assert done.returncode == -signal.SIGSEGV
    announced = done.stderr.index("shoal: the next step ended its process when it was recorded: the worker process is")
    assert announced < done.stderr.index("Segmentation fault") < done.stderr.index("in go_off")


@pytest.mark.slow
def test_a_hang_is_shown_where_it_hangs(folder: Path) -> None:
    hang = told_as(folder, "sleep", "EnvTimeout", "no answer after 60.0 s")
    done = in_a_process(hang, "--env", "mines:Mine", "--timeout", "0.3")
    assert done.returncode == 0
    assert "hung when it was recorded: no answer after 60.0 s. It has 0.3 s now." in done.stderr
    assert "in go_off\n    time.sleep(60)\n" in done.stdout
    assert "\nreproduced: EnvTimeout after " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("fate", "code"), [("lock", 0), ("lock_gil", 1)])
def test_a_hang_that_python_cannot_interrupt_ends_the_process(folder: Path, fate: str, code: int) -> None:
    hang = told_as(folder, fate, "EnvTimeout", "no answer after 60.0 s")
    done = in_a_process(hang, "--env", "mines:Mine", "--timeout", "0.3")
    assert done.returncode == code
    assert "in go_off" in done.stderr


@pytest.mark.slow
def test_the_debugger_answers(folder: Path) -> None:
    done = in_a_process(folder, "--env", "mines:Mine", "--pdb", input="p self.fate\nq\n")
    assert "(Pdb) 'raise'\n" in done.stdout
    assert done.returncode == 0
