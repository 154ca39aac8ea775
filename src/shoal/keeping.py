"""The state of a Python env at one moment: how an env gives it, and how to ask for it through wrappers.

An env takes part in snapshots if it has these two methods, and everything it will ever do follows from the state that
they carry, its generator included:

    snapshot() -> state     its complete state, as a copy in plain data that can be pickled
    restore(state)          take on that state, even in an env of the same kind that was never reset

The outermost env that a factory returns has to have them: a wrapper with a count of its own would carry it on into
another episode. A few of Gymnasium's wrappers, whose whole state is listed here, are looked through.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from gymnasium import wrappers

_OF_WRAPPERS: dict[type, tuple[str, ...]] = {
    wrappers.TimeLimit: ("_elapsed_steps",),
    wrappers.OrderEnforcing: ("_has_reset",),
    wrappers.PassiveEnvChecker: ("checked_reset", "checked_step", "checked_data_reuse", "_previous_data"),
}


class KeepsState(Protocol):
    """An env that can give its state, and take on that of another."""

    def snapshot(self) -> Any:
        """The complete state, as a copy in plain data."""

    def restore(self, state: Any) -> None:
        """Take on a state, without holding on to it."""


class Kept(NamedTuple):
    """The state of an env at one moment.

    Attributes:
        own: What its ``snapshot`` returned.
        around: The state of the wrappers around it, outermost first.
    """

    own: Any
    around: tuple[dict[str, Any], ...]


def objection(env: Any) -> str | None:
    """Why the state of an env cannot be kept; None if it can."""
    inner = _peel(env)[-1]
    if callable(getattr(inner, "snapshot", None)) and callable(getattr(inner, "restore", None)):
        return None
    return f"{type(inner).__name__} has no snapshot() and restore(state)"


def keep(env: Any) -> Kept:
    """The complete state of an env."""
    *around, inner = _peel(env)
    return Kept(inner.snapshot(), tuple(_known_to(each) for each in around))


def put_back(env: Any, kept: Kept) -> None:
    """Put an env into the state of another."""
    *around, inner = _peel(env)
    inner.restore(kept.own)
    for each, known in zip(around, kept.around, strict=True):
        for name, value in known.items():
            setattr(each, name, value)


def _known_to(wrapper: Any) -> dict[str, Any]:
    # Not every version of Gymnasium has all of them.
    return {name: getattr(wrapper, name) for name in _OF_WRAPPERS[type(wrapper)] if hasattr(wrapper, name)}


def _peel(env: Any) -> list[Any]:
    """The wrappers that are looked through, then the env (or other wrapper) inside them."""
    layers = [env]
    while type(layers[-1]) in _OF_WRAPPERS:
        layers.append(layers[-1].env)
    return layers
