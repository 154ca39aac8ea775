"""Steps of the whole pool: one number per lane, instead of several words per env."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from shoal.engines.base import Command
from shoal.engines.process.wake import waiter_of
from shoal.quick import quick

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.engines.process.control import Control
    from shoal.engines.process.notes import NoteReader


class Arrival(IntEnum):
    """What has come of a round."""

    NOT_ALL = 0
    ALL_WITH_MORE = 1  # than rows
    ALL = 2


class Rounds:
    """Counts the rounds, which are steps of the whole pool, and tells the lanes about them.

    Attributes:
        number: How many rounds there were.
        waiter: Waits for rows.
    """

    def __init__(self, control: Control, notes: NoteReader, *, needs_all_cores: bool) -> None:
        self._control = control
        self._notes = notes
        self._needs_all_cores = needs_all_cores
        self._lanes = range(control.plan.lanes)
        self.number = 0
        # The block of the last command, if that was a round; None after any other command.
        self._block: int | None = None
        columns = control.columns
        self.waiter = waiter_of(columns, "done", "progress", "wanted", None)
        self._exchange: Callable[..., int] = self._exchange_in_python
        if quick is not None:
            told = [columns[name] for name in ("rounds", "calls", "awaited")]
            heard = (columns["progress"], columns["notes"], notes.taken_N, columns["told"])
            self._exchange = quick.Exchange(self.waiter, *told, columns["go"].reshape(-1), *heard).step

    def count(self, block: int) -> None:
        """Begin a round: from now on, a lane that is reminded steps all its envs."""
        if self._block != block:
            control = self._control
            if self._block is None:
                control.command_N[:] = Command.STEP
            control.block_N[:] = block
            self._block = block
        self.number += 1

    def exchange(self, goal: int, timeout_s: float, meanwhile: Callable[[], None] | None) -> int:
        """Have every lane step all its envs, do something else meanwhile, and wait until ``goal`` rows are published.

        Returns:
            An ``Arrival``.
        """
        return self._exchange(self.number, goal, timeout_s, meanwhile, self._notes.has_news, self._needs_all_cores)

    def _exchange_in_python(
        self,
        number: int,
        goal: int,
        timeout_s: float,
        meanwhile: Callable[[], None] | None,
        look: Callable[[], bool],
        is_crowded: bool,
    ) -> int:
        """What ``csrc/exchanging.c`` does, in Python."""
        self.tell()
        if meanwhile is not None:
            meanwhile()
        if not self.waiter.wait(goal, timeout_s, look, is_crowded) or sum(self._control.progress) != goal:
            return Arrival.NOT_ALL
        return Arrival.ALL if self._notes.is_silent() else Arrival.ALL_WITH_MORE

    def tell(self) -> None:
        """Have every lane step all its envs."""
        number, rounds = self.number, self._control.rounds
        for lane in self._lanes:
            rounds[lane] = number
        self._control.call(self._lanes)

    def note_other(self) -> None:
        """Note that commands of another kind are about to be written."""
        self._block = None

    def remind(self, lane: int) -> None:
        """Tell a lane again about the round that is under way, if there is one."""
        if self._block is not None:
            self._control.rounds[lane] = self.number
        self._control.call((lane,))
