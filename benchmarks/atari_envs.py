"""Atari games: shoal against EnvPool and against ale-py's vector env, interleaved in one run, on two cores.

    python benchmarks/atari_envs.py                       every load, about 5 minutes
    python benchmarks/atari_envs.py --quick               the same in 2 minutes, less exact
    python benchmarks/atari_envs.py --load pong-64 --contender shoal-atari --contender envpool-atari

Writes atari_envs.md and .json to the folder of --out. Needs shoal[atari,kernels] and envpool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atari_contenders import ATARI_CONTENDERS, ATARI_LOADS
from comparison import compare
from harness import LoadReport, Plan
from targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FULL = Plan(rounds=12, slice_s=0.6)
QUICK = Plan(rounds=4, slice_s=0.4)

OURS = "shoal-atari"
FACTORS = {"envpool-atari": 1.08, "ale-vector": 0.9}


def main(arguments: Sequence[str] | None = None) -> None:
    compare("Atari games", "atari_envs", __doc__, ATARI_LOADS, ATARI_CONTENDERS, (FULL, QUICK), _targets, arguments)


def _targets(reports: dict[str, LoadReport]) -> Iterator[Target]:
    for key in reports:
        for peer, factor in FACTORS.items():
            yield Target(key, OURS, factor, (peer,))


if __name__ == "__main__":
    main()
