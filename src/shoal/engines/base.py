"""The protocol between a pool and an engine.

    pool                                     engine
     │  rows.action[...] = actions            │
     │  submit(ids, STEP) ───────────────────▶│  run them somewhere
     │  ids = collect(at_least, ...) ◀────────│  rows are complete for these ids
     │  rows.obs[...], extras, faults         │

An env has at most one command in flight. Numbers travel in ``rows``; what no column can hold (infos, strings,
graphs) waits in ``extras``, and an env that failed is in ``faults`` instead of having a row. A command whose request
has an ``incarnation`` rebuilds the env first, in a new worker if the old one is gone; until then, an env that is gone
answers every command with the fault that ended it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from shoal.arguments import check_seconds
from shoal.arrays import RowLayout, Rows
from shoal.machine import usable_cores
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from shoal.faults import Fault
    from shoal.seeding import GeneratorState
    from shoal.spec import EnvSpec


class Command(IntEnum):
    """What an env is told to do."""

    RESET = 1
    STEP = 2
    CALL = 3


PHASES = {Command.RESET: "reset", Command.STEP: "step", Command.CALL: "call"}
Call = tuple[str, str, tuple[Any, ...], dict[str, Any]]
LET_GO = "let_go"  # the operation of a call that closes an env and returns its generator
KEEP, PUT_BACK = "keep", "put_back"  # calls that return an env's state, and that put such a state into an env


@dataclass(frozen=True, slots=True)
class Request:
    """What a command needs beyond its row: one per env, only when there is something to say.

    Attributes:
        seed: For RESET.
        options: For RESET.
        action: For STEP, the values of object leaves, in leaf order; if there are no such leaves, the action itself,
            which then replaces what is in the columns.
        call: For CALL, ``(operation, name, args, kwargs)``.
        incarnation: Rebuild the env first; this is the number of its new incarnation.
        generator: Give the rebuilt env this generator, so that it continues where its predecessor left off.
    """

    seed: int | None = None
    options: dict[str, Any] | None = None
    action: tuple[Any, ...] = ()
    call: Call | None = None
    incarnation: int | None = None
    generator: GeneratorState | None = None


@dataclass(slots=True)
class Extra:
    """What belongs to a row but fits no column; or, if ``is_answer``, the ``value`` that a CALL returned."""

    info: dict[str, Any] | None = None
    objects: list[Any] | None = None
    final_info: dict[str, Any] | None = None
    final_objects: list[Any] | None = None
    has_final: bool = False
    value: Any = None
    is_answer: bool = False


_LONGEST_CLOSE_S = 1e6  # the system cannot be asked to wait longer than this


@dataclass(frozen=True)
class Timeouts:
    """Seconds an env may take; None waits forever."""

    construct: float | None = 60.0
    reset: float | None = 60.0
    step: float | None = 60.0
    close: float = 5.0

    def __post_init__(self) -> None:
        for name in ("construct", "reset", "step", "close"):
            check_seconds(f"{name}_timeout", getattr(self, name), may_be_none=name != "close")
        object.__setattr__(self, "close", min(float(self.close), _LONGEST_CLOSE_S))

    def of(self, command: Command, *, is_building: bool = False) -> float | None:
        """How long one env may take for this command; a call gets as long as a reset."""
        limit = self.step if command is Command.STEP else self.reset
        if not is_building or limit is None:
            return limit
        return None if self.construct is None else limit + self.construct


@dataclass(frozen=True)
class EngineConfig:
    """What every engine is given: the envs and the rules they run under.

    Attributes:
        factories: One callable per env.
        name: What to call the env in messages.
        autoreset: The boundary rule.
        max_episode_steps: The pool's own time limit.
        check: How often results are checked.
        blocks: How many generations of rows are kept, for views that outlive a step.
        timeouts: Deadlines.
        one_by_one: Whether results are wanted as each env finishes, rather than all at once.
        num_workers: How many threads or processes; None lets the engine choose.
        threads_per_worker: Lanes in each worker process.
        inline: Whether the caller's thread is one of the workers, if these are processes.
        start_method: How worker processes start.
        affinity: CPUs for workers, assigned in turn; None leaves placement to the system.
        seed: Root of the pool's seeds, if it has one.
        recycle_above: Bytes of memory above which a worker process is replaced; None for no limit.
        is_kernel: Whether the factories make kinds of kernel envs.
        is_native: Whether they make kinds of envs that a native simulator runs.
        registered: Gymnasium's registration of the env, if the factories do not know it.
        bounded_actions: Whether continuous actions outside their space are refused.
        finite_rewards: Whether a reward that is not a finite number is a fault of its env.
        quick_reset_s: Under ``same_step``, envs whose reset takes longer are left to be reset by the caller.
        spares_failed_builds: Whether a pool starts without the envs that could not be built, if at least one could.
        allow_pickle: Whether a worker may send objects that are not plain data in infos and observations.
    """

    factories: Sequence[Any] | Mapping[int, Any]
    name: str
    autoreset: Autoreset = Autoreset.NEXT_STEP
    max_episode_steps: int | None = None
    check: str = "always"
    blocks: int = 1
    timeouts: Timeouts = field(default_factory=Timeouts)
    one_by_one: bool = False
    num_workers: int | None = None
    threads_per_worker: int = 1
    inline: bool = False
    start_method: str | None = None
    affinity: Sequence[int] | None = None
    allow_pickle: bool = False
    is_kernel: bool = False
    is_native: bool = False
    bounded_actions: bool = True
    finite_rewards: bool = True
    quick_reset_s: float | None = None
    spares_failed_builds: bool = False
    registered: Any = None
    seed: int | None = None
    recycle_above: int | None = None

    @property
    def num_envs(self) -> int:
        """How many envs there are."""
        return len(self.factories)


class Engine(Protocol):
    """Runs commands for env ids and leaves the results in ``rows``."""

    name: str
    config: EngineConfig
    spec: EnvSpec
    rows: Rows
    num_workers: int
    extras: dict[int, Extra]
    faults: dict[int, Fault]
    collected: list[int]
    finals_are_columns: bool  # if not, an ``Extra`` marks each row that has a final one beside it

    @property
    def take(self) -> Callable[[Any], bool] | None:
        """Takes the actions of all envs in one go, or returns False if they need a closer look; None if it cannot."""

    @property
    def recycled(self) -> int:
        """How many workers were replaced because they held too much memory."""

    @property
    def gone(self) -> Collection[int]:
        """Envs that were lost with their worker: they have to be rebuilt."""

    @property
    def has_odd_rows(self) -> Callable[[int], bool] | None:
        """Whether a row of a block has held NaN or a non-finite reward since the last time this was asked.

        None if the engine does not know.
        """

    @property
    def check_requests(self) -> Callable[[Mapping[int, Request]], None] | None:
        """Raises ``ShippingError`` if requests cannot be sent to these envs; None if nothing has to be sent."""

    @property
    def episodes(self) -> int | None:
        """Episodes that have ended, if the engine counts them."""

    @property
    def ends(self) -> int | None:
        """A number that changes whenever a row is written that ends an episode; None if the engine has none.

        As long as it is the same, nobody has to look for such rows.
        """

    @property
    def step_now(self) -> Callable[[int, Callable[[], None] | None], None] | None:
        """Steps every env at once, into a block, with nothing left to collect; None if the engine cannot do that.

        The second argument is something short to do meanwhile, or beforehand if the caller's thread does the stepping.
        """

    def start(self) -> None:
        """Build all envs, or raise an ``EnvConstructError`` that names every env that failed and leave nothing running.

        With ``config.spares_failed_builds`` it raises only if no env could be built; the others are in ``faults``.
        """

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Hand over commands for idle envs. Never waits for an env."""

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """Ids whose commands are finished, in order of completion; waits for ``at_least`` of them.

        Returns fewer when ``timeout_s`` runs out or nothing more is under way. A hung or lost env counts as finished,
        with a fault. The ids are in ``collected`` as soon as they are known, so that an interrupt loses none. Whoever
        calls this or ``step_now`` empties it first, so that what is there after an interrupt comes from this call.
        """

    def describe(self) -> str:
        """Engine, workers and start method in a few words, for ``repr``."""

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Memory that each worker process holds now."""

    def close(self) -> None:
        """End everything within the close deadline. Never raises; may be called twice."""

    def release(self) -> None:
        """Let go of the rows' memory, once nobody uses them any more."""


def row_layout(config: EngineConfig, spec: EnvSpec) -> RowLayout:
    """The rows that envs of this spec need under this config."""
    return RowLayout(spec, config.num_envs, config.blocks, with_final=config.autoreset is Autoreset.SAME_STEP)


def sharers(config: EngineConfig) -> int:
    """How many workers share the envs: as many as were asked for, else one per usable core; never more than envs."""
    return min(config.num_workers or usable_cores(), config.num_envs)


def shares(num_envs: int, parts: int) -> list[range]:
    """Env ids in contiguous shares, as equal as they can be."""
    size, larger = divmod(num_envs, parts)
    starts = [i * size + min(i, larger) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


class AwakeTime:
    """Measures how long this process has waited, not counting time during which it was stopped itself.

    A closed laptop lid or a SIGSTOP of the whole job must not look as if every env hung at once, so one lap never
    counts for more than ``longest_lap_s``.
    """

    def __init__(self, longest_lap_s: float) -> None:
        self._longest = longest_lap_s
        self.last = monotonic()

    def lap(self) -> float:
        """Seconds since the last lap, at most the longest lap."""
        now = monotonic()
        passed, self.last = now - self.last, now
        return min(passed, self._longest)
