"""Drive pools of envs that fail all the time, and check that no row is lost, repeated or torn, and nothing is left.

    tally = soak(SoakConfig(steps=1_000_000, faults=1_000))
    assert tally.is_clean, tally.notes

A soak has legs: one pool each, over engines, start methods, boundary rules, synchronous and asynchronous. In each, the
envs fail according to a plan (`shoal.testing.soak_env`), a thread kills workers at moments of its own choosing, and
every row is compared with a model (`shoal.testing.soak_model`).
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.testing.soak_drive import Leg, LegTally, run_leg
from shoal.testing.soak_model import MOST_NOTES, VIOLATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS_PER_ROUND = 2_000_000
FAULTS_PER_ROUND = 4_000


def _legs() -> tuple[Leg, ...]:
    two, three = {"num_workers": 2}, {"num_workers": 3}
    return (
        Leg("process", "next_step", 8, "forkserver", 1.5, 1.2, two),
        Leg("process", "same_step", 8, "forkserver", 1.5, 1.2, {**two, "copy": False}),
        Leg("process", "next_step", 3, "forkserver", 1.5, 1.2, three),
        Leg("process", "same_step", 3, "forkserver", 1.5, 1.2, {**two, "threads_per_worker": 2}),
        Leg("process", "next_step", 3, "fork!", 1.0, 1.2, two),
        Leg("process", "same_step", 8, "fork!", 1.0, 1.2, three),
        Leg("process", "same_step", 3, "spawn", 0.5, 0.6, two),
        Leg("process", "next_step", 8, "spawn", 0.5, 0.6, two),
        Leg("thread", "next_step", 8, None, 0.7, 0.6, {"num_workers": 4}),
        Leg("thread", "same_step", 3, None, 0.7, 0.6),
        Leg("serial", "same_step", 8, None, 0.5, 0.5),
        Leg("serial", "next_step", 3, None, 0.5, 0.5),
    )


LEGS = _legs()


@dataclass(frozen=True)
class SoakConfig:
    """What a soak does.

    Attributes:
        steps: Env steps in all, at least.
        faults: Faults that are injected in all, at least; envs that fall with a neighbour's worker come on top.
        seconds: Stop after about this long, whatever has been reached. Steps and faults then only set the pace, and
            legs are repeated until the time is up.
        seed: Seed of envs, faults and what is asked of the pools. The moments of outside kills are not seeded.
        start_methods: Only these; engines without any are given by name (``"thread"``, ``"serial"``).
        legs: The pools.

    Raises:
        ValueError: There is nothing to do: no steps, no time, or less than no faults.
    """

    steps: int = 1_000_000
    faults: int = 1_000
    seconds: float | None = None
    seed: int = 0
    start_methods: tuple[str, ...] | None = None
    legs: tuple[Leg, ...] = LEGS

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.faults < 0:
            raise ValueError(f"faults must be at least 0, got {self.faults}")
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError(f"seconds must be more than 0, got {self.seconds}")


@dataclass
class Tally:
    """The outcome of a soak."""

    legs: list[LegTally] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong anywhere."""
        return bool(self.legs) and all(leg.is_clean for leg in self.legs)

    @property
    def steps(self) -> int:
        """Rows that answered a step."""
        return sum(leg.steps for leg in self.legs)

    @property
    def injected(self) -> Counter[str]:
        """Faults by kind."""
        return sum((leg.injected for leg in self.legs), Counter())

    @property
    def violations(self) -> Counter[str]:
        """What was wrong, by kind, with a zero for kinds that did not occur."""
        return Counter(
            {
                kind: sum(leg.violations[kind] for leg in self.legs)
                for kind in (*VIOLATIONS, "counts", "raised", "stuck")
            }
        )

    @property
    def notes(self) -> list[str]:
        """What was wrong, in words."""
        texts = [f"{leg.name}: {text}" for leg in self.legs for text in leg.notes[:MOST_NOTES]]
        return texts + [f"{leg.name}: left behind: {leg.leftovers}" for leg in self.legs if leg.leftovers]


def soak(config: SoakConfig, on_progress: Callable[[str, int, int], None] | None = None) -> Tally:
    """Run a soak.

    Args:
        config: What to do.
        on_progress: Called now and then with the leg, its steps and its faults so far.

    Returns:
        The outcome; nothing is raised for what was found.
    """
    names = config.start_methods
    legs = [leg for leg in config.legs if names is None or (leg.start_method or leg.engine) in names]
    total, danger = sum(leg.share for leg in legs), sum(leg.share * leg.danger for leg in legs)
    end = None if config.seconds is None else time.monotonic() + config.seconds
    rounds = max(1, -(-config.steps // STEPS_PER_ROUND), -(-config.faults // FAULTS_PER_ROUND))
    tally = Tally()
    number = 0
    while legs and (number < rounds if end is None else time.monotonic() < end):
        for place, leg in enumerate(legs):
            steps = int(config.steps * leg.share / total / rounds) + 1
            faults = round(config.faults * leg.share * leg.danger / danger / rounds + 0.5)
            leg_end = None
            if end is not None:
                leg_end = time.monotonic() + max(0.0, end - time.monotonic()) / (len(legs) - place)
            seed = config.seed + 1000 * number + place
            tally.legs.append(run_leg(leg, steps, faults, seed, leg_end, on_progress or _silent))
        number += 1
    return tally


def _silent(name: str, steps: int, faults: int) -> None:
    pass
