"""MuJoCo robots: shoal against EnvPool and against MuJoCo itself, interleaved in one run, on two threads.

    python benchmarks/mujoco_envs.py                      every load, about 6 minutes
    python benchmarks/mujoco_envs.py --quick              the same in 2 minutes, less exact
    python benchmarks/mujoco_envs.py --load halfcheetah-64 --contender shoal-mujoco --contender envpool-mujoco

Writes mujoco_envs.md and .json to the folder of --out. Needs shoal[mujoco,kernels] and envpool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import report as reporting
from harness import LoadReport, Plan, Stage
from modes import Setting
from mujoco_contenders import MUJOCO_CONTENDERS, MUJOCO_LOADS
from python_envs import common_parser, make_console
from targets import Target, check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FULL = Plan(rounds=12, slice_s=0.4)
QUICK = Plan(rounds=4, slice_s=0.2)

OURS, PEER, LIMIT = "shoal-mujoco", "envpool-mujoco", "mujoco-loop"
# By robot: how many times the rate of EnvPool; with one env the price of a call counts for more.
FACTORS = {"HalfCheetah-v5": 1.2, "Ant-v5": 1.1}
ONE_ENV = 1.5
PART_OF_THE_LIMIT = 0.9


def main(arguments: Sequence[str] | None = None) -> None:
    options = common_parser(__doc__, MUJOCO_LOADS, MUJOCO_CONTENDERS).parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    console = make_console()
    setting = Setting(dict(options.python), 0.0, options.quick, frozenset(options.contender))
    plan = QUICK if setting.is_quick else FULL
    reports: dict[str, LoadReport] = {}
    with Stage(setting.pythons, setting.turns_per_us) as stage:
        for key in options.load or MUJOCO_LOADS:
            load = MUJOCO_LOADS[key]
            if contenders := setting.chosen(load.group):
                reports[key] = stage.measure(load, contenders, plan)
                reporting.load_grid(reports[key]).show(console)
    verdicts = check(reports, _targets(reports))
    grid = reporting.target_grid(verdicts)
    grid.show(console)
    grids = [grid, *map(reporting.load_grid, reports.values())]
    path = options.out / "mujoco_envs.md"
    reporting.write_markdown(path, "MuJoCo robots", reporting.describe(plan), grids, stage.versions)
    about = {"rounds": plan.rounds, "slice_s": plan.slice_s, "versions": stage.versions}
    reporting.write_json(path.with_suffix(".json"), reports.values(), verdicts, about)


def _targets(reports: dict[str, LoadReport]) -> Iterator[Target]:
    for key, report in reports.items():
        size = report.load.num_envs
        yield Target(key, OURS, ONE_ENV if size == 1 else FACTORS[MUJOCO_LOADS[key].env_id], (PEER,))
        if size > 1:
            yield Target(key, OURS, PART_OF_THE_LIMIT, (LIMIT,))


if __name__ == "__main__":
    main()
