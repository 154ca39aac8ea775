"""Compiled envs: shoal against its peers, interleaved in one run.

    python benchmarks/compiled_envs.py                    every load and the start-up times, about 7 minutes
    python benchmarks/compiled_envs.py --quick            the same in less than 2 minutes, less exact
    python benchmarks/compiled_envs.py --load compiled-cartpole-1024 --contender shoal-1 --contender envpool-1
    python benchmarks/compiled_envs.py --startup          only the start-up times

Writes compiled_envs.md, .json and .png (or compiled_startup.md) to the folder of --out. Start-up times are left out
when loads or contenders are chosen. A peer that cannot live in this Python environment may have its own:
--python envpool=/path/to/its/bin/python
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import compiled_startup
import report as reporting
from comparison import run_loads, setting_of
from compiled_contenders import (
    COMPILED_CONTENDERS,
    COMPILED_LOADS,
    ENVPOOL_THREADS,
    GYMNAX,
    GYMNAX_SIZE,
    NUMPY_VECTOR,
    SHOAL_THREADS,
)
from harness import LoadReport, Plan
from python_envs import common_parser, draw_chart, make_console
from targets import CallTarget, Target, check

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness import Result
    from modes import Setting
    from rich.console import Console

FULL = Plan(rounds=12, slice_s=0.3)
QUICK = Plan(rounds=4, slice_s=0.12)

# By number of envs: how many times the rate of the best of these.
PEERS = {
    ENVPOOL_THREADS: {1: 5, 64: 12, 1024: 30, 65_536: 25},
    NUMPY_VECTOR: {64: 6, 1024: 2},
    GYMNAX: {GYMNAX_SIZE: 10},
}
ONE_ENV_AT_MOST_US = 7


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    console = make_console()
    setting = setting_of(options)
    if options.startup:
        grid = _start_up(setting, console).grid()
        method = compiled_startup.__doc__ or ""
        reporting.write_markdown(options.out / "compiled_startup.md", "Compiled envs: start-up", method, [grid], {})
        return
    plan = QUICK if setting.is_quick else FULL
    reports, versions = run_loads(COMPILED_LOADS, options.load or COMPILED_LOADS, setting, plan, console)
    verdicts = check(reports, _targets(reports))
    summaries = [reporting.target_grid(verdicts), *_size_grids(reports)]
    for grid in summaries:
        grid.show(console)
    about = {**asdict(plan), "versions": versions}
    if not (options.load or options.contender):
        start = _start_up(setting, console)
        summaries.insert(1, start.grid())
        about["startup"] = asdict(start)
    grids = [*summaries, *map(reporting.load_grid, reports.values())]
    path = options.out / "compiled_envs.md"
    reporting.write_markdown(path, "Compiled envs", reporting.describe(plan), grids, versions)
    reporting.write_json(path.with_suffix(".json"), reports.values(), verdicts, about)
    draw_chart(path.with_suffix(".png"), list(reports.values()), console)


def _parser() -> ArgumentParser:
    parser = common_parser(__doc__, COMPILED_LOADS, COMPILED_CONTENDERS)
    parser.add_argument("--startup", action="store_true", help="only the start-up times")
    return parser


def _start_up(setting: Setting, console: Console) -> compiled_startup.StartReport:
    python = setting.pythons.get("shoal", sys.executable)
    report = compiled_startup.measure(python, is_quick=setting.is_quick)
    report.grid().show(console)
    return report


def _targets(reports: Mapping[str, LoadReport]) -> Iterator[Target | CallTarget]:
    """What shoal should reach with the better of its two thread counts; EnvPool has the same choice."""
    for key, report in reports.items():
        ours, size = _best(report, SHOAL_THREADS), report.load.num_envs
        if size == 1:
            yield CallTarget(key, ours, ONE_ENV_AT_MOST_US)
        for peers, factors in PEERS.items():
            if size in factors and report.load.group in COMPILED_CONTENDERS[peers[0]].groups:
                yield Target(key, ours, factors[size], peers)


def _best(report: LoadReport, keys: Sequence[str]) -> str:
    """The fastest of these; the first if none ran."""
    ran = [key for key in keys if key in report.results]
    return max(ran, key=lambda key: report.results[key].steps_per_s, default=keys[0])


def _size_grids(reports: Mapping[str, LoadReport]) -> Iterator[reporting.Grid]:
    """An env's figures side by side for all numbers of envs."""
    for env_id in dict.fromkeys(load.env_id for load in COMPILED_LOADS.values()):
        by_size = {report.load.num_envs: report for report in reports.values() if report.load.env_id == env_id}
        if by_size:
            yield _size_grid(f"{env_id}: µs per step call", by_size, lambda result: result.us_per_call)
            yield _size_grid(f"{env_id}: CPU µs per env step", by_size, lambda result: result.cpu_us_per_step)


def _size_grid(
    title: str, by_size: Mapping[int, LoadReport], figure: Callable[[Result], float | None]
) -> reporting.Grid:
    rows = []
    for key, contender in COMPILED_CONTENDERS.items():
        results = [report.results.get(key) for report in by_size.values()]
        if any(results):
            cells = ("" if result is None else reporting.microseconds(figure(result)) for result in results)
            rows.append((contender.label, *cells))
    columns = ("contender", *(f"{size:,} env{'s' if size > 1 else ''}" for size in by_size))
    return reporting.Grid(title, columns, rows)


if __name__ == "__main__":
    main()
