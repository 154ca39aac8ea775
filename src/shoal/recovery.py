"""What becomes of an env that failed.

    raise     the caller gets the error, and the env waits for its reset (the default)
    restart   the env is built anew; one truncated row reports the fault
    drop      the env is out for good; all its rows are truncated

A row that reports a fault has the last observation that the env gave, reward 0, ``truncated`` and ``info["fault"]``.
The step that failed is never tried again, because nobody knows how far it got.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.engines.base import Request
from shoal.errors import ArgumentError, FaultError
from shoal.seeding import entropy, restart_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.faults import Fault

POLICIES = ("raise", "restart", "drop")
_MOST_RESETS = 10  # in a row, of an env that they do not help
_MOST_TOLD = 100  # faults that an env's history remembers


@dataclass(frozen=True)
class Restart:
    """How often and how soon an env may be built anew.

    The first restart comes at once, unless ``waits_first`` is set. An env that fails again within ``quiet_s`` waits,
    twice as long each time, so that one that can never work does not keep its pool busy. It does not count if an env
    falls with its neighbour's worker.

    Attributes:
        budget: Restarts that each env has in its life; None for any number. Once they are spent, its next fault raises.
        quiet_s: Seconds without a fault after which an env is trusted again.
        backoff_s: Seconds that the second restart in a row waits.
        longest_s: The longest wait.
        tries: Failed resets in a row at which the error is raised; None for as many as the budget allows.
        waits_first: Whether the first restart waits as long as the second.
        keeps_env: Whether an env that raised but is still there is reset instead of being built anew.
        spares_steps: Whether a step that failed becomes a truncated row; if not, it raises, and only resets are tried
            again.

    Example:
        >>> Restart(budget=3).wait_s(1), Restart(backoff_s=0.5).wait_s(3)
        (0.0, 1.0)
    """

    budget: int | None = 10
    quiet_s: float = 60.0
    backoff_s: float = 0.1
    longest_s: float = 10.0
    tries: int | None = None
    waits_first: bool = False
    keeps_env: bool = False
    spares_steps: bool = True

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 0:
            raise ArgumentError(f"on_fault: a budget of {self.budget} restarts makes no sense")
        if self.tries is not None and self.tries < 1:
            raise ArgumentError(f"on_fault: expected at least 1 try, got {self.tries}")
        for name in ("quiet_s", "backoff_s", "longest_s"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"on_fault: {name} must not be negative, got {getattr(self, name)}")

    def wait_s(self, in_a_row: int) -> float:
        """Seconds that the nth restart in a row waits."""
        if in_a_row < (1 if self.waits_first else 2):
            return 0.0
        # Capped, because more doublings than a float can hold would overflow.
        return min(self.backoff_s * 2.0 ** min(max(in_a_row - 2, 0), 60), self.longest_s)


@dataclass
class Record:
    """The faults of one env."""

    restarts: int = 0
    in_a_row: int = 0
    last: float = 0.0
    faults: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_MOST_TOLD))


class Ledger:
    """Counts restarts, and says when the next one may begin."""

    def __init__(self, rules: Restart, clock: Callable[[], float] = monotonic) -> None:
        self._rules = rules
        self._clock = clock
        self._born = clock()
        self._records: dict[int, Record] = {}

    def charge(self, env_id: int, fault: Fault) -> float:
        """Take one restart from the env's budget; returns the moment from which the env may be built.

        Raises:
            FaultError: If its budget is spent, with the history of its faults in the notes.
        """
        now = self._clock()
        record = self._records.setdefault(env_id, Record())
        record.faults.append((now - self._born, f"{fault.where.phase}: {fault.summary}"))
        if fault.is_collateral:
            return now
        if self._rules.budget is not None and record.restarts >= self._rules.budget:
            raise self._spent(env_id, fault, record)
        record.in_a_row = record.in_a_row + 1 if record.in_a_row and now - record.last <= self._rules.quiet_s else 1
        record.restarts += 1
        record.last = now + self._rules.wait_s(record.in_a_row)
        return record.last

    def _spent(self, env_id: int, fault: Fault, record: Record) -> FaultError:
        error = fault.to_error()
        history = "\n".join(f"  after {at_s:.1f} s, {told}" for at_s, told in record.faults)
        error.add_note(f"Env {env_id} has used up its {record.restarts} restarts. Its faults:\n{history}")
        return error


@dataclass(frozen=True)
class FaultNote:
    """What a row reports about the faults behind it.

    Attributes:
        fault: The first of them.
        incarnation: Which incarnation of the env comes next.
        cuts: Whether an episode was cut short; a reset that was tried again has none to cut.
        attempts: How many faults it took until there was a row.
        folder: Where the fault was recorded, if it was.
    """

    fault: Fault
    incarnation: int
    cuts: bool
    attempts: int = 1
    folder: str | None = None

    def info(self, env_id: int) -> dict[str, Any]:
        """The row's ``info["fault"]``."""
        told = {
            **self.fault.as_dict(),
            "env_id": env_id,
            "incarnation": self.incarnation,
            "attempts": self.attempts,
        }
        return told if self.folder is None else {**told, "folder": self.folder}


class Recovery:
    """Which envs are to be built anew, which are out, and what their rows have to report.

    Attributes:
        policy: What to do with an env that failed.
        incarnations: How often each env has been built anew.
        due: For envs to be built or reset with their next command: the request, and the earliest moment for it.
        notes: What to report, for envs whose next row reports a fault.
        dropped: Envs that are out, and why.
    """

    def __init__(
        self,
        on_fault: str | Restart,
        roots: Sequence[int | None],
        clock: Callable[[], float] = monotonic,
        *,
        spares: bool = False,
    ) -> None:
        self._spares = spares
        self.policy = "restart" if isinstance(on_fault, Restart) else on_fault
        self._rules = on_fault if isinstance(on_fault, Restart) else Restart()
        self.ledger = Ledger(self._rules, clock)
        self.incarnations = [0] * len(roots)
        self.due: dict[int, tuple[Request, float]] = {}
        self.notes: dict[int, FaultNote] = {}
        self.dropped: dict[int, Fault] = {}
        self.restarts = 0
        self._roots = list(roots)
        self._entropy: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether some faults become rows."""
        return self.policy != "raise" or self._spares

    @property
    def intervenes(self) -> bool:
        """Whether some env cannot simply be sent its next command."""
        return bool(self.due or self.dropped)

    def handles(self, fault: Fault) -> bool:
        """Whether a fault becomes a row rather than an error."""
        if fault.spares_env or self.policy == "drop":
            return True
        return self.policy != "raise" and (self._rules.spares_steps or fault.where.phase != "step")

    def note_seeds(self, ids: Iterable[int], seeds: Iterable[int | None]) -> None:
        """Note that the caller has seeded these envs: the seeds of their restarts now derive from that."""
        for i, seed in zip(ids, seeds, strict=True):
            if seed is not None:
                self._roots[i] = seed

    def take(self, env_id: int, fault: Fault, *, cuts: bool, folder: str | None = None) -> None:
        """Decide what becomes of an env that failed.

        Raises:
            FaultError: If it has used up its restarts or tries, or no env is left. The error then says everything that
                a row would have reported.
        """
        told = self.notes.pop(env_id, None)
        if fault.spares_env:
            self._spare(env_id, fault, told.attempts if told else 0)
        elif self.policy == "drop":
            self._drop(env_id, fault)
        else:
            self._check_tries(env_id, fault, told)
            not_before = self.ledger.charge(env_id, fault)
            if self._rules.keeps_env and not fault.loses_env:
                self.due[env_id] = (Request(), not_before)
            else:
                self.renew(env_id, not_before)
        self.notes[env_id] = FaultNote(
            told.fault if told else fault,
            self.incarnations[env_id],
            cuts=cuts or (told is not None and told.cuts),
            attempts=told.attempts + 1 if told else 1,
            folder=told.folder if told else folder,
        )

    def _check_tries(self, env_id: int, fault: Fault, told: FaultNote | None) -> None:
        """Raise if an env has failed to begin an episode as often as it may."""
        most = self._rules.tries
        if most is None or fault.where.phase == "step":
            return
        # If an episode was cut short, the first of these faults was that of a step.
        failed = 1 if told is None else told.attempts + 1 - told.cuts
        if failed >= most:
            error = fault.to_error()
            if most > 1:
                error.add_note(f"Env {env_id} has failed {failed} times in a row to begin an episode")
            raise error

    def _spare(self, env_id: int, fault: Fault, tries: int) -> None:
        """Have a sound env reset; if resets do not help, it is not so sound after all, and the fault is raised."""
        if tries >= _MOST_RESETS:
            error = fault.to_error()
            error.add_note(f"Env {env_id} was reset {tries} times because of this, in vain")
            raise error
        self.due[env_id] = (Request(), 0.0)

    def renew(self, env_id: int, not_before: float = 0.0) -> None:
        """Have an env built anew with its next command, on a seed stream of its own."""
        self.dropped.pop(env_id, None)
        self.incarnations[env_id] += 1
        self.restarts += 1
        incarnation = self.incarnations[env_id]
        request = Request(seed=restart_seed(self._root(env_id), env_id, incarnation), incarnation=incarnation)
        self.due[env_id] = (request, not_before)

    def _root(self, env_id: int) -> int:
        root = self._roots[env_id]
        if root is not None:
            return root
        if self._entropy is None:
            self._entropy = entropy()
        return self._entropy

    def _drop(self, env_id: int, fault: Fault) -> None:
        self.dropped[env_id] = fault
        if len(self.dropped) == len(self.incarnations):
            error = fault.to_error()
            error.add_note("It was the last one: every env of the pool has failed and was dropped")
            raise error

    def pass_over(self, ids: Iterable[int]) -> None:
        """Have the row of a reset report these envs' faults, in place of the rows that nobody wants any more.

        A reset begins an episode, so its row must not look like the end of one.
        """
        for i in ids:
            if i in self.notes:
                self.notes[i] = replace(self.notes[i], cuts=False)

    def forgive(self, ids: Iterable[int]) -> None:
        """Note that these envs are sound again, and have nothing to report."""
        for i in ids:
            self.due.pop(i, None)
            self.notes.pop(i, None)

    def rebuilds(self, env_id: int) -> bool:
        """Whether the next command of this env builds it anew."""
        return env_id in self.due and self.due[env_id][0].incarnation is not None

    def claim(self, env_id: int) -> tuple[Request, float] | None:
        """Take the reset that is due in place of this env's next command, if there is one; it is sent or set aside."""
        return self.due.pop(env_id, None) if self.due else None
