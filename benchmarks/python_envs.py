"""Any Python env: shoal against its peers, interleaved in one run.

    python benchmarks/python_envs.py                      every load, about 25 minutes
    python benchmarks/python_envs.py --quick              the same in a few minutes, less exact
    python benchmarks/python_envs.py --load cartpole-8 --contender shoal-process --contender gymnasium-async
    python benchmarks/python_envs.py --startup | --memory | --idle | --busy

Writes python_envs.md, .json and .png (or startup.md, memory.md, idle.md, busy.md) to the folder of --out. A peer that
cannot live in this Python environment may have its own: --python pufferlib=/path/to/its/bin/python
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import modes
import report as reporting
from contenders import CONTENDERS
from harness import LoadReport, Plan, Stage
from loads import LOADS, calibrate
from rich.console import Console
from targets import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FULL = Plan(rounds=5, slice_s=0.3, acts=3)
QUICK = Plan(rounds=4, slice_s=0.15)
MODES: dict[str, Callable[[modes.Setting], list[reporting.Grid]]] = {
    "startup": modes.startup,
    "memory": modes.memory,
    "idle": modes.idle,
    "busy": modes.busy,
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    console = make_console()
    turns_per_us = calibrate()
    setting = modes.Setting(dict(options.python), turns_per_us, options.quick, frozenset(options.contender))
    if options.mode:
        _run_mode(options.mode, setting, options.out, console)
    else:
        _run_loads(options.load or list(LOADS), setting, options.out, console)


def make_console() -> Console:
    # Cells and notes stay whole when the output goes to a file.
    return Console() if sys.stdout.isatty() else Console(width=160)


def _parser() -> argparse.ArgumentParser:
    parser = common_parser(__doc__, LOADS, CONTENDERS)
    only = parser.add_mutually_exclusive_group()
    for name, run in MODES.items():
        only.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=run.__doc__)
    return parser


def common_parser(about: str, loads: Iterable[str], contenders: Iterable[str]) -> argparse.ArgumentParser:
    """The options that all comparisons share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter slices")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"), help="folder for the results")
    parser.add_argument("--load", action="extend", nargs="+", default=[], choices=loads, metavar="NAME")
    parser.add_argument("--contender", action="extend", nargs="+", default=[], choices=contenders, metavar="NAME")
    parser.add_argument(
        "--python", action="append", default=[], type=_library_and_path, metavar="LIBRARY=PATH", help="its own Python"
    )
    return parser


def _library_and_path(text: str) -> tuple[str, str]:
    library, separator, path = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not LIBRARY=PATH")
    return library, path


def _run_mode(name: str, setting: modes.Setting, out: Path, console: Console) -> None:
    grids = MODES[name](setting)
    for grid in grids:
        grid.show(console)
    reporting.write_markdown(out / f"{name}.md", f"Python envs: {name}", MODES[name].__doc__ or "", grids, {})


def _run_loads(keys: Sequence[str], setting: modes.Setting, out: Path, console: Console) -> None:
    plan = QUICK if setting.is_quick else FULL
    reports: dict[str, LoadReport] = {}
    with Stage(setting.pythons, setting.turns_per_us) as stage:
        for key in keys:
            load = LOADS[key]
            reports[key] = stage.measure(load, setting.chosen(load.group), plan)
            reporting.load_grid(reports[key]).show(console)
    verdicts = check(reports)
    targets = reporting.target_grid(verdicts)
    targets.show(console)
    grids = [targets, *map(reporting.load_grid, reports.values())]
    method = reporting.describe(plan)
    reporting.write_markdown(out / "python_envs.md", "Python envs", method, grids, stage.versions)
    about = {**asdict(plan), "versions": stage.versions}
    reporting.write_json(out / "python_envs.json", reports.values(), verdicts, about)
    draw_chart(out / "python_envs.png", list(reports.values()), console)


def draw_chart(path: Path, reports: list[LoadReport], console: Console) -> None:
    try:
        from chart import draw

        draw(path, reports)
    except ImportError as error:
        console.print(f"no chart: {error}")


if __name__ == "__main__":
    main()
