"""What the user sees: progress during a run and a table at the end, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from shoal.cli.drive import Progress, RunResult

_FIRST_LINE_S = 1.0
_LINE_EVERY_S = 5.0
_BAR_WIDTHS = (10, 40)  # least and most; with less room than that there is no bar


class Display(Protocol):
    """Shows the progress of a run."""

    every_s: float

    def show(self, progress: Progress) -> None:
        """Show how far the run has come."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display_for(steps: int, *, quiet: bool) -> Display:
    """A bar on a terminal, lines elsewhere, nothing if ``quiet``. Everything goes to stderr."""
    if quiet:
        return _Nothing()
    console = Console(stderr=True)
    return _Bar(console, steps) if console.is_terminal else _Lines()


class _Nothing:
    every_s = float("inf")

    def show(self, progress: Progress) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Lines(_Nothing):
    every_s = 0.5

    def __init__(self) -> None:
        # The first line comes early, to show that all is well; later ones must not flood a log.
        self._due_s = _FIRST_LINE_S

    def show(self, progress: Progress) -> None:
        if progress.elapsed_s >= self._due_s:
            self._due_s = progress.elapsed_s + _LINE_EVERY_S
            done = f"{progress.steps:,} of {progress.total_steps:,} steps"
            print(", ".join([done, *_telling(progress)]), file=sys.stderr, flush=True)


class _Bar(_Nothing):
    every_s = 0.1

    def __init__(self, console: Console, steps: int) -> None:
        self._bars = Bars(_Fitting(console), console=console, transient=True)
        self._task = self._bars.add_task("", total=steps, done="starting", telling=[])

    def show(self, progress: Progress) -> None:
        self._bars.update(
            self._task, completed=progress.steps, done=f"{progress.steps:,} steps", telling=_telling(progress)
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class _Fitting(ProgressColumn):
    """A whole progress line, cut to the room there is: the bar is dropped first, and numbers stay whole."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._time_left, self._bar = TimeRemainingColumn(), BarColumn()

    def render(self, task: Task) -> Table:
        """What fits, from the most to the least important: steps, time left, further figures, the bar."""
        done, left = Text(task.fields["done"]), self._time_left.render(task)
        room = self._console.width - len(done)
        parts: list[Text] = []
        if len(left) < room:
            parts = [left]
            room -= len(left) + 1
        if telling := _as_much_as_fits(task.fields["telling"], room - 1):
            parts.insert(0, Text(telling))
            room -= len(telling) + 1
        bar = self._bar.render(task)
        bar.width = min(room - 1, _BAR_WIDTHS[1])
        cells = [done, bar, *parts] if bar.width >= _BAR_WIDTHS[0] else [done, *parts]
        line = Table.grid(*[""] * len(cells), padding=(0, 1, 0, 0))
        line.add_row(*cells)
        return line


def _as_much_as_fits(told: list[str], room: int) -> str:
    for count in range(len(told), 0, -1):
        if len(text := ", ".join(told[:count])) <= room:
            return text
    return ""


def print_result(result: RunResult) -> None:
    """Print the closing table of a run to stdout."""
    print_rows(_table_rows(result))


def print_rows(rows: list[tuple[str, str]]) -> None:
    """Print labels and their values to stdout."""
    console = Console()
    if not console.is_terminal:
        width = max(len(label) for label, _ in rows)
        print("\n".join(f"{label:<{width}}  {value}" for label, value in rows))
        return
    table = Table(box=SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(label), Text(value))  # not markup: reasons and paths may have square brackets
    console.print(table)


def _table_rows(result: RunResult) -> list[tuple[str, str]]:
    batches = f", batches of {result.batch_size}" if result.batch_size < result.num_envs else ""
    rows = [
        ("env", f"{result.num_envs} × {result.env}{batches}, autoreset {result.autoreset}"),
        ("engine", engine_told(result.engine, result.num_workers, result.engine_reason)),
        ("steps", f"{result.steps:,} in {result.elapsed_s:.2f} s" + (" (interrupted)" if result.interrupted else "")),
        ("steps/s", f"{result.steps_per_s:,.0f}"),
        ("episodes", f"{result.episodes:,}"),
    ]
    if result.mean_return is not None:
        rows += [
            ("mean return", f"{result.mean_return:.2f} ± {result.std_return:.2f}"),
            ("mean length", f"{result.mean_length:.1f}"),
        ]
    if result.elapsed_s > 0:
        parts = (("envs", result.envs_s), ("pool", result.pool_s), ("policy and loop", result.loop_s))
        rows.append(("time", ", ".join(f"{name} {100 * part / result.elapsed_s:.1f} %" for name, part in parts)))
    return rows


def engine_told(engine: str, num_workers: int, reason: str) -> str:
    """The engine, its workers and why it was chosen, in one line."""
    workers = f", {num_workers} workers" if num_workers > 1 else ""
    # A reason may quote an error of several lines.
    return f"{engine}{workers} ({' '.join(reason.split()) or 'as asked'})"


def _telling(progress: Progress) -> list[str]:
    """The figures to show, the most important first."""
    told = [f"{progress.steps_per_s:,.0f} steps/s", f"{progress.episodes:,} episodes"]
    if progress.recent_return is not None:
        told.append(f"recent return {progress.recent_return:.1f}")
    if progress.recent_length is not None:
        told.append(f"length {progress.recent_length:.1f}")
    return told
