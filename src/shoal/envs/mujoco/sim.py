"""Many simulations of one model on ``mujoco.batch.Batch``, as the envs of a ``MujocoEnv``.

A simulation consists of its row of the integration state, the numbers that its env tracks, and its generator: nothing
else outlives a call, so a snapshot is a copy of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mujoco import mjMAXVAL, mjtStage
from mujoco.batch import MODEL_FIELDS, Batch, SimulationError

from shoal.arrays import span
from shoal.engines.kernel.installed import FLOATS
from shoal.envs.mujoco.clock import stop_clock_for
from shoal.envs.mujoco.compiled import CompiledRows, action_dtype, code_for
from shoal.envs.mujoco.contact_forces import FIELDS as CONTACT_FIELDS
from shoal.envs.mujoco.crew import Crew, can_work
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
_STATE_ONLY = mjtStage.mjSTAGE_NONE.value
_MOST_NEIGHBOURS = 64
_PLAIN = frozenset({int, float, bool})  # numpy's numbers are left out: a sum over all envs by mistake is one of them


class Sims:
    """The envs of one call, as the methods of a ``MujocoEnv`` see them: fields of ``MjData`` with one row per env.

    After a step, positions and velocities are new, and derived fields such as ``xpos`` are those of the last substep,
    as with ``mj_step``. Arrays may be the simulation's own, and cannot be written to. Methods may leave things for one
    another in attributes of any other name: ``reward`` is called first, then ``terminated`` and ``observe``. The next
    step has an object of its own.

    Attributes:
        env_id: Which envs of the pool these are.
        action: The actions of the envs.
        before: What ``track`` returned before the step.
        after: What ``track`` returns now.
        info: Where info fields are to be written, by name.
        dt: Seconds of simulated time per step.
        is_reset: Whether these envs have just been reset, and not stepped.
    """

    action: Array
    before: Any = None
    after: Any = None

    def __init__(
        self,
        arrays: Mapping[str, Array],
        rows: Any,
        dt: float,
        *,
        views: dict[str, Array] | None = None,
        is_reset: bool = False,
    ) -> None:
        self._views = {} if views is None else views
        self.__dict__.update(self._views)
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
        # There are no contact forces at the start; the batch would show what another simulation left behind.
        value = np.zeros_like(array[self._rows]) if self.is_reset and name in CONTACT_FIELDS else array[self._rows]
        value.flags.writeable = False
        self._views[name] = value
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
        kind: The kind of env that they are.
        ends: Whether the kind implements ``terminated``.
        cuts: Always False: the time limit is enforced elsewhere.
        batch: The simulations.
        generators: Their generators.
        seeds: The last seed of each.
    """

    @property
    def _is_persistent(self) -> bool:
        """Whether every simulation has memory of its own for what is derived from its state."""
        return False

    def __init__(self, kind: MujocoEnv, tree: SpaceTree, num_envs: int, num_threads: int) -> None:
        self._start_clock = stop_clock_for(self)
        self.kind = kind
        self.ends = type(kind).terminated is not MujocoEnv.terminated
        self.cuts = False
        self.batch = Batch(kind.compiled, num_envs, max(1, min(num_threads, num_envs)), self._is_persistent)
        self.generators: Any = Generators(num_envs)
        self.seeds: dict[int, int] = {}
        self._flatten = None if tree.is_single else tree.flatten
        self.arrays: dict[str, Array] = {name: self.batch.bind(name) for name in (*_STATE, *kind.fields)}
        if not kind.post_constraint:
            # Nobody computes these fields, and those of another simulation must not show.
            self.arrays.update({name: np.zeros_like(self.arrays[name]) for name in CONTACT_FIELDS & {*kind.fields}})
        self._qpos, self._qvel, self._ctrl = (self.arrays[name] for name in ("qpos", "qvel", "ctrl"))
        kind.prepare(self.batch)
        # Whatever ``prepare`` has made different for each env belongs to the env.
        self._own_model: dict[str, Array] = {
            name: self.batch.expand(name) for name in MODEL_FIELDS if self.batch.expanded(name) is not None
        }
        self._neighbours: dict[tuple[Any, Any], dict[str, Array]] = {}
        self.batch.reset(stage=_STATE_ONLY)
        # What a reset makes of each simulation; copying that takes a tenth of the time. It is not all if derived fields
        # are kept, and may not stay the same if models differ.
        self._initial = None if self._is_persistent or self._own_model else self.batch.state.copy()
        self.batch.forward()
        tracked = kind.track(self._sims(_ALL))
        self._tracked = None if tracked is None else np.array(tracked, np.float64)
        if self._tracked is not None and self._tracked.shape[:1] != (num_envs,):
            raise SpecError(f"{type(kind).__name__}.track: expected {num_envs} rows, got {self._tracked.shape}")
        self._compiled: CompiledRows | None = None
        if self._tracked is not None and (code := code_for(kind, tree)) is not None:
            self._compiled = CompiledRows(code, kind, self.arrays, self._tracked)
        self._crew: Crew | None = None

    # ------------------------------------------------------------------ resets and steps

    def reset(
        self, ids: Ids, seeds: Mapping[int, int], options: Mapping[int, Mapping[str, Any]], out: Columns
    ) -> Errors:
        """Begin episodes where the env's ``start`` says."""
        if self._crew is not None:
            self._crew.settle(ids)
        self.generators.seed(seeds)
        self.seeds.update(seeds)
        if self._initial is None:
            self.batch.reset(ids, stage=_STATE_ONLY)
        else:
            self.batch.state[ids] = self._initial[ids]
        errors = self._begin(ids)
        errors.update(self._unusable(_without(ids, errors)))
        errors.update(self._run(self.batch.forward, _without(ids, errors)))
        good = _without(ids, errors)
        d = Sims(self.arrays, good, self.kind.dt, is_reset=True)
        self._observe(d, good, (len(good),), out)
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

    def _unusable(self, ids: Ids) -> Errors:
        """Errors for simulations whose start MuJoCo would replace by the model's own, with no more than a warning."""
        bad = ids[~(_is_usable(self._qpos[ids]) & _is_usable(self._qvel[ids]))]
        name = type(self.kind).__name__
        return {
            i: SpecError(f"{name}.start: not a state of a simulation: qpos {self._qpos[i]}, qvel {self._qvel[i]}")
            for i in bad.tolist()
        }

    def step(self, ids: Ids | None, action: Sequence[Array], out: Columns) -> Errors:
        """Give every simulation its controls and advance it by the env's ``frame_skip``."""
        which: Any = _ALL if ids is None else span(ids) or ids
        self._ctrl[which] = action[0][which]
        return self._write(ids, self._advance(ids, self.kind.frame_skip), action, out)

    def overlap(self) -> bool:
        """Get ready to begin steps: with several threads, and nothing that only the batch itself can do or show."""
        batch, kind = self.batch, self.kind
        is_plain = type(kind).prepare is MujocoEnv.prepare and type(self)._advance is MujocoSim._advance
        dtype = action_dtype(kind)
        if is_plain and batch.nthread > 1 and dtype in FLOATS and can_work(batch):
            derived = [name for name in kind.fields if not np.may_share_memory(batch.bind(name), batch.state)]
            self._crew = Crew(batch, derived, kind.frame_skip, batch.nthread, dtype)
        return self._crew is not None

    def begin(self, ids: Ids, action: Sequence[Array]) -> bool:
        """Begin a step of these envs, and return at once; False if they have to be stepped in another way."""
        return self._crew is not None and self._crew.post(ids, action[0])

    def moved(self, wanted: int, wait_s: float | None) -> list[int]:
        """Envs whose steps have been taken: as many as are wanted, unless time is up or there are no more."""
        return [] if self._crew is None else self._crew.moved(wanted, wait_s)

    def finish(self, ids: Ids, action: Sequence[Array], out: Columns) -> Errors:
        """Write the rows of envs that have moved."""
        return self._write(ids, {} if self._crew is None else self._crew.errors(ids), action, out)

    def _write(self, ids: Ids | None, errors: Errors, action: Sequence[Array], out: Columns) -> Errors:
        """Write the rows of envs after a step."""
        which: Any = _ALL if ids is None else span(ids) or ids
        if errors:
            ids = _without(np.arange(len(self._ctrl), dtype=np.int32) if ids is None else ids, errors)
            which = span(ids) or ids
        if self._compiled is None:
            self._write_rows(which, action[0], out)
        else:
            self._compiled.write(ids, action[0], out)
        return errors

    def _write_rows(self, which: Any, action: Array, out: Columns) -> None:
        """Have the kind's own methods observe and reward a step."""
        d = self._sims(which)
        d.action = action[which]
        count = (len(d.action),)
        if self._tracked is not None:
            d.before = self._tracked[which]
            d.after = self.kind.track(d)
        # Rewards come first, because ``_observe`` overwrites ``before``.
        out.reward[which] = self._one_each(self.kind.reward(d), count, "reward")
        if self.ends:
            out.terminated[which] = self._one_each(self.kind.terminated(d), count, "terminated")
        self._observe(d, which, count, out)

    def _sims(self, which: slice | Ids) -> Sims:
        """The envs of a step. Neighbours tend to be stepped together again, so views of their rows are kept."""
        if not isinstance(which, slice):
            return Sims(self.arrays, which, self.kind.dt)
        key = (which.start, which.stop)
        views = self._neighbours.get(key)
        if views is None:
            if len(self._neighbours) > _MOST_NEIGHBOURS:
                self._neighbours.clear()
            views = self._neighbours[key] = {}
        return Sims(self.arrays, which, self.kind.dt, views=views)

    def _advance(self, ids: Ids | None, count: int) -> Errors:
        """Take steps of the simulation."""
        return self._run(self.batch.step, ids, count)

    def _observe(self, d: Sims, which: Any, count: tuple[int], out: Columns) -> None:
        kind = self.kind
        seen = kind.observe(d)
        for column, leaf in zip(out.obs, (seen,) if self._flatten is None else self._flatten(seen), strict=True):
            column[which] = self._one_each(leaf, count + column.shape[1:], "observe")
        kind.report(d)
        for name, value in d.info.items():
            column = out.info[name]
            if getattr(value, "shape", None) != count:  # usually it is, and a call for each would cost a microsecond
                self._one_each(value, count + column.shape[1:], f"info[{name!r}]")
            column[which] = value
        tracked = self._tracked
        if tracked is not None:
            after = kind.track(d) if d.is_reset else d.after
            tracked[which] = self._one_each(after, count + tracked.shape[1:], "track")

    def _one_each(self, value: Any, shape: tuple[int, ...], source: str) -> Any:
        """What the kind has given for some envs, if it has one row for each.

        Raises:
            SpecError: If it is neither that nor a plain number: numpy would repeat a single row.
        """
        # In this order, arrays cost nothing but a look at their shape.
        if getattr(value, "shape", None) != shape and type(value) not in _PLAIN and np.shape(value) != shape:
            source = f"{type(self.kind).__name__}.{source}"
            raise SpecError(f"{source}: expected shape {shape}, with one row per env, got {np.shape(value)}")
        return value

    def _run(self, call: Any, ids: Ids | None, *arguments: Any) -> Errors:
        """Have the batch do something; if MuJoCo fails in some simulations, the error is only theirs."""
        try:
            call(ids, *arguments)
        except SimulationError as error:
            return {int(i): RuntimeError(self.batch.error(int(i))) for i in error.ids}
        return {}

    # ------------------------------------------------------------------ single envs

    def snapshot(self, ids: Ids) -> dict[str, Array]:
        """States, tracked numbers, generators, and what the envs have of their own in the model."""
        state = {"state": self.batch.state[ids], "words": self.generators.words(ids)}
        if self._tracked is not None:
            state["tracked"] = self._tracked[ids]
        return {**state, **{f"model.{name}": array[ids] for name, array in self._own_model.items()}}

    def restore(self, ids: Ids, state: Mapping[str, Array]) -> None:
        """Put simulations into the states of others."""
        if self._crew is not None:
            self._crew.settle(ids)
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
        """Note that a simulation was put into another state: its tracked numbers start from there."""
        if self._tracked is not None:
            ids = np.array([env_id], np.int32)
            self._run(self.batch.forward, ids)
            self._tracked[ids] = self.kind.track(Sims(self.arrays, ids, self.kind.dt))

    def renew(self, env_id: int) -> None:
        """Do nothing: a reset is all that a simulation needs."""

    def view(self, env_id: int) -> MujocoView:
        """One simulation as an object."""
        return MujocoView(self, env_id)

    def close(self) -> None:
        """Release the simulations."""
        drawer = self.__dict__.pop("drawer", None)
        if drawer is not None:
            drawer.close()
        if self._crew is not None:
            self._crew.close()
        self._start_clock()
        self.__dict__.pop("batch", None)
        self.arrays, self._neighbours, self._compiled = {}, {}, None


def first_observation(kind: MujocoEnv) -> Any:
    """What a kind of env observes in one simulation, to learn the form of its observations.

    Raises:
        SpecError: If it is neither an array with a row per env nor a dict of such arrays.
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


def _is_usable(rows: Array) -> Array:
    """For each row, whether MuJoCo simulates from it: NaN and huge numbers make it start over."""
    usable: Array = (np.abs(rows) <= mjMAXVAL).all(axis=1)
    return usable


def _without(ids: Ids, errors: Errors) -> Ids:
    return np.array([i for i in ids.tolist() if i not in errors], np.int32) if errors else ids
