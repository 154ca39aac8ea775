"""The rules, and what was found against them."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from inspect import getfile
from pathlib import Path
from typing import Literal

import gymnasium
import numpy as np

_NOT_THE_AUTHORS = (
    *(str(Path(getfile(library)).parent) for library in (gymnasium, np)),
    str(Path(__file__).parents[1]),
    "<",
)

Severity = Literal["error", "warning", "note"]

RULES: dict[str, str] = {
    "build": "the env can be built",
    "spaces": "observation_space and action_space are Gymnasium spaces, and stay the same",
    "reset": "reset(seed=, options=) returns (observation, info)",
    "step": "step returns (observation, reward, terminated, truncated, info)",
    "observation": "observations have the nesting, shape and dtype of their space",
    "bounds": "observations lie within their space",
    "reward": "the reward is a finite number",
    "flags": "terminated and truncated are bools",
    "info": "infos are dicts",
    "plain-data": "infos are plain data, which can leave a worker process without pickle",
    "episode-end": "episodes end",
    "time-limit": "the time limit is kept, and reported as truncated",
    "aliasing": "what was returned does not change later",
    "action": "actions are left as they are",
    "global-random": "random numbers come from the env's own generator",
    "same-seed": "the same seed and actions give the same episodes",
    "other-seed": "another seed gives other episodes",
    "next-episode": "a reset without a seed begins another episode",
    "instances": "instances do not disturb each other",
    "shipping": "the env can be sent to a worker process",
    "render": "the render mode is a declared one, and works",
    "close": "close works, and a second time too",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        severity: ``"error"``: the contract is broken. ``"warning"``: shoal copes, or it may be intended, but other code
            may trip over it. ``"note"``: nothing is wrong.
        rule: The name of the rule, a key of ``RULES``.
        message: What was seen, and where.
        hint: How to fix it.
    """

    severity: Severity
    rule: str
    message: str
    hint: str


class Findings:
    """Collects findings; the same thing seen again is counted, but not listed again.

    Attributes:
        judged: The rules that could be checked, whatever the outcome.
    """

    def __init__(self) -> None:
        self.judged: set[str] = set()
        self._first: dict[tuple[str, str], tuple[Finding, str]] = {}
        self._times: dict[tuple[str, str], int] = {}

    def judge(self, *rules: str) -> None:
        """Note that these rules are being checked."""
        self.judged.update(rules)

    def add(self, severity: Severity, rule: str, message: str, hint: str, *, key: str = "", when: str = "") -> None:
        """Note a finding; ``key`` tells things under one rule apart, ``when`` is the call in which it was seen."""
        self.judged.add(rule)
        place = (rule, key)
        self._first.setdefault(place, (Finding(severity, rule, message, hint), when))
        self._times[place] = self._times.get(place, 0) + 1

    def has_error(self, *rules: str) -> bool:
        """Whether one of these rules is known to be broken."""
        return any(finding.severity == "error" and finding.rule in rules for finding, _ in self._first.values())

    def listed(self) -> list[Finding]:
        """All findings, in the order of the rules."""
        told = [_with_place(*found, self._times[place]) for place, found in self._first.items()]
        order = list(RULES)
        return sorted(told, key=lambda finding: order.index(finding.rule))


def _with_place(finding: Finding, when: str, times: int) -> Finding:
    if not when:
        return finding
    more = f"; {times:,} times in all" if times > 1 else ""
    return Finding(finding.severity, finding.rule, f"{finding.message} (first seen in {when}{more})", finding.hint)


def telling(error: BaseException) -> str:
    """An exception in one line, with the line of code it comes from."""
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    # The author's own line says more than one in a library that it called, or in a wrapper that called it.
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_AUTHORS)]
    return f"{said} ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else said
