"""``shoal check`` as it is typed, in this process."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli import check as command
from shoal.cli.app import app
from shoal.contract import RULES

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

HERE = __name__


class Coin(gym.Env):
    """Keeps every rule."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        return self.observe(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def observe(self) -> Any:
        return self.np_random.random(3).astype(np.float32)


class TooHigh(Coin):
    def observe(self) -> Any:
        return super().observe() + np.float32(1.5)


class Wide(Coin):
    def observe(self) -> Any:
        return super().observe().astype(float)


class Talkative(Coin):
    def step(self, action: Any) -> Any:
        print("I am stepped")  # noqa: T201 - what it is about
        return super().step(action)


class Fatal(Coin):
    def step(self, action: Any) -> Any:
        os._exit(0)


def shoal_check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments, "--steps", "50"])


def lines(*arguments: str) -> dict[str, str]:
    """The verdict of every rule, as printed."""
    printed = [line.split() for line in shoal_check(*arguments).stdout.splitlines()]
    return {words[1]: words[0] for words in printed[: len(RULES)]}


def test_help_has_examples_and_every_option() -> None:
    text = shoal_check("--help").stdout
    assert "shoal check CartPole-v1" in text
    for option in ("steps", "seed", "strict", "ignore", "json", "quiet", "debug"):
        assert f"--{option}" in text


def test_a_good_env_is_one_line_per_rule() -> None:
    result = shoal_check("CartPole-v1")
    assert result.exit_code == 0
    printed = result.stdout.splitlines()
    assert [line.split()[:2] for line in printed[: len(RULES)]] == [["ok", rule] for rule in RULES]
    assert printed[len(RULES) :] == ["", f"CartPole-v1: {len(RULES)} rules kept"]
    assert all(line == line.rstrip() for line in printed)


def test_an_error_is_told_with_its_remedy_and_exits_with_1() -> None:
    result = shoal_check(f"{HERE}:TooHigh")
    assert result.exit_code == 1
    told = result.stdout[result.stdout.index("\n\n") :]
    # The brackets of a path must not be taken for markup.
    assert "\nerror  bounds\n  observation[0] is " in told
    assert ", above its upper bound 1.0 (first seen in reset(seed=0); " in told
    assert "\n    Widen the bounds of observation_space" in told
    assert told.endswith("\n\nTooHigh: 1 error\n")
    assert lines(f"{HERE}:TooHigh")["bounds"] == "error"


def test_an_env_that_ends_its_process_is_an_error_and_tried_no_further() -> None:
    result = shoal_check(f"{HERE}:Fatal", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["ok"], told["env"]) == (1, False, "Fatal")
    assert {rule for rule, verdict in told["rules"].items() if verdict != "skipped"} == {"step"}
    assert "the worker process is gone: exited with code 0" in told["findings"][0]["message"]


def test_warnings_are_errors_only_if_strict() -> None:
    assert shoal_check(f"{HERE}:Wide").exit_code == 0
    assert lines(f"{HERE}:Wide")["observation"] == "warning"
    assert shoal_check(f"{HERE}:Wide", "--strict").exit_code == 1
    assert lines(f"{HERE}:Wide", "--strict")["observation"] == "error"


def test_a_rule_can_be_ignored() -> None:
    result = shoal_check(f"{HERE}:TooHigh", "--ignore", "bounds", "--ignore", "close")
    assert result.exit_code == 0
    assert "bound 1.0" not in result.stdout
    verdicts = lines(f"{HERE}:TooHigh", "--ignore", "bounds", "--ignore", "close")
    assert [rule for rule, verdict in verdicts.items() if verdict == "ignored"] == ["bounds", "close"]


def test_json() -> None:
    result = shoal_check(f"{HERE}:TooHigh", "--json", "--seed", "3")
    assert (result.exit_code, result.stderr) == (1, "")
    told = json.loads(result.stdout)
    assert {name: told[name] for name in ("env", "seed", "steps", "ok")} == {
        "env": "TooHigh",
        "seed": 3,
        "steps": 50,
        "ok": False,
    }
    assert list(told["rules"]) == list(RULES)
    assert told["rules"]["bounds"] == "error"
    (finding,) = told["findings"]
    assert list(finding) == ["severity", "rule", "message", "hint"]
    assert "first seen in reset(seed=3)" in finding["message"]


def test_what_the_env_prints_is_no_part_of_the_result() -> None:
    result = shoal_check(f"{HERE}:Talkative", "--json")
    assert json.loads(result.stdout)["ok"] is True
    assert "I am stepped" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NoSuchEnv-v0"], "NoSuchEnv"),
        (["no_such_module:Env"], "cannot be imported"),
        ([f"{HERE}:HERE"], "which cannot be called"),
        (["CartPole-v1", "--ignore", "bonds"], "there is no rule 'bonds'; there are build, "),
    ],
)
def test_what_cannot_be_checked_exits_with_2(arguments: list[str], message: str) -> None:
    result = shoal_check(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("shoal: ")
    assert message in result.stderr


def test_a_module_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_an_env.py").write_text("size = 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = shoal_check("half_an_env:Env")
    assert (result.exit_code, result.stdout) == (2, "")
    expected = "shoal: ENV: 'half_an_env' fails when it is imported (ZeroDivisionError: division by zero)\n"
    assert result.stderr == expected
    assert "Traceback" in shoal_check("half_an_env:Env", "--debug").stderr


def test_progress_goes_to_stderr_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LINE_EVERY_S", 0.0)
    result = shoal_check(f"{HERE}:Coin")
    assert "stepping, 50 steps so far\n" in result.stderr
    assert "so far" not in result.stdout
    assert shoal_check(f"{HERE}:Coin", "--quiet").stderr == ""


def test_on_a_terminal_verdicts_have_colours() -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, color_system="standard", width=100)
    command._write_report(terminal, command.examine(Wide, steps=50), frozenset())
    assert "\x1b[32mok " in screen.getvalue()
    assert "\x1b[33mwarning" in screen.getvalue()
