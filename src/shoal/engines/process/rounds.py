"""Steps of the whole pool: one number per lane, instead of several words per env."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.engines.base import Command

if TYPE_CHECKING:
    from shoal.engines.process.control import Control


class Rounds:
    """Counts the rounds, which are steps of the whole pool, and tells the lanes about them.

    Attributes:
        number: How many rounds there were.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lanes = range(control.plan.lanes)
        self.number = 0
        # The block of the last command, if that was a round; None after any other command.
        self._block: int | None = None

    def count(self, block: int) -> None:
        """Begin a round: from now on, a lane that is reminded steps all its envs."""
        control = self._control
        if self._block != block:
            if self._block is None:
                control.command_N[:] = Command.STEP
            control.block_N[:] = block
            self._block = block
        self.number += 1

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
