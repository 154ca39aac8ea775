"""One run of named loads, judged and written down: what the benchmarks of envs without Python code have in common."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import report as reporting
from harness import LoadReport, Plan, Stage
from modes import Setting
from python_envs import common_parser, make_console
from targets import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console


def run_loads(
    loads: Mapping[str, Any], keys: Iterable[str], setting: Setting, plan: Plan, console: Console
) -> tuple[dict[str, LoadReport], dict[str, str]]:
    """Reports by load, and the versions of what ran."""
    reports = {}
    with Stage(setting.pythons, setting.turns_per_us) as stage:
        for key in keys:
            load = loads[key]
            if contenders := setting.chosen(load.group):
                reports[key] = stage.measure(load, contenders, plan)
                reporting.load_grid(reports[key]).show(console)
    return reports, stage.versions


def setting_of(options: Any) -> Setting:
    """What the command line says; such envs burn no turns, so there is nothing to calibrate."""
    return Setting(dict(options.python), 0.0, options.quick, frozenset(options.contender))


def compare(
    title: str,
    file: str,
    doc: str | None,
    loads: Mapping[str, Any],
    contenders: Any,
    plans: tuple[Plan, Plan],
    targets_of: Callable[[dict[str, LoadReport]], Iterable[Any]],
    arguments: Sequence[str] | None,
) -> None:
    """Run what the command line asks for, judge it, and write ``file`` with the endings .md and .json.

    ``plans`` are the full one and the quick one.
    """
    options = common_parser(doc, loads, contenders).parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    console = make_console()
    setting = setting_of(options)
    plan = plans[setting.is_quick]
    reports, versions = run_loads(loads, options.load or loads, setting, plan, console)
    verdicts = check(reports, targets_of(reports))
    grid = reporting.target_grid(verdicts)
    grid.show(console)
    path = options.out / f"{file}.md"
    grids = [grid, *map(reporting.load_grid, reports.values())]
    reporting.write_markdown(path, title, reporting.describe(plan), grids, versions)
    about = {**asdict(plan), "versions": versions}
    reporting.write_json(path.with_suffix(".json"), reports.values(), verdicts, about)
