"""Who is where: commands between ``send`` and ``recv``.

    send ─▶ waiting (env busy) ─▶ flying (with the engine) ─▶ landed (row complete) ─▶ recv

An env has at most one command with the engine; further ones wait here until the row before them has been handed
out, so a row is never overwritten before its reader has it. A synchronous pool hands out whole groups, one per
``send``, in the order of the ids sent; an asynchronous one hands out rows as they land.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shoal.engines.base import Command, Request


@dataclass(frozen=True, slots=True)
class Held:
    """A command for one env: the leaf rows of its action, or its request.

    ``not_before`` is the moment, on the monotonic clock, before which the engine must not get it.
    """

    command: Command
    leaves: Sequence[Any] = ()
    request: Request | None = None
    not_before: float = 0.0


class Traffic:
    """The state of every command whose row has not been received yet.

    Most pools only ever move as a whole. That case is two flags, so its cost does not grow with the number of envs;
    anything else turns the flags into sets first (``_spread``).
    """

    def __init__(self, num_envs: int) -> None:
        self.groups: deque[list[int]] = deque()
        self._num_envs = num_envs
        self._all_flying = False
        self._all_landed = False
        self._flying: set[int] = set()
        self._landed: dict[int, None] = {}  # keeps the order of arrival
        self._waiting: dict[int, deque[Held]] = {}
        self.void: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not (self._all_flying or self._all_landed or self._flying or self._landed or self._waiting)

    @property
    def num_flying(self) -> int:
        """Commands with the engine."""
        return self._num_envs if self._all_flying else len(self._flying)

    @property
    def num_under_way(self) -> int:
        """Rows that are still to be handed out, counting one per env."""
        self._spread()
        return len(self._flying) + len(self._landed)

    def is_busy(self, env_id: int) -> bool:
        """Whether this env has a command whose row has not been handed out yet."""
        return self._all_flying or self._all_landed or env_id in self._flying or env_id in self._landed

    def are_idle(self, ids: Sequence[int]) -> bool:
        """Whether none of these envs is busy."""
        if self._all_flying or self._all_landed:
            return False
        return self._flying.isdisjoint(ids) and self._landed.keys().isdisjoint(ids)

    def has_landed(self, env_id: int) -> bool:
        """Whether the row of this env is complete and waits for its reader."""
        return self._all_landed or env_id in self._landed

    def busy(self) -> list[int]:
        """Envs with a command whose row has not been handed out yet."""
        # Also called while another thread sends, so nothing may change here.
        if self._all_flying or self._all_landed:
            return list(range(self._num_envs))
        return sorted(self._flying | self._landed.keys())

    def landed(self, group: Sequence[int] | None = None) -> list[int]:
        """Ids whose rows are complete: those of ``group`` in its order, or all in order of arrival."""
        self._spread()
        return list(self._landed) if group is None else [i for i in group if i in self._landed]

    def take_off(self, ids: Sequence[int]) -> None:
        """Note that the engine has commands for these idle envs."""
        if len(ids) == self._num_envs:
            self._all_flying = True
        else:
            self._flying.update(ids)

    def land(self, ids: Sequence[int]) -> None:
        """Note that the engine has finished the commands of these envs."""
        if self._all_flying and len(ids) == self._num_envs:
            self._all_flying, self._all_landed = False, True
            return
        self._spread()
        wanted = self._flying - self.void if self.void else self._flying
        landed = {**self._landed, **dict.fromkeys(filter(wanted.__contains__, ids))}
        flying, void = self._flying.difference(ids), self.void.difference(ids)
        self._landed, self._flying, self.void = landed, flying, void  # in one go, for whoever is interrupted

    def take_back(self, env_id: int) -> None:
        """Discard a row that has landed but is not the answer, so that its env can take another command instead."""
        self._spread()
        self._landed.pop(env_id, None)

    def cancel(self, ids: Collection[int]) -> None:
        """Note that the engine has refused or lost the commands of these envs."""
        self._spread()
        self._flying.difference_update(ids)

    def cancel_void(self) -> bool:
        """Note that the engine has lost the commands whose results nobody wants; returns whether there were any."""
        has_void = bool(self.void)
        self.cancel(self.void)
        self.void.clear()
        return has_void

    def cancel_all(self) -> None:
        """Note that the engine has lost all its commands, and drop those that waited for them."""
        self._spread()
        self._flying.clear()
        self._waiting.clear()
        self.void.clear()

    def abandon(self, ids: Sequence[int]) -> None:
        """Give up on the commands of these envs: what the engine still returns for them is to be dropped."""
        self._spread()
        self.void.update(i for i in ids if i in self._flying)
        self.forget(ids)

    def hold(self, env_id: int, held: Held) -> None:
        """Keep a command until its env is free. The caller may reuse its arrays meanwhile, so they are copied."""
        if any(isinstance(leaf, np.ndarray) for leaf in held.leaves):
            own = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in held.leaves]
            held = replace(held, leaves=own)
        if env_id in self._waiting:
            self._waiting[env_id].append(held)
        else:
            self._waiting[env_id] = deque([held])

    def hand_out(self, ids: Sequence[int]) -> list[tuple[int, Held]]:
        """Note that the reader has these rows; returns the commands that waited for that."""
        if self._all_landed and len(ids) == self._num_envs:
            self._all_landed = False
        else:
            self._spread()
            landed = self._landed.copy()  # so that an interrupt finds all of them gone, or none
            for i in ids:
                del landed[i]
            self._landed = landed
        return [(i, self._release(i)) for i in ids if i in self._waiting] if self._waiting else []

    def forget(self, ids: Sequence[int]) -> None:
        """Drop what has landed or waits for these envs, because a reset or a fault makes it void."""
        self._spread()
        void = set(ids)
        for i in ids:
            self._landed.pop(i, None)
            self._waiting.pop(i, None)
        rests = [[i for i in group if i not in void] for group in self.groups]
        self.groups.clear()
        self.groups.extend(rest for rest in rests if rest)

    def _release(self, env_id: int) -> Held:
        queue = self._waiting[env_id]
        held = queue.popleft()
        if not queue:
            del self._waiting[env_id]
        return held

    def _spread(self) -> None:
        # In this order, because an interrupt in between then leaves both the flag and the set, and loses nothing.
        if self._all_flying:
            self._flying.update(range(self._num_envs))
            self._all_flying = False
        if self._all_landed:
            self._landed.update(dict.fromkeys(range(self._num_envs)))
            self._all_landed = False
