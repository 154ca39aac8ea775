"""The caller as one of the workers: the last share of the envs runs in the thread that would wait for the others.

    caller's thread    tell the workers │ step own envs          │ wait for the rest │ hand out rows
    worker processes                    │ step theirs                       │

With as many workers as cores, the caller has to share a core with one of them, and each finds the core's caches full of
the other's data. Here no core is shared, nobody has to be woken for the caller's own envs, and their rows never leave
the core. The price is that of the serial engine: whatever an env does to its process, it does to the caller's.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from shoal.engines.base import Command, EngineConfig, Request, sharers, shares
from shoal.engines.process import ProcessEngine
from shoal.engines.serial import SerialEngine
from shoal.engines.starting import closing_on_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


class InlineEngine:
    """Runs the first envs in worker processes and the last ones in the caller's thread; for two or more lanes."""

    name = "process"
    finals_are_columns = False
    has_odd_rows = episodes = None

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.num_workers = sharers(config)  # the caller among them
        own = shares(config.num_envs, self.num_workers)[-1]
        self._first_own = own.start
        self._own = SerialEngine(config, own)
        self._others = ProcessEngine(replace(config, num_workers=self.num_workers - 1), hosted=own.start)
        self.extras = self._own.extras = self._others.extras
        self.faults = self._own.faults = self._others.faults
        self.collected: list[int] = []
        self._block = 0
        self._meanwhile: Callable[[], None] | None = None

    def start(self) -> None:
        """Build the caller's own envs, then let the workers build theirs."""
        lane = self._own.lane
        with closing_on_error(lane.close):
            self._others.start(faults=lane.build(), specs=lane.specs)
        self.spec, self.rows, self.take = self._others.spec, self._others.rows, self._others.take
        lane.attach(self.rows)

    def step_now(self, block: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Step every env: the caller's own while the workers step theirs."""
        self._block, self._meanwhile = block, meanwhile
        self._own.collected, self._others.collected = [], []
        try:
            self._others.step_now(block, self._step_own)
        finally:
            self.collected = self._others.collected + self._own.collected

    def _step_own(self) -> None:
        self._own.step_now(self._block, self._meanwhile)

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Hand the workers their commands, and queue the caller's own."""
        first = self._first_own
        others, own = [i for i in ids if i < first], [i for i in ids if i >= first]
        if others:
            theirs = {i: request for i, request in requests.items() if i < first} if requests else None
            self._others.submit(others, command, theirs, block)
        if own:
            self._own.submit(own, command, requests, block)

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Take what the workers have finished, run the caller's own commands, then wait for the workers if need be."""
        end = None if timeout_s is None else monotonic() + timeout_s
        done: list[int] = []
        self.collected = done
        self._take_from(self._others, 0, 0.0)
        while len(done) < at_least and (queued := self._own.num_queued):
            if end is not None and done and monotonic() >= end:
                return done
            # All at once if everything is wanted; otherwise the workers may have delivered enough after any of these.
            is_all_wanted = at_least - len(done) >= queued + sum(self._others.owed)
            self._take_from(self._own, queued if is_all_wanted else 1, timeout_s)
            self._take_from(self._others, 0, 0.0)
        if len(done) < at_least:
            left = None if end is None else max(0.0, end - monotonic())
            self._take_from(self._others, at_least - len(done), left)
        return done

    def _take_from(self, part: SerialEngine | ProcessEngine, at_least: int, timeout_s: float | None) -> None:
        part.collected = []
        try:
            part.collect(at_least, timeout_s)
        finally:  # keeps what was finished before an interrupt
            self.collected += part.collected

    def check_requests(self, requests: Mapping[int, Request]) -> None:
        """Make sure that the workers' requests can be sent."""
        self._others.check_requests({i: request for i, request in requests.items() if i < self._first_own})

    @property
    def ends(self) -> int:
        """How many rows that end an episode have been written."""
        return self._own.ends + self._others.ends

    @property
    def gone(self) -> Collection[int]:
        """Envs that were lost with their worker."""
        return self._others.gone

    @property
    def recycled(self) -> int:
        """How many workers were replaced because they held too much memory."""
        return self._others.recycled

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that have envs."""
        return self._others.pids

    def describe(self) -> str:
        """``1 process, forkserver, and the caller``."""
        return f"{self._others.describe()}, and the caller"

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Memory that each worker process holds now."""
        return self._others.worker_rss_bytes()

    def close(self) -> None:
        """End the workers, and close the caller's own envs."""
        self._others.close()
        self._own.close()

    def release(self) -> None:
        """Let go of the rows."""
        self._own.release()
        self._others.release()
        for name in ("rows", "take"):
            self.__dict__.pop(name, None)
