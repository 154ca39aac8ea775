"""Handing commands to an engine: now, when their env is free, or when their time has come."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import ordered_span
from shoal.engines.base import Command, Engine, Request
from shoal.errors import ShoalError
from shoal.traffic import Held, Traffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.black_box import BlackBox
    from shoal.reading import RowReader
    from shoal.recovery import Recovery

_LONG_S = 3600.0


class Sender:
    """Writes actions to the engine's rows, submits commands, and keeps ``traffic`` up to date."""

    def __init__(
        self, engine: Engine, traffic: Traffic, reader: RowReader, recovery: Recovery, box: BlackBox | None
    ) -> None:
        self._box = box
        self._engine = engine
        self._traffic = traffic
        self._reader = reader
        self._recovery = recovery
        # Commands that count as under way, although the engine gets them later.
        self._delayed: dict[int, Held] = {}

    @property
    def has_delayed(self) -> bool:
        """Whether commands wait for their time."""
        return bool(self._delayed)

    def submit(self, ids: list[int], command: Command, requests: dict[int, Request] | None) -> None:
        """Hand commands for idle envs to the engine."""
        extras = self._engine.extras
        if extras:
            for i in ids:  # what an interrupted call has left behind must not pass for this one's
                extras.pop(i, None)
        self._traffic.take_off(ids)
        try:
            self._engine.submit(ids, command, requests, self._reader.block)
            if self._box is not None:
                self._box.note(ids, command, requests)
        except (ShoalError, MemoryError):  # what cannot be sent is found out before anything moves
            self._traffic.cancel(ids)
            raise

    def step_all(self, ids: list[int], leaves: list[np.ndarray[Any, Any]]) -> None:
        """Submit one step for every env of an idle pool."""
        self._reader.next_block()
        self.write_actions(slice(None), leaves)
        self.submit(ids, Command.STEP, None)

    def step_idle(self, ids: list[int], leaves: list[np.ndarray[Any, Any]]) -> None:
        """Submit one step for each of these envs, none of which is busy."""
        if not self._traffic.num_flying:
            self._reader.next_block(keep_rows=True)
        self.write_actions(ordered_span(ids) or ids, leaves)
        self.submit(ids, Command.STEP, None)

    def reset_idle(self, ids: list[int], requests: Sequence[Request | None]) -> None:
        """Submit one reset for each of these envs, none of which is busy."""
        self._turn_block(ids)
        wishes = {i: request for i, request in zip(ids, requests, strict=True) if request is not None}
        self.submit(ids, Command.RESET, wishes or None)

    def send(self, ids: Sequence[int], commands: Sequence[Held]) -> None:
        """Submit commands that can go now, and hold those that have to wait for their env."""
        self._turn_block(ids)
        now: dict[Command, list[int]] = {}
        requests: dict[int, Request] = {}
        for i, asked in zip(ids, commands, strict=True):
            if self._traffic.is_busy(i):
                self._traffic.hold(i, asked)
                continue
            held = self._adapted(i, asked) if self._recovery.intervenes else asked
            if held is None or held.not_before > monotonic():
                self._set_aside(i, held)
                self._recovery.claim(i)
                continue
            objects = self._write_action(i, held)
            if held.request is not None:
                requests[i] = held.request
            elif objects:
                requests[i] = Request(action=objects)
            now.setdefault(held.command, []).append(i)
        for command, part in now.items():
            self.submit(part, command, {i: requests[i] for i in part if i in requests} or None)
            for i in part:  # not before: what the engine refuses is still due
                self._recovery.claim(i)

    def _turn_block(self, ids: Sequence[int]) -> None:
        """Have the next results go to rows that the caller does not hold."""
        # An env that has a fault to report is tried again in the same call, whose block nobody has seen yet. Turning to
        # the next block at each try would soon overwrite what the caller holds.
        if not self._traffic.num_flying and self._recovery.notes.keys().isdisjoint(ids):
            self._reader.next_block(keep_rows=True)

    def _adapted(self, env_id: int, held: Held) -> Held | None:
        """The command to send instead to an env that failed; None if it is sent nothing any more."""
        if env_id in self._recovery.dropped:
            return None
        if env_id not in self._recovery.due:
            return held
        request, not_before = self._recovery.due[env_id]
        asked = held.request
        if held.command is Command.RESET and asked is not None:  # the caller's wishes come first
            seed = request.seed if asked.seed is None else asked.seed
            request = replace(request, seed=seed, options=asked.options)
        return Held(Command.RESET, (), request, not_before)

    def _set_aside(self, env_id: int, held: Held | None) -> None:
        """Keep a command until its time has come; None is for a dropped env, which has its row already."""
        self._traffic.take_off([env_id])
        if held is not None:
            self._delayed[env_id] = held
        else:
            self._traffic.land([env_id])

    def launch_due(self, at_least: int, timeout_s: float | None) -> tuple[int, float]:
        """Send what has waited long enough; returns how many rows to wait for now, and for how long.

        Sleeps until then if the engine has nothing else to do.
        """
        left = min(held.not_before for held in self._delayed.values()) - monotonic()
        if left > 0 and self._traffic.num_flying == len(self._delayed):
            sleep(left if timeout_s is None else min(left, timeout_s))
        now = monotonic()
        due = {i: held for i, held in self._delayed.items() if held.not_before <= now}
        for i, held in due.items():
            del self._delayed[i]
            self._traffic.cancel([i])
            self.send([i], [replace(held, not_before=0.0)])
        limits = [held.not_before - now for held in self._delayed.values()]
        busy = self._traffic.num_flying - len(self._delayed)
        return min(at_least, busy), min([*limits, _LONG_S if timeout_s is None else timeout_s])

    def withdraw(self, ids: Sequence[int]) -> None:
        """Take back commands that the engine does not have yet; the resets among them are due again."""
        self._recovery.pass_over(ids)
        for i in [i for i in ids if i in self._delayed]:
            held = self._delayed.pop(i)
            self._traffic.cancel([i])
            if held.request is not None:
                self._recovery.due[i] = (replace(held.request, options=None), held.not_before)

    def write_actions(self, rows: list[int] | slice, leaves: list[np.ndarray[Any, Any]]) -> None:
        """Put the actions of many envs where the engine finds them."""
        index = np.array(rows, np.intp) if isinstance(rows, list) else rows
        for column, leaf in zip(self._engine.rows.action, leaves, strict=True):
            column[index] = leaf  # type: ignore[index]

    def _write_action(self, env_id: int, held: Held) -> tuple[Any, ...]:
        objects = []
        for column, value in zip(self._engine.rows.action, held.leaves, strict=False):
            if column is None:
                objects.append(value)
            else:
                column[env_id] = value
        return tuple(objects)
