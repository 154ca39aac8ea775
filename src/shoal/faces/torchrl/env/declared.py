"""The names that specs declare, and what a step returns beyond them.

A step may return more than its specs say. Such entries stay under ``"next"``: if they were carried to the next root,
only the first root of a rollout would lack them, and the roots would not be alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import LazyStackedTensorDict

from shoal.faces.torchrl.env.keys import Path, is_nested
from shoal.faces.torchrl.fast_td import entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict import TensorDictBase

# The names of one level: those below it, or None for a leaf.
Names = dict[str, Any]


def names_of(*specs: Any) -> Names:
    """The names that any of these specs declares, level by level."""
    children: dict[str, list[Any]] = {}
    for spec in specs:
        # A stack of specs names only what all of its parts have.
        for part in spec.unbind(spec.stack_dim) if hasattr(spec, "stack_dim") else (spec,):
            for name, child in part.items():
                children.setdefault(name, []).append(child)
    return {
        name: names_of(*below) if all(hasattr(child, "keys") for child in below) else None
        for name, below in children.items()
    }


def has_strays(out: TensorDictBase, names: Names) -> bool:
    """Whether a step has returned what no spec declares; also True where only a closer look can tell."""
    inside = entries_of(out)
    if inside is None:
        return True
    for name, value in inside.items():
        below = names.get(name, False)
        if below is not None and (below is False or has_strays(value, below)):
            return True
    return False


def strays(out: TensorDictBase, preset: Any, names: Names, path: Path = ()) -> Iterator[Path]:
    """The paths of what a step has returned that no spec declares and that was not there before."""
    inside, known = entries_of(out), entries_of(preset)
    held = (() if preset is None else preset.keys()) if known is None else known
    for name in out.keys() if inside is None else inside:
        below = names.get(name, None)
        if name not in names:
            if name not in held:
                yield (*path, name)
        elif below is not None and not isinstance(out, LazyStackedTensorDict):
            # The rows of a stack may differ in shape, and then cannot be read as one.
            value = out.get(name) if inside is None else inside[name]
            before = preset.get(name, None) if name in held else None
            if is_nested(value):
                yield from strays(value, before if is_nested(before) else None, below, (*path, name))
