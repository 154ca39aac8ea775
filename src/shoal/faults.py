"""A fault as plain data: what failed, where, and why, in a form that can cross a process border."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass

from shoal.errors import FAULT_OF_PHASE, FaultError, MissingAttribute, Where, WorkerDied


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong in one env.

    Attributes:
        where: Which env, doing what.
        summary: Type and text of the exception, in one line.
        traceback: The whole traceback as text.
        cause: The exception itself, if it could be carried here.
        error_class: The class of error to raise, if the phase alone does not say.
        is_collateral: Whether another env is to blame, which brought down the worker they shared.
        spares_env: Whether the env is sound, so that a reset is all it needs.
    """

    where: Where
    summary: str
    traceback: str = ""
    cause: BaseException | None = None
    error_class: type[FaultError] | None = None
    is_collateral: bool = False
    spares_env: bool = False

    @property
    def kind(self) -> type[FaultError]:
        """The class of the error."""
        if self.error_class is not None:
            return self.error_class
        is_missing = self.where.phase == "call" and isinstance(self.cause, AttributeError)
        return MissingAttribute if is_missing else FAULT_OF_PHASE[self.where.phase]

    @property
    def loses_env(self) -> bool:
        """Whether no env is left that could be reset: it hangs, died with its worker, or was never built."""
        return self.error_class is not None or self.where.phase == "construct"

    def as_dict(self) -> dict[str, str]:
        """Class, text, traceback and phase, as plain data."""
        return {
            "kind": self.kind.__name__,
            "message": f"{self.where.phase} failed in {self.where}: {self.summary}",
            "traceback": self.traceback,
            "phase": self.where.phase,
        }

    def to_error(self) -> FaultError:
        """The exception to raise in the caller's process."""
        error = self.kind(self.as_dict()["message"], self.where, self.traceback)
        error.__cause__ = self.cause
        return error


def error_of(faults: list[Fault]) -> FaultError:
    """One error for several faults: that of the most telling one, with the others in its notes."""
    # Envs that fell with another's worker come last: they say less than the one that brought it down.
    first, *others = sorted(faults, key=lambda fault: (fault.is_collateral, fault.error_class is WorkerDied))
    error = first.to_error()
    for text in dict.fromkeys(str(other.to_error()) for other in others):
        if text != str(error):
            error.add_note(f"Also: {text}")
    return error


def fault_from(
    error: BaseException,
    *,
    env_id: int,
    phase: str,
    worker: int | None = None,
    episode_step: int | None = None,
    seed: int | None = None,
    incarnation: int = 0,
) -> Fault:
    """Describe an exception that an env has just raised."""
    pid = None if worker is None else os.getpid()
    where = Where((env_id,), phase, worker, pid, episode_step, seed, incarnation)
    summary = "".join(traceback.format_exception_only(error)).strip()
    return Fault(where, summary, "".join(traceback.format_exception(error)), error)
