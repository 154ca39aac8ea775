"""Locks: a tree of specs that may not be changed, so that whatever was derived from it can be cached.

A lock holds for a whole tree. A child that is locked as part of a parent can only be unlocked through that parent.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator


class Lockable:
    """A node of a tree of specs that can be locked."""

    def __init__(self) -> None:
        self._locked = False
        self._lockers: list[weakref.ref[Lockable]] = []

    def _nodes_below(self) -> Iterator[Lockable]:
        """The children that can be locked themselves."""
        raise NotImplementedError

    @property
    def is_locked(self) -> bool:
        """Whether changes are refused."""
        return self._locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if value:
            self.lock_()
        else:
            self.unlock_()

    @property
    def locked(self) -> bool:
        """The same as ``is_locked``."""
        return self._locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Refuse changes from now on, here and (unless ``recurse`` is False) in all children."""
        self._locked = True
        if recurse is not False:
            for node in self._nodes_below():
                node._locked_by(self)
        return self

    def _locked_by(self, parent: Lockable) -> None:
        self._lockers.append(weakref.ref(parent))
        self.lock_()

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Allow changes again, here and (unless ``recurse`` is False) in all children.

        Raises:
            RuntimeError: This spec is part of a locked tree.
        """
        if any(locker is not None and locker._locked for locker in (ref() for ref in self._lockers)):
            raise RuntimeError("this spec is part of a locked tree of specs: unlock the tree")
        self._locked = False
        self._lockers = []
        if recurse is not False:
            for node in self._nodes_below():
                node._lockers = [ref for ref in node._lockers if ref() is not self]
                node.unlock_()
        return self

    def _check_unlocked(self) -> None:
        if self._locked:
            raise RuntimeError(
                "this spec is locked: unlock_() it, or set_spec_lock_(False) on its env, before a change"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Weak references cannot be pickled; __setstate__ restores those of a locked tree.
        return {**self.__dict__, "_lockers": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._locked:
            for node in self._nodes_below():
                node._lockers.append(weakref.ref(self))
