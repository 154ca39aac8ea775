"""The last commands of every env, kept in a ring, so that a fault can be reproduced.

Noting a step of the whole pool takes one copy of its actions. The ring is bounded in bytes, so a pool of thousands
keeps fewer steps per env than a pool of four.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.engines.base import Command, EngineConfig, Request
from shoal.quick import quick
from shoal.recipes import MakeRegistered
from shoal.recording import Origin, Recording, is_json
from shoal.slot import copy_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.arrays import Rows

    Column = np.ndarray[Any, Any]

_MOST_BYTES = 16 * 2**20
_MOST_STEPS = 10_000
_LEAST_STEPS = 16
_MOST_RESETS = 1_000
_MOST_SAVED = 100  # an env that keeps failing must not fill the disk
_PLAIN = Request()
_numbers = count(1)  # of all pools, which may share a folder
_log = logging.getLogger("shoal")


class _Reset(NamedTuple):
    """A reset, and how many steps the env had been sent before it."""

    at: int
    seed: int | None
    options: dict[str, Any] | None


class Tape:
    """The last actions that all envs were sent together; ``csrc/columns.c`` has the same, compiled.

    Attributes:
        count: How often they were.

    Args:
        pairs: ``(ring, column)`` for each part of an action: what is in the column goes to the next place of the ring.
        places: How many places a ring has.
    """

    def __init__(self, pairs: tuple[tuple[Column, Column], ...], places: int) -> None:
        self._pairs = pairs
        self._places = places
        self.count = 0

    def __call__(self) -> None:
        """Keep the actions that are in the columns now."""
        place = self.count % self._places
        for ring, column in self._pairs:
            ring[place] = column
        self.count += 1


_tape_of: Callable[[tuple[tuple[Column, Column], ...], int], Any] = Tape if quick is None else quick.Tape


class BlackBox:
    """Remembers the resets and actions of each env since its last seed, or as many steps as there is room for."""

    def __init__(self, rows: Rows, most_bytes: int = _MOST_BYTES) -> None:
        columns = [column for column in rows.action if column is not None]
        step_bytes = sum(column.nbytes for column in columns) or 1
        self._kept = max(_LEAST_STEPS, min(_MOST_STEPS, most_bytes // step_bytes))
        self._num_envs = rows.layout.num_envs
        self._rings = [np.empty((self._kept, *column.shape), column.dtype) for column in columns]
        self._pairs = list(zip(self._rings, columns, strict=True))
        # As long as all envs have been sent the same number of steps, the tape counts them.
        self._tape: Any = _tape_of(tuple(self._pairs), self._kept)
        self._sent_N = np.zeros(self._num_envs, np.int64)
        # The last reset with a seed, from which everything can be replayed, and the resets since.
        self._seeded: dict[int, _Reset] = {}
        self._later: dict[int, deque[_Reset]] = {}
        self._meddled: dict[int, str] = {}

    def note_step_of_all(self) -> None:
        """Note that every env is sent the action in its row."""
        if self._tape is None:
            self._note_steps(range(self._num_envs))
        else:
            self._tape()

    def note(self, ids: Sequence[int], command: Command, requests: Mapping[int, Request] | None) -> None:
        """Note that these envs are sent a command."""
        if command is Command.STEP:
            if len(ids) == self._num_envs:
                self.note_step_of_all()
            else:
                self._note_steps(ids)
            if requests:
                self._meddled.update(dict.fromkeys(requests, "an action beside its columns"))
            return
        for i in ids:
            request = requests.get(i, _PLAIN) if requests else _PLAIN
            if request.incarnation is not None:
                self._meddled.pop(i, None)
            if command is Command.RESET:
                self._note_reset(i, request)
            elif request.call is not None:
                self._note_call(i, request.call[0], request.call[1])

    def _note_steps(self, ids: Sequence[int]) -> None:
        self._part()
        index = np.array(ids, np.intp)
        sent = self._sent_N[index]
        places = sent % self._kept
        for ring, column in self._pairs:
            ring[places, index] = column[index]
        self._sent_N[index] = sent + 1

    def _part(self) -> None:
        """From now on, count the steps of each env by itself."""
        if self._tape is not None:
            self._sent_N[:] = self._tape.count
            self._tape = None

    def _note_reset(self, env_id: int, request: Request) -> None:
        # A copy, because the caller may change the options later.
        options = None if request.options is None else copy_leaves(request.options)
        reset = _Reset(self._sent(env_id), request.seed, options)
        if request.seed is not None:
            self._seeded[env_id] = reset
            self._later.pop(env_id, None)
        elif env_id in self._later:
            self._later[env_id].append(reset)
        else:
            self._later[env_id] = deque([reset], maxlen=_MOST_RESETS + 1)

    def _note_call(self, env_id: int, operation: str, name: str) -> None:
        if operation == "set" or (operation == "call" and name != "render"):
            self._meddled[env_id] = name

    def note_restore(self, ids: Sequence[int]) -> None:
        """Note that these envs were put into the states of others."""
        self._meddled.update(dict.fromkeys(ids, "restore"))

    def _sent(self, env_id: int) -> int:
        return int(self._sent_N[env_id] if self._tape is None else self._tape.count)

    def release(self) -> None:
        """Let go of the engine's memory; what was noted stays."""
        self._part()
        self._pairs = []

    def script(self, env_id: int) -> tuple[list[list[Any]], list[np.ndarray[Any, Any]]]:
        """The resets and steps of one env in order, and the actions of the steps, leaf by leaf."""
        end = self._sent(env_id)
        begin = self._begin(env_id)
        script: list[list[Any]] = []
        at = begin
        resets = self._resets(env_id)
        if not resets or resets[0].at > begin:  # the reset before the first step that is left has been forgotten
            script.append(["reset", None, None])
        for reset in resets:
            if reset.at > at:
                script.append(["step", reset.at - at])
                at = reset.at
            script.append(["reset", reset.seed, reset.options if is_json(reset.options) else None])
        if end > at:
            script.append(["step", end - at])
        places = np.arange(begin, end) % self._kept
        return script, [ring[places, env_id] for ring in self._rings]

    def _begin(self, env_id: int) -> int:
        """The first step of the script: the one after the last seed, if the ring still has it."""
        resets = self._resets(env_id)
        return max(resets[0].at if resets else 0, self._oldest(env_id))

    def _oldest(self, env_id: int) -> int:
        return max(0, self._sent(env_id) - self._kept)

    def _resets(self, env_id: int) -> list[_Reset]:
        """The last reset with a seed, and those of the later ones whose steps the ring still has."""
        seeded, oldest = self._seeded.get(env_id), self._oldest(env_id)
        later = [reset for reset in self._later.get(env_id, ()) if reset.at >= oldest]
        return later if seeded is None else [seeded, *later]

    def gaps(self, env_id: int) -> tuple[str, ...]:
        """Why the script may not lead to the same state again."""
        gaps = []
        seeded, later = self._seeded.get(env_id), self._later.get(env_id, ())
        if seeded is None and later:
            gaps.append("the env was never reset with a seed, so nobody knows the state of its generator")
        if seeded is not None and seeded.at < self._oldest(env_id):
            gaps.append(f"the last reset with a seed is longer ago than the {self._kept} steps that are kept")
        if len(later) > _MOST_RESETS:
            gaps.append(f"the last reset with a seed is longer ago than the {_MOST_RESETS} resets that are kept")
        if not all(is_json(reset.options) for reset in self._resets(env_id)):
            gaps.append("a reset had options that JSON cannot hold, and is repeated without them")
        if env_id in self._meddled:
            gaps.append(f"the env was changed by what is not recorded ({self._meddled[env_id]!r})")
        return tuple(gaps)


class FaultFiles:
    """Writes what the black box knows into folders: on demand, and at each fault if a folder was given."""

    def __init__(self, box: BlackBox, config: EngineConfig, folder: str | os.PathLike[str] | None) -> None:
        self.box = box
        self._config = config
        self._folder = None if folder is None else Path(folder)
        self._num_saved = 0

    def recording(self, env_id: int, fault: dict[str, Any] | None = None) -> Recording:
        """Everything that is known about one env."""
        config = self._config
        factory = config.factories[env_id]
        script, actions = self.box.script(env_id)
        # A registered env enforces the pool's time limit itself.
        keeper = factory if isinstance(factory, MakeRegistered) else config
        return Recording(
            env_id=env_id,
            origin=Origin.of(factory),
            autoreset=str(config.autoreset),
            max_episode_steps=keeper.max_episode_steps,
            script=script,
            actions=actions,
            check=config.check,
            bounded_actions=config.bounded_actions,
            finite_rewards=config.finite_rewards,
            gaps=self.box.gaps(env_id),
            fault=fault,
        )

    def save_fault(self, env_id: int, fault: dict[str, Any]) -> str | None:
        """Record a fault for later; returns the folder, or None if it was not recorded.

        A pool that has just survived a fault must not fail because, say, the disk is full, so an error here is only
        logged.
        """
        if self._folder is None or self._num_saved >= _MOST_SAVED:
            return None
        self._num_saved += 1
        stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        name = f"{stamp}-pid{os.getpid()}-{next(_numbers):03d}-env{env_id}-{fault['kind']}"
        if self._num_saved == _MOST_SAVED:
            _log.warning("%d faults are recorded in %s; further ones of this pool are not", _MOST_SAVED, self._folder)
        try:
            return str(self.recording(env_id, fault).save(self._folder / name))
        except Exception as error:
            _log.warning("the fault of env %d could not be written to %s: %s", env_id, self._folder, error)
            return None
