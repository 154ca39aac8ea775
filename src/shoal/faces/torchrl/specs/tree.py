"""The tree of a Composite: named entries, nested keys, and changes that respect a lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shoal.faces.torchrl.specs.locks import Lockable

if TYPE_CHECKING:
    import torch

    from shoal.faces.torchrl.specs.base import TensorSpec

Key = str | tuple[str, ...]

# Attributes of every spec, which therefore cannot name an entry.
RESERVED = frozenset({"shape", "device", "dtype", "space"})
_REQUIRED = object()


class KeysView:
    """The keys of a Composite; nested ones are tuples."""

    def __init__(self, tree: SpecTree, include_nested: bool, leaves_only: bool) -> None:
        self._tree, self._nested, self._leaves_only = tree, include_nested, leaves_only

    def __iter__(self) -> Iterator[Key]:
        for name in self._tree._names():
            child = self._tree._child(name)
            is_tree = isinstance(child, SpecTree)
            if not (is_tree and self._leaves_only):
                yield name
            if is_tree and self._nested:
                for key in KeysView(child, True, self._leaves_only):
                    yield (name, *((key,) if isinstance(key, str) else key))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        name = _unravel(key)
        if name is None or (isinstance(name, tuple) and not self._nested):
            return False
        found = self._tree._find(name)
        return found is not _REQUIRED and not (self._leaves_only and isinstance(found, SpecTree))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (KeysView, set, frozenset, type({}.keys()))) and set(self) == set(other)

    __hash__ = None  # type: ignore[assignment]  # a view of something that can change

    def __repr__(self) -> str:
        return f"KeysView({list(self)})"


def _unravel(key: object) -> Key | None:
    """A key with nested tuples flattened, and a tuple of one name reduced to that name; None if it is no key."""
    if isinstance(key, str):
        return key
    if not isinstance(key, tuple) or not key:
        return None
    names: list[str] = []
    for part in key:
        inner = _unravel(part)
        if inner is None:
            return None
        names += [inner] if isinstance(inner, str) else inner
    return names[0] if len(names) == 1 else tuple(names)


class SpecTree(Lockable):
    """Named specs, and everything that can be done by name alone."""

    shape: torch.Size

    # What a subclass knows about its entries.

    def _names(self) -> list[str]:
        raise NotImplementedError

    def _child(self, name: str) -> Any:
        raise NotImplementedError

    def _put(self, name: str, spec: TensorSpec | None) -> None:
        raise NotImplementedError

    def _drop(self, name: str) -> None:
        raise NotImplementedError

    def _new_subtree(self) -> SpecTree:
        raise NotImplementedError

    def _as_spec(self, value: Any) -> TensorSpec | None:
        raise NotImplementedError

    # Reading ------------------------------------------------------------------------------------------------------

    def keys(self, include_nested: bool = False, leaves_only: bool = False, *, is_leaf: Any = None) -> KeysView:
        """The keys.

        Args:
            include_nested: Include the keys of nested specs, as tuples.
            leaves_only: Leave out the keys of the nested specs themselves.
            is_leaf: Not used; leaves are the specs that are not a Composite.
        """
        return KeysView(self, include_nested, leaves_only)

    def items(self, include_nested: bool = False, leaves_only: bool = False) -> list[tuple[Key, Any]]:
        """The keys and their specs."""
        return [(key, self.get(key)) for key in self.keys(include_nested, leaves_only)]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """The specs."""
        return [self.get(key) for key in self.keys(include_nested, leaves_only)]

    def get(self, key: Any, default: Any = None) -> Any:
        """The spec of a key, or a default."""
        found = self._find(_unravel(key))
        return default if found is _REQUIRED else found

    def _find(self, key: Key | None) -> Any:
        if key is None:
            return _REQUIRED
        first, *rest = (key,) if isinstance(key, str) else key
        if first not in self._names():
            return _REQUIRED
        child = self._child(first)
        if not rest:
            return child
        return child._find(tuple(rest)) if isinstance(child, SpecTree) else _REQUIRED

    def _entry(self, key: Any) -> Any:
        found = self._find(_unravel(key))
        if found is _REQUIRED:
            raise KeyError(f"{key!r} is not among the keys {[str(name) for name in self.keys(True)]}")
        return found

    def __contains__(self, key: object) -> bool:
        return self._find(_unravel(key)) is not _REQUIRED

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there are no entries.

        Args:
            recurse: Whether to ignore nested specs that are empty themselves.
        """
        if not recurse:
            return not self._names()
        return all(isinstance(child, SpecTree) and child.is_empty(True) for child in map(self._child, self._names()))

    # Changing -----------------------------------------------------------------------------------------------------

    def set(self, key: Any, spec: Any) -> Any:
        """Set an entry, creating nested specs along the way, and return the Composite.

        Raises:
            RuntimeError: The spec is locked.
            ValueError: The dims of the entry do not begin with those of the Composite.
        """
        self._check_unlocked()
        name = _unravel(key)
        if name is None:
            raise TypeError(f"a key is a string or a tuple of strings, got {key!r}")
        first, *rest = (name,) if isinstance(name, str) else name
        if not rest:
            if first in RESERVED:
                raise AttributeError(f"an entry cannot be named {first!r}: that is an attribute of every spec")
            self._put(first, self._as_spec(spec))
            return self
        if first not in self._names() or self._child(first) is None:
            self._put(first, self._new_subtree())  # type: ignore[arg-type]  # the subtree of a Composite is a spec
        child = self._child(first)
        if not isinstance(child, SpecTree):
            raise KeyError(f"{first!r} is a leaf: {name!r} cannot be set below it")
        child.set(tuple(rest), spec)
        return self

    def __setitem__(self, key: Any, spec: Any) -> None:
        self.set(key, spec)

    def __delitem__(self, key: Any) -> None:
        self._entry(key)
        name = _unravel(key)
        if isinstance(name, str):
            self._drop(name)
        elif name is not None:
            del self._entry(name[:-1])[name[-1]]

    def pop(self, key: Any, default: Any = _REQUIRED) -> Any:
        """Remove an entry and return it.

        Raises:
            KeyError: There is no such entry, and no default.
            RuntimeError: The spec is locked.
        """
        self._check_unlocked()
        if key not in self:
            if default is _REQUIRED:
                raise KeyError(f"{key!r} is not among the keys {list(self.keys(True))}")
            return default
        found = self._entry(key)
        del self[key]
        return found

    def separates(self, *keys: Any, default: Any = None) -> Any:
        """Move entries out into a Composite of their own; ``default`` if none of them exist."""
        if not any(key in self for key in keys):
            return default
        out = self._new_subtree()
        for key in keys:
            if key in self:
                out.set(key, self._entry(key))
                del self[key]
        for name in self._names():
            child = self._child(name)
            if isinstance(child, SpecTree) and child.is_empty():
                self._drop(name)
        return out

    def update(self, other: Mapping[Any, Any] | SpecTree) -> Any:
        """Set all entries of another Composite or dict; nested ones are merged."""
        self._check_unlocked()
        for key, value in other.items():
            mine = self.get(key)
            if isinstance(mine, SpecTree) and isinstance(value, (SpecTree, Mapping)):
                mine.update(value)
            else:
                self.set(key, value)
        return self
