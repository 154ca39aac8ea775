"""Errors of envs, in the words and under the classes that callers of a manager expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.errors import FaultError


_kinds: dict[tuple[type[FaultError], type[Exception]], type[FaultError]] = {}


def failure(error: FaultError, env_id: int, attempts: int, timesteps: Mapping[int, Any] | None = None) -> FaultError:
    """The error to raise for an env that has failed for good.

    It is a ``FaultError``, and an exception of the class that the env raised, whichever of the two a caller catches.
    ``timesteps`` has what the other envs have answered in the same call.
    """
    what = error.where.phase
    told = f"Env {env_id} {what} has exceeded max retries({attempts}), and the latest exception is: {error}"
    new = _kind(type(error), type(error.__cause__))(told, error.where, error.remote_traceback)
    new.__cause__ = error
    for note in getattr(error, "__notes__", [])[bool(error.remote_traceback) :]:
        new.add_note(note)
    new.timesteps = dict(timesteps or {})  # type: ignore[attr-defined]
    return new


def _kind(fault: type[FaultError], cause: type[Any]) -> type[FaultError]:
    """A class that is both; just the first if Python cannot make one of the two."""
    if not issubclass(cause, Exception) or issubclass(fault, cause):
        return fault
    if (fault, cause) not in _kinds:
        _kinds[fault, cause] = _mixed(fault, cause)
    return _kinds[fault, cause]


def _mixed(fault: type[FaultError], cause: type[Exception]) -> type[FaultError]:
    members = {
        "__module__": fault.__module__,
        "__doc__": fault.__doc__,
        "__str__": Exception.__str__,
        # Wherever it is pickled to, nobody has made this class.
        "__reduce__": lambda self: (fault, (self.args[0], self.where, self.remote_traceback)),
    }
    try:
        kind = type(fault.__name__, (fault, cause), members)
        kind("", None, "")
    except Exception:
        return fault
    return kind
