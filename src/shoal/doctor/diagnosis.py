"""The result of an examination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "problem"]
Watch = Callable[[str], None]
"""Called with the topic that is about to be examined."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one examination.

    Attributes:
        topic: What was examined, in a word or two.
        verdict: ``"ok"``; ``"warning"`` for what may get in the way; ``"problem"`` for what will.
        found: What was found.
        fix: What to do about it, one way per line; empty if there is nothing to do.
    """

    topic: str
    verdict: Verdict
    found: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """All fields by name."""
        return asdict(self)


def examined(topic: str, examination: Callable[[], Diagnosis]) -> Diagnosis:
    """The result of an examination. If the examination itself fails, that is a finding, and the others still run."""
    try:
        return examination()
    except Exception as error:
        return Diagnosis(topic, "problem", f"could not be examined: {brief(error)}")


def no_watch(topic: str) -> None:
    """Watch nothing."""


def brief(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def size(count_bytes: float) -> str:
    """A number of bytes in human-readable form."""
    for unit in ("B", "KiB", "MiB"):
        if count_bytes < 1024:
            return f"{count_bytes:.3g} {unit}" if unit != "B" else f"{count_bytes:.0f} B"
        count_bytes /= 1024
    return f"{count_bytes:.1f} GiB"


def plural(count: int, noun: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
