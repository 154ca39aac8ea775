"""Pools whose envs fail all the time: is any row lost, repeated or torn, and does anything stay behind?

    python benchmarks/soak.py                               a million steps with a thousand faults, some minutes
    python benchmarks/soak.py --seconds 3600                until the time is up
    python benchmarks/soak.py --start-method forkserver     only those pools; thread and serial are names here too

Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.testing.soak import LEGS, SoakConfig, Tally, soak

if TYPE_CHECKING:
    from collections.abc import Sequence

# A pool that is stuck is noticed earlier; this is for one that cannot even be interrupted.
STUCK_S = 180
COLUMNS = ("pool", "s", "steps", "injected", "outside", "env faults", "fault rows", "truncated", "starved", "wrong")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    # Forking beside the thread that kills workers is what "fork!" is about.
    warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
    chosen = tuple(options.start_method) if options.start_method else None
    try:
        config = SoakConfig(options.steps, options.faults, options.seconds, options.seed, chosen)
    except ValueError as error:
        parser.error(str(error))
    progress = Progress()
    began = time.monotonic()
    tally = soak(config, progress)
    faulthandler.cancel_dump_traceback_later()
    progress.clear()
    _print_tally(tally, time.monotonic() - began)
    if options.json:
        options.json.write_text(json.dumps(_as_json(tally, options.seed), indent=1) + "\n")
    return 0 if tally.is_clean else 1


def _parser() -> argparse.ArgumentParser:
    names = sorted({leg.start_method or leg.engine for leg in LEGS})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps, at least (default: %(default)s)")
    parser.add_argument("--faults", type=int, default=1_000, help="injected faults, at least (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="stop after about so long; steps and faults then set the pace")
    parser.add_argument("--seed", type=int, default=0, help="of envs and faults (default: %(default)s)")
    parser.add_argument("--start-method", action="append", choices=names, help="only these pools; may be repeated")
    parser.add_argument("--json", type=Path, help="write the tally to this file")
    return parser


class Progress:
    """One line that is overwritten, where there is a terminal; and an end for a soak that is stuck."""

    def __init__(self) -> None:
        self._last = 0.0
        self._is_shown = sys.stderr.isatty()

    def __call__(self, name: str, steps: int, faults: int) -> None:
        now = time.monotonic()
        if now - self._last < 1.0:
            return
        self._last = now
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        if self._is_shown:
            sys.stderr.write(f"\r\033[K{name}: {steps:,} steps, {faults:,} faults")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")


def _print_tally(tally: Tally, seconds: float) -> None:
    rows = [COLUMNS, *(_cells(leg) for leg in tally.legs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for name, *cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  ".join([name.ljust(widths[0]), *numbers]))
    injected = tally.injected
    print(f"\n{tally.steps:,} steps, {injected.total():,} injected faults, {seconds:.0f} s")
    print("injected: " + ", ".join(f"{kind} {count}" for kind, count in injected.most_common()))
    print("wrong:    " + ", ".join(f"{kind} {count}" for kind, count in tally.violations.items()))
    print(f"left behind after close: {sum(bool(leg.leftovers) for leg in tally.legs)} of {len(tally.legs)} pools")
    for note in tally.notes:
        print(f"  {note}")
    print("clean" if tally.is_clean else "NOT CLEAN")


def _cells(leg: Any) -> tuple[str, ...]:
    numbers = (
        leg.steps,
        leg.injected.total(),
        leg.injected["outside"],
        leg.pool_faults,
        leg.fault_rows.total(),
        leg.truncations,
        leg.starved,
        leg.violations.total() + bool(leg.leftovers),
    )
    return (leg.name, f"{leg.seconds:.1f}", *(f"{number:,}" for number in numbers))


def _as_json(tally: Tally, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "is_clean": tally.is_clean,
        "steps": tally.steps,
        "injected": dict(tally.injected),
        "violations": dict(tally.violations),
        "legs": [vars(leg) for leg in tally.legs],
    }


if __name__ == "__main__":
    sys.exit(main())
