"""Tables of a run: on the terminal, as markdown, and as JSON with every slice in it."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contenders import CONTENDERS
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from contenders import Contender
    from harness import LoadReport, Plan, Result
    from rich.console import Console
    from targets import Verdict

REFERENCES = {
    "gymnasium-async": "x Async",
    "gymnasium-sync": "x Sync",
    "raw-loop": "x raw loop",
    "raw-loops": "x 2 raw loops",
    "envpool-1": "x EnvPool 1 thread",
    "gymnasium-numpy": "x numpy vector",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table of text: the one shape that all outputs print."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    text_columns: int = 1
    """How many columns, from the left, hold words; the rest hold numbers."""

    def markdown(self) -> str:
        rule = ["---" if index < self.text_columns else "---:" for index in range(len(self.columns))]
        lines = [f"## {self.title}", "", _row(self.columns), _row(rule)]
        lines += [_row(row) for row in self.rows]
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"

    def show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index < self.text_columns else "right", no_wrap=index == 0)
        for row in self.rows:
            table.add_row(*row, style="bold" if row[0].startswith("shoal") else None)
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", style="dim", markup=False, highlight=False)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def load_grid(report: LoadReport) -> Grid:
    """One load: a row per contender, with ratios to the references that ran."""
    references = {key: title for key, title in REFERENCES.items() if key in report.results}
    columns = ("contender", "env-steps/s", "±", *references.values(), "µs per call", "CPU µs per env step")
    rows = [_result_row(result, report, references) for result in report.results.values()]
    if report.load.limit_per_s is not None:
        blank = ("",) * (len(columns) - 2)
        rows.append(("limit", f"{report.load.limit_per_s:,.0f}", *blank))
    skipped = [(CONTENDERS[key], reason) for key, reason in report.skipped.items()]
    return Grid(report.load.title, columns, rows, skip_notes(skipped))


def skip_notes(skipped: Iterable[tuple[Contender, str]]) -> tuple[str, ...]:
    """One line per reason: a library that is not there is missing in all its variants."""
    labels: dict[str, list[str]] = {}
    for contender, reason in skipped:
        labels.setdefault(reason, []).append(contender.label)
    return tuple(f"skipped {'; '.join(names)}: {reason}" for reason, names in labels.items())


def _result_row(result: Result, report: LoadReport, references: Mapping[str, str]) -> tuple[str, ...]:
    ratios = (number(result.ratio_to(report.results[key]), ".2f") for key in references)
    return (
        result.contender.label,
        f"{result.steps_per_s:,.0f}",
        f"{result.spread:.0%}",
        *ratios,
        f"{result.us_per_call:,.1f}",
        microseconds(result.cpu_us_per_step),
    )


def target_grid(verdicts: Sequence[Verdict]) -> Grid:
    rows: list[tuple[str, ...]] = [
        (
            CONTENDERS[verdict.target.contender].label,
            verdict.target.load,
            verdict.target.wording,
            _verdict_words(verdict),
            number(verdict.value, ".2f"),
        )
        for verdict in verdicts
    ]
    return Grid("Targets", ("contender", "load", "target", "verdict", "measured"), rows, text_columns=4)


def _verdict_words(verdict: Verdict) -> str:
    words = met_words(verdict.is_met)
    if verdict.is_met is None or not verdict.absent:
        return words
    return f"{words} (without {', '.join(CONTENDERS[key].label for key in verdict.absent)})"


def met_words(is_met: bool | None) -> str:
    return "not measured" if is_met is None else "met" if is_met else "NOT MET"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def microseconds(value: float | None) -> str:
    """With a digit after the point, or three where that would hide the figure."""
    return number(value, ",.1f" if value is None or value >= 10 else ".3f")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def write_markdown(path: Path, title: str, method: str, grids: Sequence[Grid], versions: Mapping[str, str]) -> None:
    about = machine()
    libraries = ", ".join(f"{name} {version}".strip() for name, version in sorted(versions.items()))
    head = (
        f"# {title}\n\n{about['cpu']}, {about['cores']} cores, {about['system']}, Python {about['python']}"
        f"{'; ' + libraries if libraries else ''}.\n\n{method}\n"
    )
    path.write_text("\n".join([head, *(grid.markdown() for grid in grids)]))


def describe(plan: Plan) -> str:
    """How to read the tables."""
    rounds = f"{plan.rounds} rounds in one run"
    if plan.acts > 1:
        rounds = f"{plan.acts} times {rounds}, each time in new processes"
    return (
        f"Contenders take turns in slices of {plan.slice_s:g} s, {rounds}, in a random order. "
        "Rates are medians over slices, ± is half the distance between the quartiles, and a ratio is the median of "
        "the ratios within a round. CPU is user and system time of all processes of a contender."
    )


def write_json(path: Path, reports: Iterable[LoadReport], verdicts: Sequence[Verdict], about: dict[str, Any]) -> None:
    content = {
        **about,
        "machine": machine(),
        "loads": {report.load.key: _load_json(report) for report in reports},
        "targets": [
            {**asdict(verdict.target), "wording": verdict.target.wording, "value": verdict.value, "met": verdict.is_met}
            for verdict in verdicts
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _load_json(report: LoadReport) -> dict[str, Any]:
    return {
        "title": report.load.title,
        "skipped": report.skipped,
        "results": {
            key: {
                "steps_per_s": result.steps_per_s,
                "us_per_call": result.us_per_call,
                "cpu_us_per_step": result.cpu_us_per_step,
                "slices": {turn: asdict(part) for turn, part in result.slices.items()},
            }
            for key, result in report.results.items()
        },
    }
