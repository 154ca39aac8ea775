"""The serial engine: a loop in the caller's thread, and the reference that every other engine matches row for row."""

from __future__ import annotations

import weakref
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.arrays import Rows
from shoal.engines.base import Command, EngineConfig, Extra, Request, row_layout
from shoal.engines.intake import intake_of
from shoal.engines.lane import Lane
from shoal.engines.starting import closing_on_error, common_spec, spared
from shoal.errors import ClosedPool
from shoal.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class SerialEngine:
    """Runs a command when its result is asked for, in the order of submission.

    Deadlines cannot be enforced here: an env that hangs also hangs its caller. Use the process engine for such envs.

    Args:
        config: What every engine is given.
        env_ids: The envs to run; None for all of them.

    Attributes:
        lane: The envs. Whoever builds them and gives them rows need not call ``start``.
    """

    name = "serial"
    num_workers = 1
    recycled = 0
    gone = ()
    finals_are_columns = False
    take: Callable[[Any], bool] | None = None
    has_odd_rows = check_requests = None
    episodes = None

    def __init__(self, config: EngineConfig, env_ids: Sequence[int] | None = None) -> None:
        self.config = config
        self.extras: dict[int, Extra] = {}
        self.faults: dict[int, Fault] = {}
        self._all_ids = list(range(config.num_envs) if env_ids is None else env_ids)
        self.lane = Lane(config, self._all_ids)
        self._queue: deque[tuple[int, Command, Request | None, int]] = deque()
        self._all_step_in_block: int | None = None
        self.collected: list[int] = []
        self._is_closed = self._is_running = False
        self._finalizer = weakref.finalize(self, self.lane.close)

    def start(self) -> None:
        """Build the envs one by one."""
        with closing_on_error(self.close):
            self.faults.update(spared(self.config, self.lane.build()))
            self.spec = common_spec(self.lane.specs, lambda env_id: None)
            layout = row_layout(self.config, self.spec)
            self.rows = Rows(layout, layout.private())
            self.lane.attach(self.rows)
            self.take = intake_of(self.rows, bounded=self.config.bounded_actions)

    @property
    def ends(self) -> int:
        """How many rows that end an episode have been written."""
        return self.lane.ends

    @property
    def num_queued(self) -> int:
        """How many commands are still to be run."""
        return len(self._queue) if self._all_step_in_block is None else len(self._all_ids)

    def step_now(self, block: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Step every env."""
        if meanwhile is not None:
            meanwhile()
        self._all_step_in_block = block
        self._run(self._step_all)

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Queue the commands."""
        self._refuse_closed()
        if command is Command.STEP and not requests and list(ids) == self._all_ids:
            self._all_step_in_block = block
            return
        requests = requests or {}
        self._queue.extend([(i, command, requests.get(i), block) for i in ids])  # all or none, even if interrupted

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Run queued commands until there are enough."""
        return self._run(lambda: self._collect(at_least, timeout_s))

    def _run(self, work: Callable[[], list[int]]) -> list[int]:
        """Run envs. If the engine is closed meanwhile, the envs are closed here, and not in the middle of a step."""
        self._is_running = True  # before the look at ``_is_closed``: ``close`` sets that first, and then looks at this
        try:
            self._refuse_closed()
            return work()
        finally:
            self._is_running = False
            if self._is_closed:
                self._finalizer()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ClosedPool("the pool is closed")

    def _collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        if self._all_step_in_block is not None:
            if at_least == len(self._all_ids):
                return self._step_all()
            block, self._all_step_in_block = self._all_step_in_block, None
            self._queue.extend([(i, Command.STEP, None, block) for i in self._all_ids])
        run, queue = self.lane.run, self._queue
        done: list[int] = []
        self.collected = done
        end = None if timeout_s is None else monotonic() + timeout_s
        while queue and len(done) < at_least and (end is None or not done or monotonic() < end):
            env_id, command, request, block = queue.popleft()
            outcome = run(env_id, command, request, block)
            if outcome is not None:
                self._keep(env_id, outcome)
            done.append(env_id)
            if (interrupt := _interrupt_of(outcome)) is not None:
                raise interrupt
        return done

    def _step_all(self) -> list[int]:
        block, self._all_step_in_block = self._all_step_in_block or 0, None
        outcomes = self.lane.step_all(block)
        for env_id, outcome in outcomes.items():
            self._keep(env_id, outcome)
            if (interrupt := _interrupt_of(outcome)) is not None:
                # The loop has stopped here: the envs after this one have not moved, and will when asked again.
                count = self._all_ids.index(env_id) + 1
                self._queue.extend([(i, Command.STEP, None, block) for i in self._all_ids[count:]])
                self.collected = self._all_ids[:count]
                raise interrupt
        self.collected = self._all_ids
        return self._all_ids

    def _keep(self, env_id: int, outcome: Extra | Fault) -> None:
        """Called before the env counts as collected: a row without its fault would pass for a good one."""
        if isinstance(outcome, Extra):
            self.extras[env_id] = outcome
        else:
            self.faults[env_id] = outcome

    def describe(self) -> str:
        """``serial``."""
        return self.name

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Empty: the envs live in this process."""
        return ()

    def close(self) -> None:
        """Close the envs; if a thread is running them, it does so when it is done."""
        self._is_closed = True
        self._queue.clear()
        if not self._is_running:
            self._finalizer()

    def release(self) -> None:
        """Let go of the rows, and of the lane that refers to them."""
        self.lane = Lane(self.config, ())
        for name in ("rows", "take"):
            self.__dict__.pop(name, None)


def _interrupt_of(outcome: Extra | Fault | None) -> BaseException | None:
    """The Ctrl-C that arrived inside an env but belongs to the caller."""
    cause = outcome.cause if isinstance(outcome, Fault) else None
    return cause if isinstance(cause, KeyboardInterrupt) else None
