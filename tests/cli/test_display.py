"""The line of progress: as wide as the terminal, with numbers that are whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from shoal.cli.display import _Bar, engine_told, print_rows
from shoal.cli.drive import Progress

FAR = Progress(
    steps=1_239_690, total_steps=5_000_000, elapsed_s=3.0, episodes=56_123, recent_return=22.2, recent_length=21.9
)


def line_of(width: int, progress: Progress | None = FAR) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    bar = _Bar(console, 5_000_000)
    if progress is not None:
        bar.show(progress)
    with console.capture() as captured:
        console.print(bar._bars.get_renderable())
    (line,) = captured.get().splitlines()
    assert len(line) <= width
    return line.rstrip()


@pytest.mark.parametrize("width", range(15, 161))
def test_what_is_shown_is_whole(width: int) -> None:
    words = [word.rstrip(",") for word in line_of(width).split() if not word.startswith("━")]
    whole = {"1,239,690", "steps", "413,230", "steps/s", "56,123", "episodes", "recent", "return", "22.2", "length"}
    assert set(words) <= whole | {"21.9", "-:--:--"}
    assert words[:2] == ["1,239,690", "steps"]


def test_the_bar_is_left_out_first_and_the_count_never() -> None:
    parts = ["━", "length 21.9", "recent return 22.2", "56,123 episodes", "413,230 steps/s", "-:--:--", "1,239,690"]
    seen = [[part in line_of(width) for part in parts] for width in (120, 90, 80, 60, 40, 30, 20)]
    assert [row.index(True) for row in seen] == [0, 1, 2, 3, 4, 5, 6]
    assert all(all(row[row.index(True) :]) for row in seen)


def test_before_the_first_step() -> None:
    assert line_of(60, None).startswith("starting")


def test_values_are_not_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes rich take stdout for a terminal
    print_rows([("data", "runs[1]/[red]x[/bold]")])
    assert "runs[1]/[red]x[/bold]" in capsys.readouterr().out


def test_the_reason_for_an_engine_is_one_line() -> None:
    assert engine_told("serial", 1, "it cannot leave:\n  a lock") == "serial (it cannot leave: a lock)"
    assert engine_told("process", 2, "") == "process, 2 workers (as asked)"
