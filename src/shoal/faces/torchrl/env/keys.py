"""Names of entries: a string, or a tuple of strings for a nested one.

Internally an entry has a path, always a tuple (``("a", "b")`` or ``("a",)``); users see a key, ``("a", "b")`` or
``"a"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tensordict import TensorDictBase, is_leaf_nontensor, is_non_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.faces.torchrl.specs import Composite

NestedKey: TypeAlias = str | tuple[str, ...]
Path: TypeAlias = tuple[str, ...]


def path_of(key: NestedKey) -> Path:
    """The path of a key."""
    return (key,) if isinstance(key, str) else tuple(key)


def key_of(path: Path) -> NestedKey:
    """The key of a path, as users write it."""
    return path[0] if len(path) == 1 else path


def leaf_keys(spec: Composite) -> list[NestedKey]:
    """The keys of all leaves of a spec, the shallow ones first and then by name."""
    return sorted(spec.keys(True, True), key=lambda key: (len(path_of(key)), path_of(key)))


def data_keys(td: TensorDictBase) -> list[NestedKey]:
    """The keys of all leaves of data: tensors, and texts and other objects."""
    return list(td.keys(True, True, is_leaf=is_leaf_nontensor))


def hollow_keys(spec: Composite) -> list[NestedKey]:
    """The keys of the outermost nested specs that hold no leaf."""
    hollow: list[NestedKey] = []
    for name, child in spec.items():
        if not hasattr(child, "keys"):
            continue
        if child.is_empty(recurse=True):
            hollow.append(name)
        else:
            hollow += [(*path_of(name), *path_of(key)) for key in hollow_keys(child)]
    return hollow


def keys_of(keys: NestedKey | Iterable[NestedKey]) -> list[NestedKey]:
    """A list of keys from one key or several: a tuple of strings is one nested key."""
    if isinstance(keys, str):
        return [keys]
    if isinstance(keys, tuple) and all(isinstance(part, str) for part in keys):
        return [key_of(keys)]
    return list(keys)


def level_of(td: TensorDictBase, path: Path) -> TensorDictBase | None:
    """The TensorDict at a path below another, None when there is none."""
    found: Any = td
    for name in path:
        found = found.get(name, None)
        if found is None:
            return None
    level: TensorDictBase = found
    return level


def is_nested(value: Any) -> bool:
    """Whether an entry is a level of its own."""
    return isinstance(value, TensorDictBase) and not is_non_tensor(value)


def drop(td: TensorDictBase, path: Path) -> None:
    """Take an entry out of the data, if it is there."""
    here = level_of(td, path[:-1])
    if here is not None and here.get(path[-1], None) is not None:
        here.pop(path[-1])
