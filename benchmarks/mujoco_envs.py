"""MuJoCo robots: shoal against EnvPool and against MuJoCo itself, interleaved in one run, on two threads.

    python benchmarks/mujoco_envs.py                      every load, about 6 minutes
    python benchmarks/mujoco_envs.py --quick              the same in 2 minutes, less exact
    python benchmarks/mujoco_envs.py --load halfcheetah-64 --contender shoal-mujoco --contender envpool-mujoco

Writes mujoco_envs.md and .json to the folder of --out. Needs shoal[mujoco,kernels] and envpool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from comparison import compare
from harness import LoadReport, Plan
from mujoco_contenders import MUJOCO_CONTENDERS, MUJOCO_LOADS
from targets import Target

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
    compare(
        "MuJoCo robots", "mujoco_envs", __doc__, MUJOCO_LOADS, MUJOCO_CONTENDERS, (FULL, QUICK), _targets, arguments
    )


def _targets(reports: dict[str, LoadReport]) -> Iterator[Target]:
    for key, report in reports.items():
        size = report.load.num_envs
        yield Target(key, OURS, ONE_ENV if size == 1 else FACTORS[MUJOCO_LOADS[key].env_id], (PEER,))
        if size > 1:
            yield Target(key, OURS, PART_OF_THE_LIMIT, (LIMIT,))


if __name__ == "__main__":
    main()
