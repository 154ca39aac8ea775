"""Many simulations of one model on ``mujoco.batch.Batch``, as the envs of a ``MujocoEnv``.

A simulation is the row of its integration state, the numbers that its env tracks, and its generator: nothing else
outlives a call, so a snapshot is a copy of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mujoco import mjtStage
from mujoco.batch import MODEL_FIELDS, Batch, SimulationError

from shoal.arrays import span
from shoal.envs.mujoco.contact_forces import FIELDS as CONTACT_FIELDS
from shoal.envs.mujoco.env import MujocoEnv
from shoal.envs.mujoco.view import MujocoView
from shoal.errors import SpecError
from shoal.native import Generators

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.native import Array, Columns, Errors, Ids
    from shoal.spec import SpaceTree

_STATE = ("time", "qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat", "userdata")
_ALL = slice(None)
_MOST_NEIGHBOURS = 64


class Sims:
    """The envs of one call, seen by the methods of a ``MujocoEnv``: fields of ``MjData`` with one row per env.

    After a step, positions and velocities are new, and derived fields such as ``xpos`` are those of the last substep,
    as with ``mj_step``. Arrays may be the simulation's own, and cannot be written to. Methods may leave things for one
    another in attributes of any other name: ``reward`` is called first, then ``terminated`` and ``observe``.

    Attributes:
        env_id: Which envs of the pool these are.
        action: What the envs were told.
        before: What ``track`` returned before the step.
        after: What it returns now.
        info: Where info fields are written to, by name.
        dt: Seconds of simulated time per step.
        is_reset: Whether these envs have just been reset, and not stepped.
    """

    action: Array
    before: Any = None
    after: Any = None

    def __init__(self, arrays: Mapping[str, Array], rows: Any, dt: float, *, is_reset: bool = False) -> None:
        self._arrays = arrays
        self._rows = rows
        self.dt = dt
        self.info: dict[str, Any] = {}
        self.is_reset = is_reset

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        try:
            array = self._arrays[name]
        except KeyError:
            raise AttributeError(f"d has no field {name!r}; fields of an env names those that it uses") from None
        # Nothing pushes at the start; the batch would show what another simulation has left there.
        value = np.zeros_like(array[self._rows]) if self.is_reset and name in CONTACT_FIELDS else array[self._rows]
        value.flags.writeable = False
        setattr(self, name, value)
        return value

    @property
    def env_id(self) -> Ids:
        """Which envs of the pool these are, row by row."""
        ids: Ids = np.arange(len(self._arrays["qpos"]), dtype=np.int32)[self._rows]
        return ids


class MujocoSim:
    """The envs of a ``MujocoEnv``.

    Attributes:
        kind: The env that they are of.
        ends: Whether the env has written ``terminated``.
        cuts: Never: the time limit is kept elsewhere.
        batch: The simulations.
        generators: Their generators.
        seeds: The last seed of each.
    """

    @property
    def _is_persistent(self) -> bool:
        """Whether every simulation has memory of its own for what follows from its state."""
        return False

    def __init__(self, kind: MujocoEnv, tree: SpaceTree, num_envs: int, num_threads: int) -> None:
        self.kind = kind
        self.ends = type(kind).terminated is not MujocoEnv.terminated
        self.cuts = False
        self.batch = Batch(kind.compiled, num_envs, max(1, min(num_threads, num_envs)), self._is_persistent)
        self.generators: Any = Generators(num_envs)
        self.seeds: dict[int, int] = {}
        self._flatten = None if tree.is_single else tree.flatten
        self.arrays: dict[str, Array] = {name: self.batch.bind(name) for name in (*_STATE, *kind.fields)}
        if not kind.post_constraint:
            # Nobody computes them, and another's must not be seen.
            self.arrays.update({name: np.zeros_like(self.arrays[name]) for name in CONTACT_FIELDS & {*kind.fields}})
        self._qpos, self._qvel, self._ctrl = (self.arrays[name] for name in ("qpos", "qvel", "ctrl"))
        kind.prepare(self.batch)
        # What ``prepare`` has made different for each env belongs to the env.
        self._own_model: dict[str, Array] = {
            name: self.batch.expand(name) for name in MODEL_FIELDS if self.batch.expanded(name) is not None
        }
        self._neighbours: dict[tuple[Any, Any], Sims] = {}
        self.batch.forward()
        tracked = kind.track(self._sims(_ALL))
        self._tracked = None if tracked is None else np.array(tracked, np.float64)

    # ------------------------------------------------------------------ resets and steps

    def reset(
        self, ids: Ids, seeds: Mapping[int, int], options: Mapping[int, Mapping[str, Any]], out: Columns
    ) -> Errors:
        """Begin episodes where the env's ``start`` says."""
        self.generators.seed(seeds)
        self.seeds.update(seeds)
        self.batch.reset(ids, stage=mjtStage.mjSTAGE_NONE.value)
        errors = self._begin(ids)
        errors.update(self._run(self.batch.forward, ids))
        good = _without(ids, errors)
        d = Sims(self.arrays, good, self.kind.dt, is_reset=True)
        self._observe(d, good, out)
        for name in self.kind.step_info:
            out.info[name][good] = 0
        return errors

    def _begin(self, ids: Ids) -> Errors:
        """Put simulations where their episodes begin."""
        errors: Errors = {}
        for i in ids.tolist():
            try:
                self._qpos[i], self._qvel[i] = self.kind.start(self.generators[i])
            except Exception as error:
                errors[i] = error
        return errors

    def step(self, ids: Ids | None, action: Sequence[Array], out: Columns) -> Errors:
        """Give every simulation its controls and advance it by the env's ``frame_skip``."""
        which: Any = _ALL if ids is None else span(ids) or ids
        self._ctrl[which] = action[0][which]
        errors = self._advance(ids, self.kind.frame_skip)
        if errors:
            good = _without(np.arange(len(self._ctrl), dtype=np.int32) if ids is None else ids, errors)
            which = span(good) or good
        d = self._sims(which)
        d.action = action[0][which]
        if self._tracked is not None:
            d.before = self._tracked[which]
            d.after = self.kind.track(d)
        # Before ``before`` is written over.
        out.reward[which] = self.kind.reward(d)
        if self.ends:
            out.terminated[which] = self.kind.terminated(d)
        self._observe(d, which, out)
        return errors

    def _sims(self, which: slice | Ids) -> Sims:
        """The envs of a step. Those that are neighbours tend to be stepped together again, with the same views."""
        if not isinstance(which, slice):
            return Sims(self.arrays, which, self.kind.dt)
        key = (which.start, which.stop)
        if key not in self._neighbours:
            if len(self._neighbours) > _MOST_NEIGHBOURS:
                self._neighbours.clear()
            self._neighbours[key] = Sims(self.arrays, which, self.kind.dt)
        return self._neighbours[key]

    def _advance(self, ids: Ids | None, count: int) -> Errors:
        """Take steps of the simulation."""
        return self._run(self.batch.step, ids, count)

    def _observe(self, d: Sims, which: Any, out: Columns) -> None:
        kind = self.kind
        seen = kind.observe(d)
        if self._flatten is None:
            out.obs[0][which] = seen
        else:
            for column, leaf in zip(out.obs, self._flatten(seen), strict=True):
                column[which] = leaf
        kind.report(d)
        for name, value in d.info.items():
            out.info[name][which] = value
        if self._tracked is not None:
            self._tracked[which] = kind.track(d) if d.is_reset else d.after

    def _run(self, call: Any, ids: Ids | None, *arguments: Any) -> Errors:
        """Have the batch do something; what MuJoCo refuses in some simulations is their error alone."""
        try:
            call(ids, *arguments)
        except SimulationError as error:
            return {int(i): RuntimeError(self.batch.error(int(i))) for i in error.ids}
        return {}

    # ------------------------------------------------------------------ single envs

    def snapshot(self, ids: Ids) -> dict[str, Array]:
        """States, what is tracked, generators, and what the envs have of their own in the model."""
        state = {"state": self.batch.state[ids], "words": self.generators.words(ids)}
        if self._tracked is not None:
            state["tracked"] = self._tracked[ids]
        return {**state, **{f"model.{name}": array[ids] for name, array in self._own_model.items()}}

    def restore(self, ids: Ids, state: Mapping[str, Array]) -> None:
        """Put simulations into the states of others."""
        self.batch.state[ids] = state["state"]
        self.generators.set_words(ids, state["words"])
        if self._tracked is not None:
            self._tracked[ids] = state["tracked"]
        for name, array in self._own_model.items():
            array[ids] = state[f"model.{name}"]

    @property
    def own_fields(self) -> tuple[str, ...]:
        """What ``prepare`` has made different for each env."""
        return tuple(self._own_model)

    def note_move(self, env_id: int) -> None:
        """Somebody has put a simulation elsewhere: what is tracked of it begins there."""
        if self._tracked is not None:
            ids = np.array([env_id], np.int32)
            self._run(self.batch.forward, ids)
            self._tracked[ids] = self.kind.track(Sims(self.arrays, ids, self.kind.dt))

    def renew(self, env_id: int) -> None:
        """A reset is all that a simulation needs."""

    def view(self, env_id: int) -> MujocoView:
        """One simulation as an object."""
        return MujocoView(self, env_id)

    def close(self) -> None:
        """Let go of the simulations."""
        drawer = self.__dict__.pop("drawer", None)
        if drawer is not None:
            drawer.close()
        self.__dict__.pop("batch", None)
        self.arrays, self._neighbours = {}, {}


def first_observation(kind: MujocoEnv) -> Any:
    """What a kind of env observes in one simulation, to learn the form of it.

    Raises:
        SpecError: If it is not an array, or arrays, with a row per env.
    """
    batch = Batch(kind.compiled, 1, 1)
    arrays = {name: batch.bind(name) for name in (*_STATE, *kind.fields)}
    batch.reset()
    d = Sims(arrays, _ALL, kind.dt, is_reset=True)
    d.after = kind.track(d)
    seen = kind.observe(d)
    for leaf in seen.values() if isinstance(seen, dict) else [seen]:
        if not isinstance(leaf, np.ndarray) or leaf.ndim < 1 or len(leaf) != 1:
            raise SpecError(f"{type(kind).__name__}.observe: expected arrays with one row per env, got {leaf!r}")
    return seen


def _without(ids: Ids, errors: Errors) -> Ids:
    return np.array([i for i in ids.tolist() if i not in errors], np.int32) if errors else ids
