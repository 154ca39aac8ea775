"""What all commands say alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.cli.common import env_from
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
