"""``shoal run`` as it is typed, in this process."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

import shoal
from shoal import cli
from shoal.cli.app import app
from shoal.cli.drive import RunResult

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

CARTPOLE = ("CartPole-v1", "--num-envs", "4", "--seed", "1")


def shoal_run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


def as_json(*arguments: str) -> dict[str, Any]:
    result = shoal_run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


def always_left(obs: np.ndarray) -> np.ndarray:
    return np.zeros(len(obs), np.int64)


def five_of_them(obs: np.ndarray) -> np.ndarray:
    return np.zeros(5, np.int64)


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"shoal {shoal.__version__}\n"


def test_help_has_examples_and_every_option() -> None:
    text = shoal_run("--help").stdout
    assert "shoal run CartPole-v1" in text
    for option in (
        "num-envs",
        "steps",
        "engine",
        "num-workers",
        "inline",
        "batch-size",
        "autoreset",
        "seed",
        "policy",
        "json",
    ):
        assert f"--{option}" in text


def test_json_has_every_field_of_the_result() -> None:
    told = as_json(*CARTPOLE, "--steps", "1_000", "--engine", "serial")
    assert list(told) == list(RunResult.__dataclass_fields__)
    assert told["steps"] >= 1000
    assert told["engine"] == "serial"
    assert 8 < told["mean_return"] < 100


def test_engines(engine: str) -> None:
    told = as_json(*CARTPOLE, "--steps", "500", "--engine", engine, "--num-workers", "2")
    assert told["engine"] == engine
    assert told["num_workers"] == (1 if engine == "serial" else 2)


def test_this_process_can_do_the_work_of_one() -> None:
    told = as_json(*CARTPOLE, "--steps", "500", "--engine", "process", "--num-workers", "2", "--inline")
    assert (told["engine"], told["num_workers"]) == ("process", 2)
    refused = shoal_run(*CARTPOLE, "--engine", "serial", "--inline")
    assert refused.exit_code == 2
    assert "inline: the caller can be one of the workers" in refused.stderr


def test_async(engine: str) -> None:
    told = as_json(*CARTPOLE, "--steps", "500", "--engine", engine, "--batch-size", "2")
    assert told["batch_size"] == 2
    assert told["episodes"] > 0


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_autoreset_modes(mode: str) -> None:
    assert as_json(*CARTPOLE, "--steps", "500", "--engine", "serial", "--autoreset", mode)["autoreset"] == mode


def test_auto_says_why() -> None:
    told = as_json(*CARTPOLE, "--steps", "100")
    assert told["engine_reason"] == "the env is compiled"


def test_a_policy_of_the_users_own() -> None:
    told = as_json(*CARTPOLE, "--steps", "500", "--engine", "serial", "--policy", f"{__name__}:always_left")
    assert told["mean_return"] < 11, "always pushing left ends an episode after about nine steps"


def test_an_env_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envs_of_a_test.py").write_text(
        "import gymnasium\n"
        "from shoal.testing import CountingEnv\n"
        "def short(): return CountingEnv(episode_length=2)\n"
        "gymnasium.register('OfATest-v0', entry_point=short, disable_env_checker=True)\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("envs_of_a_test:short", "envs_of_a_test:OfATest-v0"):
        told = as_json(name, "--steps", "50", "--num-envs", "2", "--engine", "process")
        assert told["mean_length"] == 2.0


@pytest.mark.parametrize("arguments", [["slips:make"], [*CARTPOLE, "--policy", "slips:act"]], ids=["env", "policy"])
def test_a_module_that_fails_is_told_in_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slips.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = shoal_run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    name = "--policy" if "--policy" in arguments else "ENV"
    told = f"shoal: {name}: 'slips' fails when it is imported (ZeroDivisionError: division by zero)\n"
    assert result.stderr == told


@pytest.mark.parametrize(("what", "line", "where"), [("boom", 6, "helper"), ("thing", 9, "__call__")])
def test_a_policy_that_raises_is_told_in_one_line_with_its_own(
    what: str, line: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(
        "import numpy as np\ndef boom(obs):\n    return helper(obs)\n\ndef helper(obs):\n"
        "    raise ValueError('no\\nidea')\nclass Thing:\n    def __call__(self, obs):\n"
        "        return np.linalg.inv(obs[0])\nthing = Thing()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    arguments = (*CARTPOLE, "--engine", "serial", "--policy", f"failing:{what}")
    result = shoal_run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"shoal: --policy: 'failing:{what}' raised ")
    assert ("ValueError: no idea" if what == "boom" else "LinAlgError: ") in result.stderr
    assert f"({tmp_path / 'failing.py'}, line {line}, in {where})" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" in shoal_run(*arguments, "--debug").stderr


def test_a_seed_below_zero_is_refused() -> None:
    result = shoal_run("CartPole-v1", "--seed", "-1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--seed'" in result.stderr


def test_table_without_a_terminal_is_plain_text() -> None:
    result = shoal_run(*CARTPOLE, "--steps", "1000", "--engine", "serial")
    assert result.exit_code == 0
    labels = [line.split("  ")[0] for line in result.stdout.splitlines()]
    assert labels == ["env", "engine", "steps", "steps/s", "episodes", "mean return", "mean length", "time"]
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["NoSuch-v0"], "NoSuch"),
        (["no_such_module:Env"], "cannot be imported"),
        ([*CARTPOLE, "--engine", "quick"], "engine: expected one of"),
        ([*CARTPOLE, "--autoreset", "never"], "autoreset: expected one of"),
        ([*CARTPOLE, "--batch-size", "9"], "batch_size: expected an int from 1 to 4"),
        ([*CARTPOLE, "--policy", "greedy"], "--policy: expected module:callable"),
        ([*CARTPOLE, "--policy", f"{__name__}:five_of_them"], "expected shape (4,), got (5,)"),
        (["shoal.testing:FaultEnv", "-n", "2", "--engine", "serial"], "step failed in env"),
        (["shoal.testing:FaultEnv", "-n", "1", "--engine", "process"], "worker 0"),
    ],
)
def test_errors_are_one_paragraph_on_stderr(arguments: list[str], told: str) -> None:
    result = shoal_run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("shoal: ")
    assert result.stderr.count("\n") == 1
    assert told in result.stderr


def test_debug_shows_the_traceback() -> None:
    result = shoal_run("shoal.testing:FaultEnv", "-n", "2", "--engine", "process", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "InjectedFault" in result.stderr
    assert "In the env:" in result.stderr


@pytest.mark.parametrize("option", ["--steps", "--num-envs", "--num-workers", "--batch-size"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_numbers_that_make_no_sense_are_refused(option: str, value: str) -> None:
    result = shoal_run("CartPole-v1", option, value)
    assert result.exit_code == 2
    assert option in result.stderr


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_without_the_extra_it_is_named(
    library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [name for name in sys.modules if name.startswith(("shoal.cli.", library))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code == 1
    assert "pip install 'shoal[cli]'" in capsys.readouterr().err
