"""What shoal promises to reach, as data, and whether a run reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from contenders import CONTENDERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harness import LoadReport, Result

ASYNC_PEERS = ("gymnasium-async", "sb3-subproc", "tianshou-subproc", "tianshou-shmem")
PROCESS_FORMS = ("shoal-process", "shoal-process-fork", "shoal-inline", "shoal-inline-fork")
POLICY_PEERS = ("gymnasium-sync", "gymnasium-async", "moolib", "sb3-dummy", "sb3-subproc")
_UNEVEN_PARTS = (
    ("shoal-thread-async", 0.75),
    ("shoal-thread-core-async", 0.75),
    ("shoal-one-process-async", 0.75),
    ("shoal-process-async", 0.55),
    ("shoal-process-threads-async", 0.55),
)


@dataclass(frozen=True, slots=True)
class Target:
    """`contender` reaches `at_least` times (`scale` times the best of `against`) on `load`.

    With no `against` the reference is the load's own limit.
    """

    load: str
    contender: str
    at_least: float
    against: tuple[str, ...] = ()
    scale: float = 1.0

    @property
    def wording(self) -> str:
        reference = ", ".join(CONTENDERS[key].label for key in self.against) or "the load's limit"
        best = "the best of " if len(self.against) > 1 else ""
        scale = "" if self.scale == 1 else f"{self.scale:g} x "
        return f"at least {self.at_least:g} x {scale}{best}{reference}"


@dataclass(frozen=True, slots=True)
class CallTarget:
    """`contender` needs at most this long per call on `load`."""

    load: str
    contender: str
    at_most_us: float

    @property
    def wording(self) -> str:
        return f"at most {self.at_most_us:g} µs per call"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target beside what was measured; `value` is None when a side of it did not run."""

    target: Target | CallTarget
    value: float | None
    is_met: bool | None
    absent: tuple[str, ...] = ()
    """References that did not run, where others of the same target did."""


def _process_targets(form: str) -> Iterator[Target | CallTarget]:
    for load in ("cartpole-8", "cartpole-32"):
        yield from (Target(load, form, 10, (peer,)) for peer in ASYNC_PEERS)
        yield Target(load, form, 1.5, ("gymnasium-sync",))
        yield Target(load, form, 1.5, ("moolib",))
    for load in ("spin100us-8", "spin100us-32", "spin1ms-8", "spin1ms-32"):
        yield Target(load, f"{form}-views", 0.9, ("raw-loop",), scale=2)
        yield Target(load, form, 0.85, ("raw-loop",), scale=2)
    yield CallTarget("noop-8", form, 16)


def _targets() -> Iterator[Target | CallTarget]:
    for form in PROCESS_FORMS:
        yield from _process_targets(form)
    yield Target("cartpole-8", "shoal-serial", 1.0, ("gymnasium-sync",))
    yield Target("dict-8", "shoal-serial", 1.5, ("gymnasium-sync",))
    for contender, part in _UNEVEN_PARTS:
        yield Target("uneven-32", contender, 3, ("gymnasium-async", "shoal-thread-sync"))
        yield Target("uneven-32", contender, part)
        yield Target("uneven-32", contender, 4, ("torchrl-async",))
    for load in ("policy-cartpole-32", "policy-spin100us-8"):
        yield Target(load, "shoal-auto", 1.0, POLICY_PEERS)


TARGETS: tuple[Target | CallTarget, ...] = tuple(_targets())


def check(reports: Mapping[str, LoadReport], targets: Iterable[Target | CallTarget] = TARGETS) -> list[Verdict]:
    """The verdict on every target whose load was run."""
    return [_verdict(target, reports[target.load]) for target in targets if target.load in reports]


def _verdict(target: Target | CallTarget, report: LoadReport) -> Verdict:
    result = report.results.get(target.contender)
    if result is None:
        return Verdict(target, None, None)
    if isinstance(target, CallTarget):
        return Verdict(target, result.us_per_call, result.us_per_call <= target.at_most_us)
    ratio = _ratio(target, result, report)
    absent = tuple(key for key in target.against if key not in report.results)
    return Verdict(target, ratio, None if ratio is None else ratio >= target.at_least, absent)


def _ratio(target: Target, result: Result, report: LoadReport) -> float | None:
    if not target.against:
        limit = report.load.limit_per_s
        return None if limit is None else result.steps_per_s / limit
    peers = [report.results[key] for key in target.against if key in report.results]
    ratios = [ratio for ratio in map(result.ratio_to, peers) if ratio is not None]
    return min(ratios) / target.scale if ratios else None
