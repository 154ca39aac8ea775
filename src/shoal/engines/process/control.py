"""The shared words through which a pool and its workers talk on every step.

    pool writes     issued, command, letter, block, host, rounds, calls, wanted, leaving, stop
    worker writes   finished, progress, order, running, notes, awaited, told, slips, ends

Each env has a sequence number: a command raises ``issued``, and its completion copies that to ``finished``. So unequal
means pending, and a result can only be taken for the command it answers. The upper half of the number counts how often
the env has lost its worker. ``letter`` is the number of the letter that goes with the command, or 0. ``host`` is the
lane that an env lives in. A lane lists what it finished in ``order``, where it has a ring with room for every env it
may have, and publishes it by raising ``progress``; before that, it adds to ``ends`` how many of these rows end an
episode. A step of the whole pool needs less: the pool raises the number in
``rounds``, and a lane that sees a new number steps all its envs. A lane has something to do when ``calls`` was raised;
if it sleeps until then, it has said so in ``awaited``. The lane that brings the sum of ``progress`` to ``wanted`` wakes
the pool, which is not disturbed before. Every word has one writer, so no lock is needed, and no death can leave one
locked; only the words of a dead worker are cleared by the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.arrays import Arena, Columns, Layout, RowLayout, words
from shoal.engines.process.forms import SLIP_BYTES
from shoal.engines.process.wake import NOBODY_WAITS, REORDERS, SEMAPHORE_BYTES, Fence, Semaphore

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True)
class Plan:
    """Everything a worker needs to find its way in the shared memory."""

    rows: RowLayout
    layout: Layout
    lanes: int
    capacity: int

    @classmethod
    def of(cls, rows: RowLayout, lanes: int, num_workers: int, capacity: int) -> Plan:
        """Lay out rows and control words for this many lanes of at most ``capacity`` envs each."""
        layout = Layout()
        rows.reserve(layout)
        for name, dtype in (("issued", np.int64), ("finished", np.int64), ("letter", np.int64), ("host", np.int32)):
            layout.add(name, (rows.num_envs,), dtype)
        layout.add("order", (lanes * capacity,), np.int32)
        for name in ("command", "block", "told"):
            layout.add(name, (rows.num_envs,), np.uint8)
        layout.add("slips", (rows.num_envs * SLIP_BYTES,), np.uint8)
        layout.add("progress", (lanes,), np.int64)
        for name in ("rounds", "calls", "awaited", "ends"):
            layout.add(name, (lanes,), np.int64)
        layout.add("wanted", (1,), np.int64)
        layout.add("running", (lanes,), np.int32)
        layout.add("notes", (num_workers,), np.int64)
        layout.add("leaving", (num_workers,), np.uint8)
        layout.add("stop", (1,), np.uint8)
        layout.add("go", (lanes, SEMAPHORE_BYTES), np.uint8)
        layout.add("done", (SEMAPHORE_BYTES,), np.uint8)
        return cls(rows, layout, lanes, capacity)


class Control:
    """The control words over an arena: arrays for whole batches, memoryviews for single words."""

    def __init__(self, plan: Plan, arena: Arena, *, create: bool = False) -> None:
        self.plan = plan
        # The views below keep the mapping alive; keeping the arena makes that explicit.
        self.arena = arena
        self.columns: Columns = plan.layout.view(arena.buffer)
        self.command_N = self.columns["command"]
        self.block_N = self.columns["block"]
        self.issued = words(self.columns["issued"])
        self.finished = words(self.columns["finished"])
        self.command = words(self.command_N)
        self.block = words(self.block_N)
        self.letter = words(self.columns["letter"])
        self.told = words(self.columns["told"])
        self.slips = words(self.columns["slips"])
        self.host = words(self.columns["host"])
        self.order = words(self.columns["order"])
        self.progress = words(self.columns["progress"])
        self.rounds = words(self.columns["rounds"])
        self.calls = words(self.columns["calls"])
        self.awaited = words(self.columns["awaited"])
        self.ends = words(self.columns["ends"])
        self.wanted = words(self.columns["wanted"])
        self.running = words(self.columns["running"])
        self.notes = words(self.columns["notes"])
        self.leaving = words(self.columns["leaving"])
        self.stop = words(self.columns["stop"])
        if create:
            self.columns["running"][:] = -1
            self.columns["awaited"][:] = self.wanted[0] = NOBODY_WAITS
        self.go = [Semaphore(arena.address(word), create=create) for word in self.columns["go"]]
        self.done = Semaphore(arena.address(self.columns["done"]), create=create)
        self._all_awake = [NOBODY_WAITS] * plan.lanes
        self._fence = Fence()

    def call(self, lanes: Collection[int]) -> None:
        """Tell lanes that there is something to do, and wake those that sleep."""
        calls, awaited = self.calls, self.awaited
        if REORDERS:
            self._fence()  # what there is to do must be written before
        for lane in lanes:
            calls[lane] += 1
        self._fence()
        if awaited.tolist() != self._all_awake:
            for lane in lanes:
                if calls[lane] >= awaited[lane]:
                    self.go[lane].post()

    def clear_lane(self, lane: int, env_ids: Sequence[int], rounds: int) -> None:
        """Make a lane whose worker is dead as good as new: nothing pending, nothing published."""
        for i in env_ids:
            self.clear_env(i)
        self.progress[lane] = 0
        self.rounds[lane] = rounds
        self.running[lane] = -1
        self.calls[lane] = 0
        self.awaited[lane] = NOBODY_WAITS
        self.go[lane].clear()

    def clear_env(self, env_id: int) -> None:
        """Forget the last command of an env whose worker is dead, so that no other worker takes it for its own."""
        self.told[env_id] = 0
        self.issued[env_id] = self.finished[env_id] = ((self.issued[env_id] >> 32) + 1) << 32
