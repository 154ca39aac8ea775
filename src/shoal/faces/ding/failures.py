"""Errors of envs, with the wording and the classes that callers of a manager expect."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shoal.errors import FaultError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_kinds: dict[tuple[type[FaultError], type[Exception]], type[FaultError]] = {}


def failure(error: FaultError, env_id: int, attempts: int, timesteps: Mapping[int, Any] | None = None) -> FaultError:
    """The error to raise for an env that has failed for good.

    It has two classes, as in ``of_both_classes``. ``timesteps`` holds what the other envs have answered in the same
    call.
    """
    what = error.where.phase
    told = f"Env {env_id} {what} has exceeded max retries({attempts}), and the latest exception is: {error}"
    new = of_both_classes(error, told)
    new.timesteps = dict(timesteps or {})  # type: ignore[attr-defined]
    return new


def of_both_classes(error: FaultError, told: str | None = None) -> FaultError:
    """An error that is both a ``FaultError`` and of the class that the env raised, so that callers may catch either.

    ``told``, if given, replaces the error's own text. If the env is in another process, its traceback is appended.
    """
    is_remote = bool(error.remote_traceback) and error.where.pid not in (None, os.getpid())
    text = str(error) if told is None else told
    if is_remote:
        text += f"\nIn the env:\n{error.remote_traceback.rstrip()}"
    new = _kind(type(error), type(error.__cause__))(text, error.where, error.remote_traceback)
    if is_remote:
        new.__notes__.clear()  # they only repeat the traceback
    new.__cause__ = error
    for note in getattr(error, "__notes__", [])[bool(error.remote_traceback) :]:
        new.add_note(note)
    return new


@contextmanager
def either_class() -> Iterator[None]:
    """Raise whatever an env raises in this block under both classes."""
    try:
        yield
    except FaultError as error:
        raise of_both_classes(error) from error


def _kind(fault: type[FaultError], cause: type[Any]) -> type[FaultError]:
    """A class that is both; just the first if Python cannot combine the two."""
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
        # This class does not exist in the process that unpickles the error.
        "__reduce__": lambda self: (fault, (self.args[0], self.where, self.remote_traceback)),
    }
    try:
        kind = type(fault.__name__, (fault, cause), members)
        kind("", None, "")
    except Exception:
        return fault
    return kind
