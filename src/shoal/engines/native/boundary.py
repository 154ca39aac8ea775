"""The boundary rule for many envs at once: episodes, time limit and the three autoreset modes, over arrays.

    over    whether the episode has ended and the next step is a reset (``next_step``)
    steps   steps taken in the episode

It does to the rows of a ``BatchSim`` what ``Slot`` does to one env, and a law test compares the two row by row.
Nothing is kept of a step that fails: the counts move only when the row is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.engines.native.counting import Counted, step_counter
from shoal.faults import Fault, fault_from
from shoal.native import Columns
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.arrays import Rows
    from shoal.engines.base import EngineConfig, Request
    from shoal.native import Array, BatchSim, Errors, Ids, OverlappingSim

Faults = dict[int, Fault]


class Boundary:
    """Steps and resets some or all envs of a simulator and completes their rows.

    Attributes:
        over: Whether each env's episode has ended and its next step is a reset.
        steps: Steps that each env has taken in its episode.
        seeds: The last seed of each env, for messages; -1 for none, or for one that is too large to be remembered.
    """

    def __init__(self, config: EngineConfig, sim: BatchSim, rows: Rows) -> None:
        count = config.num_envs
        self._sim = sim
        self._overlapping: OverlappingSim = sim  # type: ignore[assignment]  # only asked if it does
        self._next_episode = getattr(sim, "next_episode", None)
        self._mode = config.autoreset
        self._all = np.arange(count, dtype=np.int32)
        self.over = np.zeros(count, np.bool_)
        self.steps = np.zeros(count, np.int64)
        self.seeds = np.full(count, -1, np.int64)
        self._is_anyone_over = False
        self._actions = [column for column in rows.action if column is not None]
        limit = config.max_episode_steps
        self._blocks = [_Block(rows, block, self.steps, limit, sim) for block in range(rows.layout.blocks)]
        self._final = [column for column in rows.final if column is not None]
        self._final_info = rows.final_info

    def reset(self, ids: Ids, requests: Mapping[int, Request], block: int) -> Faults:
        """Begin an episode in each of these envs, as their requests say."""
        wishes = {i: request for i in ids.tolist() if (request := requests.get(i)) is not None}
        seeds = {i: wish.seed for i, wish in wishes.items() if wish.seed is not None}
        for i, seed in seeds.items():
            self.seeds[i] = seed if seed < 2**63 else -1
        options = {i: wish.options for i, wish in wishes.items() if wish.options}
        self.steps[ids] = 0
        rows = self._blocks[block]
        errors = self._begin(ids, self._sim.reset(ids, seeds, options, rows.columns), rows)
        return {i: self._fault(error, i, "reset", 0) for i, error in errors.items()}

    def step(self, ids: Ids | None, block: int) -> Faults:
        """Give each of these envs its action, or its reset if that is due."""
        rows = self._blocks[block]
        if not self._is_anyone_over:
            return self._move(ids, rows)
        due = self.over.copy() if ids is None else self.over[ids]
        if not due.any():
            return self._move(ids, rows)
        everyone = self._all if ids is None else ids
        errors = self._begin(everyone[due], self._go_on(everyone[due], rows.columns), rows)
        faults = {i: self._fault(error, i, "step", 0) for i, error in errors.items()}
        if not due.all():
            faults.update(self._move(everyone[~due], rows))
        self._is_anyone_over = bool(self.over.any())
        return faults

    def begin(self, ids: Ids) -> Ids:
        """Begin a step of these envs on a simulator that overlaps; returns those that have to be stepped otherwise."""
        others = ids[self.over[ids]] if self._is_anyone_over else ids[:0]
        if len(others):
            ids = ids[~self.over[ids]]
        if len(ids) and not self._overlapping.begin(ids, self._actions):
            return np.union1d(ids, others)
        return others

    def finish(self, ids: Ids, block: int) -> Faults:
        """Complete the rows of envs that have moved since they were begun."""
        rows = self._blocks[block]
        return self._note_move(ids, self._overlapping.finish(ids, self._actions, rows.columns), rows)

    # ------------------------------------------------------------------ the two things that happen to envs

    def _go_on(self, ids: Ids, columns: Columns) -> Errors:
        """Begin the episodes that follow those that have ended."""
        if self._next_episode is None:
            return self._sim.reset(ids, {}, {}, columns)
        errors: Errors = self._next_episode(ids, columns)
        return errors

    def _begin(self, ids: Ids, errors: Errors, rows: _Block) -> Errors:
        """Note resets; envs that failed are where they were, in an episode that has no steps yet."""
        good = _without(ids, errors)
        rows.begin(good)
        self.steps[good] = 0
        self.over[good] = False
        return errors

    def _move(self, ids: Ids | None, rows: _Block) -> Faults:
        return self._note_move(ids, self._sim.step(ids, self._actions, rows.columns), rows)

    def _note_move(self, ids: Ids | None, errors: Errors, rows: _Block) -> Faults:
        """Count the steps that were taken, and do what is due where one was the last of its episode."""
        if errors:
            ids = _without(self._all if ids is None else ids, errors)
        faults = {i: self._fault(error, i, "step", int(self.steps[i])) for i, error in errors.items()}
        ended = rows.count(ids)
        if len(ended):
            faults.update(self._end(ended, rows))
        return faults

    def _end(self, ids: Ids, rows: _Block) -> Faults:
        if self._mode is Autoreset.NEXT_STEP:
            self.over[ids] = self._is_anyone_over = True
            return {}
        if self._mode is Autoreset.DISABLED:
            return {}
        for final, column in zip(self._final, rows.columns.obs, strict=True):
            final[ids] = column[ids]
        for name, final in self._final_info.items():
            final[ids] = rows.columns.info[name][ids]
        lengths = {i: int(self.steps[i]) for i in ids.tolist()}
        errors = self._go_on(ids, rows.columns)
        good = _without(ids, errors)
        rows.first[good] = True
        self.steps[good] = 0
        for i in errors:  # its row cannot be handed out, so its last step counts as not taken
            self.steps[i] = lengths[i] - 1
        return {i: self._fault(error, i, "step", lengths[i] - 1) for i, error in errors.items()}

    def _fault(self, error: Exception, env_id: int, phase: str, step: int) -> Fault:
        seed = int(self.seeds[env_id])
        return fault_from(error, env_id=env_id, phase=phase, episode_step=step, seed=None if seed < 0 else seed)

    # ------------------------------------------------------------------ as arrays

    def interrupted(self, error: BaseException, ids: Sequence[int], phase: str) -> Faults:
        """Faults of envs for which nobody knows how far a call has got: what they have is not a valid row."""
        steps = self.steps
        return {i: self._fault(error, i, phase, int(steps[i])) for i in ids}  # type: ignore[arg-type]

    def state(self, block: int) -> dict[str, Array]:
        """Everything that is kept for envs outside the simulator, rows included, as live arrays."""
        rows = self._blocks[block]
        return {
            "over": self.over,
            "steps": self.steps,
            "seed": self.seeds,
            "elapsed": rows.elapsed,
            "first": rows.first,
            "reward": rows.columns.reward,
            "terminated": rows.terminated,
            "truncated": rows.truncated,
            **{f"obs{j}": column for j, column in enumerate(rows.columns.obs)},
            **{f"info_{name}": column for name, column in rows.columns.info.items()},
        }

    def release(self) -> None:
        """Let go of the rows."""
        self._blocks, self._actions, self._final, self._final_info = [], [], [], {}

    def note_restore(self) -> None:
        """Note that the state was overwritten."""
        self._is_anyone_over = bool(self.over.any())


class _Block:
    """One generation of rows.

    Attributes:
        count: Counts a step of these envs, or of all; returns those whose episodes have ended.
    """

    def __init__(self, rows: Rows, block: int, steps: Array, limit: int | None, sim: BatchSim) -> None:
        self.elapsed = rows.elapsed[block]
        self.first = rows.first[block]
        self.terminated = rows.terminated[block]
        self.truncated = rows.truncated[block]
        self.columns = Columns(
            [column[block] for column in rows.obs if column is not None],
            rows.reward[block],
            self.terminated,
            self.truncated,
            {name: column[block] for name, column in rows.info.items()},
        )
        flags = (self.first, self.terminated, self.truncated)
        self.count = step_counter(Counted(steps, self.elapsed, *flags, limit, sim.cuts))

    def begin(self, ids: Ids) -> None:
        """Write what the first row of an episode says besides its observation."""
        self.columns.reward[ids] = 0.0
        self.terminated[ids] = self.truncated[ids] = False
        self.elapsed[ids] = 0
        self.first[ids] = True


def _without(ids: Ids, errors: Errors) -> Ids:
    return np.array([i for i in ids.tolist() if i not in errors], np.int32) if errors else ids
