"""The env of the soak: its rows say where they belong, and it goes wrong by a plan that a checker can work out, too.

Every cell of an observation holds the same number, and so does the reward of the step that led to it:

    total | episode | life | tag | step          53 bits, which is what a float64 holds exactly

A *life* is one construction of the env. Each has a `Doom`: what will go wrong, in which method, at which call of it.
Dooms and episodes follow from the seed, the tag and the life alone. Before an env does something wrong, it writes that
down in a `Journal` that outlives it.
"""

from __future__ import annotations

import os
import random
import struct
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.testing.kinds import ACTS, DROPPED, FAULT_FAMILIES, SPOILS, Fault, Place, fault_places

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

CELLS = 64
NUM_ACTIONS = 1 << 16
INFO_EVERY = 8  # one in this many steps has an info
NEVER = 1 << 62
LETHAL = frozenset(FAULT_FAMILIES["die"])
HANGS = frozenset(FAULT_FAMILIES["hang"])

_STEP_BITS, _TAG_BITS, _LIFE_BITS, _EPISODE_BITS, _TOTAL_BITS = 6, 6, 12, 13, 16
_TAG_AT = _STEP_BITS
_LIFE_AT = _TAG_AT + _TAG_BITS
_EPISODE_AT = _LIFE_AT + _LIFE_BITS
TOTAL_AT = _EPISODE_AT + _EPISODE_BITS
CODE_MASK = (1 << (TOTAL_AT + _TOTAL_BITS)) - 1
ONE_STEP = (1 << TOTAL_AT) + 1
"""What a step adds to the code of a row."""
MAX_TAGS = 1 << _TAG_BITS
LONGEST_EPISODE = 30

_ENDINGS = ((True, False), (False, True), (True, True))
_PID_DIGITS = 10


class Moment(NamedTuple):
    """What a row's number says; each part counts modulo the room it has.

    Attributes:
        total: Steps of this life.
        episode: Resets of this life.
        life: Which construction of the env it is, from 1.
        tag: Which env it is.
        step: Steps of this episode.
    """

    total: int
    episode: int
    life: int
    tag: int
    step: int

    def encode(self) -> int:
        """All parts in one number."""
        code = self.total << TOTAL_AT | (self.episode % (1 << _EPISODE_BITS)) << _EPISODE_AT
        return (code | (self.life % (1 << _LIFE_BITS)) << _LIFE_AT | self.tag << _TAG_AT | self.step) & CODE_MASK

    @classmethod
    def decode(cls, code: int) -> Moment:
        """The parts of a number."""
        return cls(
            code >> TOTAL_AT,
            code >> _EPISODE_AT & ((1 << _EPISODE_BITS) - 1),
            code >> _LIFE_AT & ((1 << _LIFE_BITS) - 1),
            code >> _TAG_AT & ((1 << _TAG_BITS) - 1),
            code & ((1 << _STEP_BITS) - 1),
        )


@dataclass(frozen=True)
class Hazard:
    """How dangerously envs live.

    Attributes:
        seed: Seed of all dooms and episodes.
        per_step: Probability that a step is the one that fails.
        weights: The possible faults, and how often each is chosen relative to the others.
        slow: Share of the steps that take `slow_s` longer, which is no fault.
        slow_s: How much longer.
    """

    seed: int
    per_step: float
    weights: Mapping[str, float] = field(default_factory=dict)
    slow: float = 0.0005
    slow_s: float = 0.005

    def doom(self, tag: int, life: int) -> Doom:
        """What will go wrong in one life of an env."""
        draw = random.Random(f"{self.seed}/{tag}/{life}")  # noqa: S311 - a plan, no secret
        kinds = [Fault(name) for name in self.weights]
        if not kinds or self.per_step <= 0:
            return Doom(Fault.RAISE, "step", NEVER)
        (kind,) = draw.choices(kinds, list(self.weights.values()))
        where = self._place(draw, kind, life)
        calls = int(draw.expovariate(self.per_step))
        if where == "init":
            return Doom(kind, where, 1)
        if where == "step":
            return Doom(kind, where, 1 + calls)
        # An env that hangs while it is being rebuilt may take as long as a build, so only later resets hang.
        return Doom(kind, where, 1 + (kind in HANGS) + 2 * calls // LONGEST_EPISODE)

    @staticmethod
    def _place(draw: random.Random, kind: Fault, life: int) -> Place:
        (place,) = draw.choices(("step", "reset", "init"), (0.8, 0.12, 0.08))
        if place == "init" and (kind in HANGS or (life == 1 and kind in LETHAL)):
            return "step"  # a pool must be able to start, and a hang while building takes the longest deadline
        return place if place in fault_places(kind) else "step"

    def episode(self, tag: int, life: int, episode: int) -> tuple[int, bool, bool]:
        """How long an episode is, and with which flags it ends."""
        draw = zlib.crc32(struct.pack("<4q", self.seed, tag, life, episode))
        return 1 + draw % LONGEST_EPISODE, *_ENDINGS[(draw >> 8) % len(_ENDINGS)]


@dataclass(frozen=True)
class Doom:
    """One fault to come.

    Attributes:
        kind: What goes wrong.
        where: In which method.
        at: In which call of it, from 1.
    """

    kind: Fault
    where: Place
    at: int


class Shot(NamedTuple):
    """A fault that an env was about to commit."""

    tag: int
    life: int
    kind: Fault
    pid: int


class Journal:
    """What envs have done, in files that they only ever append to, so that no death can spoil them."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def begin_life(self, tag: int) -> int:
        """Note that an env is being built; returns which of its lives this is."""
        return _append(self._builds(tag), f"{os.getpid():{_PID_DIGITS - 1}}\n") // _PID_DIGITS

    def note_shot(self, tag: int, life: int, kind: Fault) -> None:
        """Note that an env is about to go wrong."""
        _append(self._folder / "shots", f"{tag} {life} {kind.value} {os.getpid()}\n")

    def lives(self, tag: int) -> int:
        """How often an env was built."""
        path = self._builds(tag)
        return path.stat().st_size // _PID_DIGITS if path.exists() else 0

    def homes(self, tag: int) -> set[int]:
        """The processes in which an env was built."""
        path = self._builds(tag)
        return {int(pid) for pid in path.read_text().split()} if path.exists() else set()

    def _builds(self, tag: int) -> Path:
        return self._folder / f"builds-{tag}"

    def shots(self, start: int = 0) -> tuple[list[Shot], int]:
        """What went wrong since an earlier look, which ended at ``start``; and where this one ended."""
        path = self._folder / "shots"
        if not path.exists():
            return [], 0
        with path.open() as lines:
            lines.seek(start)
            text = lines.read()
        found = [line.split() for line in text.splitlines()]
        return [Shot(int(tag), int(life), Fault(kind), int(pid)) for tag, life, kind, pid in found], start + len(text)


def _append(path: Path, text: str) -> int:
    """Add to a file in one piece; returns its new size."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, text.encode())
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


class SoakEnv(gymnasium.Env["np.ndarray[Any, Any]", Any]):
    """An env under a `Hazard`.

    Args:
        tag: Which env it is.
        hazard: What will become of it.
        folder: Where its journal is.

    Attributes:
        delay_s: How long the fault "slow" would sleep.
        leaked: Unused here; the faults expect it.
        left_child: Unused here too.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's type)

    def __init__(self, *, tag: int, hazard: Hazard, folder: str) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 2.0**53, (CELLS,), np.float64)
        self.action_space: spaces.Space[Any] = spaces.Discrete(NUM_ACTIONS)
        self.delay_s = hazard.slow_s
        self.leaked: list[bytearray] = []
        self.left_child: subprocess.Popen[bytes] | None = None
        self._tag, self._hazard, self._journal = tag, hazard, Journal(folder)
        self._life = self._journal.begin_life(tag)
        self._doom = hazard.doom(tag, self._life)
        self._pace = random.Random(f"pace {hazard.seed}/{tag}/{self._life}")  # noqa: S311
        self._episode = self._step = self._total = self._length = 0
        self._flags = (False, False)
        self._is_over = True
        self._meet_doom("init", 1)

    @property
    def story(self) -> str:
        """The text of the exceptions that its faults raise."""
        return f"injected fault in {self._doom.where} of env {self._tag}, life {self._life}, step {self._total}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin the next episode; the first row of a life reports the seed it was given."""
        super().reset(seed=seed)
        self._episode += 1
        is_due = self._meet_doom("reset", self._episode)
        self._length, *flags = self._hazard.episode(self._tag, self._life, self._episode)
        self._flags = (flags[0], flags[1])
        self._step, self._is_over = 0, False
        info = {"seed": seed} if self._episode == 1 else {}
        return self._spoiled({"obs": np.full(CELLS, self._code(), np.float64), "info": info}, is_due)

    def step(self, action: Any) -> Any:
        """Count one step."""
        if self._is_over:
            raise gymnasium.error.ResetNeeded(f"env {self._tag}: no episode is under way")
        if self._pace.random() < self._hazard.slow:
            time.sleep(self._hazard.slow_s)
        is_due = self._meet_doom("step", self._total + 1)
        self._step += 1
        self._total += 1
        code = self._code()
        self._is_over = self._step >= self._length
        terminated, truncated = self._flags if self._is_over else (False, False)
        info = {"code": code, "action": int(action)} if self._total % INFO_EVERY == 0 else {}
        obs = np.full(CELLS, code, np.float64)
        if not is_due:
            return obs, float(code), terminated, truncated, info
        parts = {"obs": obs, "reward": float(code), "terminated": terminated, "truncated": truncated, "info": info}
        return self._spoiled(parts, is_due)

    def _code(self) -> int:
        return Moment(self._total, self._episode, self._life, self._tag, self._step).encode()

    def _meet_doom(self, place: Place, call: int) -> bool:
        """Go wrong if this is the call; returns whether its result is to be spoiled."""
        doom = self._doom
        if doom.where != place or doom.at != call:
            return False
        self._journal.note_shot(self._tag, self._life, doom.kind)
        if doom.kind in ACTS:
            ACTS[doom.kind](self)
        return doom.kind in SPOILS

    def _spoiled(self, parts: dict[str, Any], is_due: bool) -> tuple[Any, ...]:
        if is_due:
            name, spoil = SPOILS[self._doom.kind]
            parts[name] = spoil(parts[name])
        return tuple(part for part in parts.values() if part is not DROPPED)
