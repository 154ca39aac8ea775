"""A picture of a run: one panel per load, one bar per contender, on a log scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness import LoadReport, Result
    from matplotlib.axes import Axes

COLUMNS = 3
BAR_INCHES = 0.24
SHOAL_COLOUR = "#0b6e99"
RAW_COLOUR = "#444444"
PEER_COLOUR = "#b8c4cc"


def draw(path: Path, reports: Sequence[LoadReport]) -> None:
    """Write a PNG with the reports that have results."""
    from matplotlib.figure import Figure

    shown = [report for report in reports if report.results]
    if not shown:
        return
    rows = [shown[start : start + COLUMNS] for start in range(0, len(shown), COLUMNS)]
    heights = [1.0 + BAR_INCHES * max(len(report.results) for report in row) for row in rows]
    columns = min(COLUMNS, len(shown))
    figure = Figure(figsize=(5.6 * columns, sum(heights)), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes_row, row in zip(panels, rows, strict=True):
        for index, axes in enumerate(axes_row):
            if index < len(row):
                _panel(axes, row[index])
            else:
                axes.set_axis_off()
    figure.suptitle("env-steps per second, log scale (longer is better)", fontsize=13)
    figure.savefig(path, dpi=130, bbox_inches="tight")  # constrained layout leaves no room for long titles


def _panel(axes: Axes, report: LoadReport) -> None:
    results = sorted(report.results.values(), key=lambda result: result.steps_per_s)
    rates = [result.steps_per_s for result in results]
    bars = axes.barh([result.contender.label for result in results], rates, color=[_colour(r) for r in results])
    axes.bar_label(bars, [_short(rate) for rate in rates], padding=3, fontsize=8)
    axes.set_xscale("log")
    # Room for the labels at the right, and for the shortest bar to be seen at the left.
    top = max(*rates, report.load.limit_per_s or 0.0)
    axes.set_xlim(10 ** math.floor(math.log10(min(rates) * 0.9)), top * 3)
    if report.load.limit_per_s is not None:
        axes.axvline(report.load.limit_per_s, color=RAW_COLOUR, linestyle="--", linewidth=1)
    axes.set_title(report.load.title, fontsize=10, loc="left", fontweight="bold")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(result: Result) -> str:
    key = result.contender.key
    if key.startswith("shoal"):
        return SHOAL_COLOUR
    return RAW_COLOUR if key.startswith("raw-loop") else PEER_COLOUR


def _short(rate: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g}"
