"""Whether a worker that died in a soak had a reason to."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.testing.soak_env import HANGS, LETHAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.testing.soak_env import Journal


class Deaths:
    """Which workers had a reason to die, and whom they took with them.

    Attributes:
        killed: Process ids that were killed from outside.
        starved: Deadlines that passed though nothing hung in that process; the env was there, and may have been slow.
    """

    def __init__(self, journal: Journal, worker_of: Sequence[int]) -> None:
        self.killed: set[int] = set()
        self.starved = 0
        self._journal = journal
        self._worker_of = worker_of
        self._looked_at = 0
        self._lethal: set[int] = set()
        self._hung_in: dict[int, list[int]] = {}
        self._hung_workers: Counter[int] = Counter()
        self._charged: set[tuple[int, int]] = set()
        self._collateral: Counter[int] = Counter()

    def explain(self, env: int, note: dict[str, Any]) -> str | None:
        """Why a fault that the env itself did not plan has no explanation; None if it has one."""
        found = re.search(r"pid (\d+)", note["message"])
        if found is None:
            return self._explain_thread(env, note)
        pid = int(found[1])
        if (pid, env) in self._charged:
            return f"the death of process {pid} is told a second time"
        self._charged.add((pid, env))
        self._look()
        if note["kind"] == "EnvTimeout":
            return self._explain_hang(env, pid)
        if note["kind"] != "WorkerDied":
            return "nothing was to go wrong"
        # A starved worker's neighbours may be reported first.
        known = pid in self.killed or pid in self._lethal or "it hung in env" in note["message"]
        return None if known else f"nothing has killed process {pid}"

    def _explain_hang(self, env: int, pid: int) -> str | None:
        """An env that did not hang may have been too slow for its deadline, but only where it was."""
        self._lethal.add(pid)
        if culprits := self._hung_in.get(pid):
            return f"in process {pid} it was env {culprits[0]} that hung"
        if pid not in self._journal.homes(env):
            return f"it was never in process {pid}"
        self.starved += 1
        return None

    def _explain_thread(self, env: int, note: dict[str, Any]) -> str | None:
        """A thread that hangs takes the envs behind it along, each once."""
        if note["kind"] != "EnvTimeout":
            return "nothing was to go wrong"
        self._look()
        self._collateral[env] += 1
        if self._collateral[env] > self._hung_workers[self._worker_of[env]]:
            self.starved += 1
        return None

    def _look(self) -> None:
        shots, self._looked_at = self._journal.shots(self._looked_at)
        for shot in shots:
            if shot.kind in LETHAL or shot.kind in HANGS:
                self._lethal.add(shot.pid)
                self._hung_workers[self._worker_of[shot.tag]] += 1
            if shot.kind in HANGS:
                self._hung_in.setdefault(shot.pid, []).append(shot.tag)
