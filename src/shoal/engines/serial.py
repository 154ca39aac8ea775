"""The serial engine: a loop in the caller's thread, and the reference that every other engine matches row for row."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic

from shoal.arrays import Rows
from shoal.engines.base import Command, EngineConfig, Extra, Request, row_layout
from shoal.engines.lane import Lane, closing_on_error, common_spec, construction_error
from shoal.faults import Fault


class SerialEngine:
    """Runs a command when its result is asked for, in the order of submission.

    Deadlines cannot be enforced here: an env that hangs, hangs its caller. Use the process engine for such envs.
    """

    name = "serial"
    num_workers = 1

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.extras: dict[int, Extra] = {}
        self.faults: dict[int, Fault] = {}
        self._lane = Lane(config, range(config.num_envs))
        self._queue: deque[tuple[int, Command, Request | None, int]] = deque()
        self._done: list[int] = []

    def start(self) -> None:
        """Build the envs one by one; the first that fails ends it."""
        with closing_on_error(self.close):
            faults = self._lane.build()
            if faults:
                raise construction_error(faults)
            self.spec = common_spec(self._lane.specs, lambda env_id: None)
            layout = row_layout(self.config, self.spec)
            self.rows = Rows(layout, layout.private())
            self._lane.attach(self.rows)

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Queue the commands."""
        requests = requests or {}
        self._queue.extend((i, command, requests.get(i), block) for i in ids)

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Run queued commands until there are enough."""
        run, queue, done = self._lane.run, self._queue, self._done
        end = None if timeout_s is None else monotonic() + timeout_s
        while queue and len(done) < at_least and (end is None or not done or monotonic() < end):
            env_id, command, request, block = queue.popleft()
            done.append(env_id)
            outcome = run(env_id, command, request, block)
            if outcome is None:
                continue
            if isinstance(outcome, Fault):
                self.faults[env_id] = outcome
                if isinstance(outcome.cause, KeyboardInterrupt):
                    # Ctrl-C by the user: what is finished stays in ``done`` for the next collect.
                    raise outcome.cause
            else:
                self.extras[env_id] = outcome
        self._done = []
        return done

    def describe(self) -> str:
        """``serial``."""
        return self.name

    def close(self) -> None:
        """Close the envs."""
        self._queue.clear()
        self._lane.close()
