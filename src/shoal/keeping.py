"""What a Python env is at one moment: its own word for it, and how to ask for it through wrappers.

An env takes part in snapshots if it has these two methods, and all that it will ever do follows from what they carry,
its generator included:

    snapshot() -> state     everything it is, as plain data of its own that can be pickled
    restore(state)          be that; also in an env of the same kind that was never reset

The env that a factory returns has to have them: a wrapper that kept a count of its own would go on with it in another
episode. Some of Gymnasium's wrappers keep no more than what is listed here, and are looked through.
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
    """An env that can tell what it is, and become what another was."""

    def snapshot(self) -> Any:
        """Everything it is, as plain data of its own."""

    def restore(self, state: Any) -> None:
        """Be what ``state`` says, without holding on to it."""


class Kept(NamedTuple):
    """An env at one moment.

    Attributes:
        own: What its ``snapshot`` returned.
        around: What the wrappers around it know, outermost first.
    """

    own: Any
    around: tuple[dict[str, Any], ...]


def objection(env: Any) -> str | None:
    """Why an env cannot be kept; None if it can."""
    inner = _peel(env)[-1]
    if callable(getattr(inner, "snapshot", None)) and callable(getattr(inner, "restore", None)):
        return None
    return f"{type(inner).__name__} has no snapshot() and restore(state)"


def keep(env: Any) -> Kept:
    """Everything that an env is."""
    *around, inner = _peel(env)
    return Kept(inner.snapshot(), tuple(_known_to(each) for each in around))


def put_back(env: Any, kept: Kept) -> None:
    """Make an env what another was."""
    *around, inner = _peel(env)
    inner.restore(kept.own)
    for each, known in zip(around, kept.around, strict=True):
        for name, value in known.items():
            setattr(each, name, value)


def _known_to(wrapper: Any) -> dict[str, Any]:
    # Not every version of Gymnasium has all of them.
    return {name: getattr(wrapper, name) for name in _OF_WRAPPERS[type(wrapper)] if hasattr(wrapper, name)}


def _peel(env: Any) -> list[Any]:
    """The wrappers that are looked through, and the env, or other wrapper, inside of them."""
    layers = [env]
    while type(layers[-1]) in _OF_WRAPPERS:
        layers.append(layers[-1].env)
    return layers
