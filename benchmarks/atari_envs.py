"""Atari games: shoal against EnvPool and against ale-py's vector env, interleaved in one run, on two cores.

    python benchmarks/atari_envs.py                       every load, about 5 minutes
    python benchmarks/atari_envs.py --quick               the same in 2 minutes, less exact
    python benchmarks/atari_envs.py --load pong-64 --contender shoal-atari --contender envpool-atari

Writes atari_envs.md and .json to the folder of --out. Needs shoal[atari,kernels] and envpool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import report as reporting
from atari_contenders import ATARI_CONTENDERS, ATARI_LOADS
from harness import LoadReport, Plan, Stage
from modes import Setting
from python_envs import common_parser, make_console
from targets import Target, check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FULL = Plan(rounds=12, slice_s=0.6)
QUICK = Plan(rounds=4, slice_s=0.4)

OURS = "shoal-atari"
FACTORS = {"envpool-atari": 1.08, "ale-vector": 0.9}


def main(arguments: Sequence[str] | None = None) -> None:
    options = common_parser(__doc__, ATARI_LOADS, ATARI_CONTENDERS).parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    console = make_console()
    setting = Setting(dict(options.python), 0.0, options.quick, frozenset(options.contender))
    plan = QUICK if setting.is_quick else FULL
    reports: dict[str, LoadReport] = {}
    with Stage(setting.pythons, setting.turns_per_us) as stage:
        for key in options.load or ATARI_LOADS:
            load = ATARI_LOADS[key]
            if contenders := setting.chosen(load.group):
                reports[key] = stage.measure(load, contenders, plan)
                reporting.load_grid(reports[key]).show(console)
    verdicts = check(reports, _targets(reports))
    grid = reporting.target_grid(verdicts)
    grid.show(console)
    grids = [grid, *map(reporting.load_grid, reports.values())]
    path = options.out / "atari_envs.md"
    reporting.write_markdown(path, "Atari games", reporting.describe(plan), grids, stage.versions)
    about = {"rounds": plan.rounds, "slice_s": plan.slice_s, "versions": stage.versions}
    reporting.write_json(path.with_suffix(".json"), reports.values(), verdicts, about)


def _targets(reports: dict[str, LoadReport]) -> Iterator[Target]:
    for key in reports:
        for peer, factor in FACTORS.items():
            yield Target(key, OURS, factor, (peer,))


if __name__ == "__main__":
    main()
