"""The last commands of every env, kept in a ring, so that a fault can be had again.

A step of the whole pool is one copy of its actions. What is kept is bounded by bytes, so that a pool of thousands
keeps fewer steps of each env than a pool of four.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.base import Command, EngineConfig, Request
from shoal.recording import Origin, Recording, is_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.arrays import Rows

_MOST_BYTES = 16 * 2**20
_MOST_TICKS = 10_000
_LEAST_TICKS = 16
_MOST_RESETS = 1_000
_MOST_SAVED = 100  # an env that fails for ever must not fill the disk
_log = logging.getLogger("shoal")

_Reset = tuple[int, int | None, Any]  # at which tick, with which seed and options


class BlackBox:
    """Remembers actions, seeds and resets.

    A tick is one submission of steps, for all envs or some. ``None`` stands for all.
    """

    def __init__(self, rows: Rows, most_bytes: int = _MOST_BYTES) -> None:
        columns = [column for column in rows.action if column is not None]
        tick_bytes = sum(column.nbytes for column in columns) or 1
        self._ticks = max(_LEAST_TICKS, min(_MOST_TICKS, most_bytes // tick_bytes))
        self._num_envs = rows.layout.num_envs
        self._columns = columns
        self._ring = [np.empty((self._ticks, *column.shape), column.dtype) for column in columns]
        self._movers: list[frozenset[int] | None] = [None] * self._ticks
        self._now = 0
        # The last reset with a seed, from which everything can be done again, and those since.
        self._seeded: dict[int, _Reset] = {}
        self._later: dict[int, deque[_Reset]] = {}

    def note_step_of_all(self) -> None:
        """Every env is sent the action that stands in its row."""
        place = self._now % self._ticks
        for ring, column in zip(self._ring, self._columns, strict=True):
            ring[place] = column
        self._movers[place] = None
        self._now += 1

    def note(self, ids: Sequence[int], command: Command, requests: Mapping[int, Request] | None) -> None:
        """These envs are sent a command."""
        if command is Command.STEP:
            if len(ids) == self._num_envs:
                self.note_step_of_all()
            else:
                self._note_steps(ids)
        elif command is Command.RESET:
            for i in ids:
                self._note_reset(i, (requests or {}).get(i))

    def _note_steps(self, ids: Sequence[int]) -> None:
        place = self._now % self._ticks
        for ring, column in zip(self._ring, self._columns, strict=True):
            ring[place, ids] = column[ids]
        self._movers[place] = frozenset(ids)
        self._now += 1

    def _note_reset(self, env_id: int, request: Request | None) -> None:
        seed, options = (request.seed, request.options) if request else (None, None)
        reset = (self._now, seed, options)
        if seed is not None:
            self._seeded[env_id] = reset
            self._later.pop(env_id, None)
        else:
            self._later.setdefault(env_id, deque(maxlen=_MOST_RESETS)).append(reset)

    def release(self) -> None:
        """Let go of the engine's memory; what was noted stays."""
        self._columns = []

    def recording(
        self,
        env_id: int,
        factory: Callable[[], Any],
        autoreset: str,
        max_episode_steps: int | None,
        fault: dict[str, Any] | None = None,
    ) -> Recording:
        """Everything that is known about one env."""
        oldest = max(0, self._now - self._ticks)
        later = self._later.get(env_id, ())
        resets = [r for r in (self._seeded.get(env_id), *later) if r is not None]
        begin = resets[0][0] if resets else 0
        script, places = self._script(env_id, resets, max(begin, oldest))
        return Recording(
            env_id=env_id,
            origin=Origin.of(factory),
            autoreset=str(autoreset),
            max_episode_steps=max_episode_steps,
            script=script,
            actions=[ring[places, env_id] for ring in self._ring],
            gaps=self._gaps(env_id, begin < oldest, resets),
            fault=fault,
        )

    def _script(self, env_id: int, resets: list[_Reset], begin: int) -> tuple[list[list[Any]], list[int]]:
        """Resets and steps in order, and where the actions of the steps are."""
        script: list[list[Any]] = []
        places: list[int] = []
        coming = deque(resets)
        for tick in range(begin, self._now + 1):
            while coming and coming[0][0] <= tick:
                _, seed, options = coming.popleft()
                script.append(["reset", seed, options if is_json(options) else None])
            place = tick % self._ticks
            movers = self._movers[place] if tick < self._now else frozenset()
            if movers is None or env_id in movers:
                places.append(place)
                if script and script[-1][0] == "step":
                    script[-1][1] += 1
                else:
                    script.append(["step", 1])
        return script, places

    def _gaps(self, env_id: int, is_cut: bool, resets: list[_Reset]) -> tuple[str, ...]:
        gaps = []
        if env_id not in self._seeded:
            gaps.append("the env was never reset with a seed, so its generator had a state that nobody knows")
        if is_cut or len(resets) > _MOST_RESETS:
            gaps.append(f"the last seed is longer ago than the {self._ticks} steps that are kept")
        if not all(is_json(options) for _, _, options in resets):
            gaps.append("the options of a reset are more than JSON can hold")
        return tuple(gaps)


class FaultFiles:
    """Writes what the black box knows into folders: on demand, and at each fault if there is a place for it."""

    def __init__(self, box: BlackBox, config: EngineConfig, folder: str | os.PathLike[str] | None) -> None:
        self.box = box
        self._config = config
        self._folder = None if folder is None else Path(folder)
        self._num_saved = 0

    def recording(self, env_id: int, fault: dict[str, Any] | None = None) -> Recording:
        """Everything that is known about one env."""
        config = self._config
        return self.box.recording(env_id, config.factories[env_id], config.autoreset, config.max_episode_steps, fault)

    def save_fault(self, env_id: int, fault: dict[str, Any]) -> str | None:
        """Keep a fault for later; returns where, or None if it is not kept.

        A disk that is full is no reason to fail for a pool that has just survived a fault, so it is only logged.
        """
        if self._folder is None or self._num_saved >= _MOST_SAVED:
            return None
        self._num_saved += 1
        stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        name = f"{stamp}-pid{os.getpid()}-{self._num_saved:03d}-env{env_id}-{fault['kind']}"
        try:
            return str(self.recording(env_id, fault).save(self._folder / name))
        except OSError as error:
            _log.warning("the fault of env %d could not be written to %s: %s", env_id, self._folder, error)
            return None
