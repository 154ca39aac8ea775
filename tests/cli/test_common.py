"""What all commands say alike."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from shoal import cli
from shoal.cli import streams
from shoal.cli.app import app
from shoal.cli.common import env_from, exit_codes
from shoal.engines.choose import NAMES
from shoal.errors import ArgumentError
from shoal.recording import Origin, Recording

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("command", ["run", "check", "doctor", "collect", "replay"])
def test_a_module_without_such_an_env_is_told_so(command: str, tmp_path: Path) -> None:
    story = Recording(0, Origin("id", "CartPole-v1"), "next_step", None, [["reset", 7, None]], [])
    arguments = {
        "collect": ["math:Nope", "--out", str(tmp_path / "data"), "--format", "npz"],
        "replay": [str(story.save(tmp_path / "recording")), "--env", "math:Nope"],
    }.get(command, ["math:Nope"])
    result = CliRunner().invoke(app, [command, *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    what = "--env" if command == "replay" else "ENV"
    assert result.stderr == f"shoal: {what}: 'math' has no 'Nope', and registers no env of that id\n"


def test_ids_may_follow_a_module() -> None:
    assert env_from("math:CartPole-v1") == "CartPole-v1"
    assert env_from("CartPole-v1") == "CartPole-v1"
    with pytest.raises(ArgumentError, match="--env: expected module:callable, got 'math:'"):
        env_from("math:", "--env")


@pytest.mark.parametrize("command", ["run", "collect"])
def test_help_names_every_engine(command: str) -> None:
    # The last of each: there are examples above the options.
    told = CliRunner().invoke(app, [command, "--help"]).stdout.rpartition("--engine ")[2].partition("--num-workers")[0]
    assert [name for name in NAMES if name not in told] == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
        (MemoryError(), "MemoryError"),
        (OverflowError("too\nlarge"), "OverflowError: too large"),
    ],
    ids=lambda value: str(value),
)
def test_errors_of_the_machine_are_one_line(error: Exception, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, exit_codes(debug=False):
        raise error
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == f"shoal: {told} (--debug shows the traceback)\n"


def test_ctrl_c_during_start_up_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(streams, "write_what_the_encoding_lacks", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "shoal: interrupted\n")


def test_warnings_are_one_line_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    usual = warnings.formatwarning

    def warn() -> None:
        told.append(warnings.formatwarning("too many\nworkers", UserWarning, "run.py", 3))

    monkeypatch.setattr(cli, "_run", warn)
    cli.main()
    assert told == ["shoal: warning: too many workers\n"]
    assert warnings.formatwarning is usual
