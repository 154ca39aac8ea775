"""A lane: slots that one thread of execution runs, one after another.

The serial, thread and process engines differ in where a lane runs and how it is woken; what happens to an env is here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.adapters import adapt, describe
from shoal.arrays import Rows, RowWriter
from shoal.engines.acting import action_reader, actions_reader
from shoal.engines.base import (
    KEEP,
    LET_GO,
    PHASES,
    PUT_BACK,
    Call,
    Command,
    EngineConfig,
    Extra,
    Request,
    row_layout,
)
from shoal.engines.measuring import measure, why_it_must_stay
from shoal.engines.sweeping import Outcomes, step_in_python, sweeps_of
from shoal.errors import SpecError, StateError
from shoal.faults import Fault, fault_from
from shoal.keeping import keep, objection, put_back
from shoal.seeding import GeneratorState, generator_of, give_generator
from shoal.slot import Row, Slot, copy_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.spec import EnvSpec

_IMAGE = 2  # dimensions; copying a vector takes no time
_NOWHERE: Any = object()
_log = logging.getLogger("shoal")


class Lane:
    """The envs ``env_ids`` and the rows they write to.

    An observation is copied to its row, unless the env keeps it there. An env that can do so has this method:

        move_observation(old, new) -> bool    from now on, keep the observation in ``new``; False, and nothing changes,
                                              if it was not in ``old``

    Attributes:
        lends_rows: Whether envs may keep their observations in their rows.
        ends: How many rows that end an episode have been written.
        is_plain: Whether a row is made of an observation and the columns that all envs have.
        running: An array in which ``running[place]`` is the env that runs, for whoever watches for hung ones.
        place: The index into it.
    """

    lends_rows = True

    def __init__(
        self, config: EngineConfig, env_ids: Sequence[int], worker: int | None = None, *, copies_infos: bool = True
    ) -> None:
        self.config = config
        # Within one process, an info that its env reuses would change in the reader's hands.
        self._own: Callable[[Any], Any] = copy_leaves if copies_infos else _as_is
        self.env_ids = tuple(env_ids)
        self.worker = worker
        self.slots: dict[int, Slot] = {}
        self.specs: dict[int, EnvSpec] = {}
        self.ends = 0
        self._incarnations = dict.fromkeys(self.env_ids, 0)
        self._spec: EnvSpec | None = None
        self._writers: list[RowWriter] = []
        self._sweeps: tuple[Any, ...] = ()
        self._images: Any = None  # the rows that can be lent, and those that are
        self._lent: dict[int, Any] = {}
        self._action_of: Callable[[int, tuple[Any, ...]], Any] = _no_action
        self._actions: Callable[[], Iterable[Any]] = _no_action
        self.is_plain = False
        self.running: np.ndarray[Any, Any] = np.full(1, -1, np.int32)
        self.place = 0

    def build(self) -> list[Fault]:
        """Build every env of the lane; returns the faults of those that failed, and the rest are ready."""
        return [fault for env_id in self.env_ids if (fault := self.build_one(env_id))]

    def build_one(self, env_id: int) -> Fault | None:
        """Build one env; None if it went well."""
        try:
            self._build(env_id)
            return None
        except BaseException as error:
            if self.worker is None and isinstance(error, KeyboardInterrupt):
                raise  # in the caller's own thread, the interrupt belongs to the user
            return self.fault(env_id, "construct", error)

    def _build(self, env_id: int) -> None:
        config = self.config
        env = adapt(config.factories[env_id]())
        try:
            self.specs[env_id] = spec = describe(env, config.name)
            if self._spec is not None and (difference := self._spec.difference(spec)):
                raise SpecError(f"built anew, it has other spaces than before: {difference}")
        except BaseException:
            close_env(env_id, env)
            raise
        is_last = not self.slots or env_id > next(reversed(self.slots))
        self._lent.pop(env_id, None)
        rules: dict[str, Any] = {"finite_rewards": config.finite_rewards, "quick_reset_s": config.quick_reset_s}
        self.slots[env_id] = Slot(env, config.autoreset, config.max_episode_steps, config.check, **rules)
        if not is_last:  # the slots are kept in the order of their ids, in whatever order they are built
            self.slots = {i: self.slots[i] for i in self.env_ids if i in self.slots}

    def _rebuild(self, env_id: int, incarnation: int, generator: GeneratorState | None) -> None:
        """Put a new env in the place of one that failed, or that lived in another worker."""
        self._incarnations[env_id] = incarnation
        failed = self.slots.pop(env_id, None)
        if failed is not None:
            close_env(env_id, failed.env)
        self._build(env_id)
        if generator is not None:
            give_generator(self.slots[env_id].env, generator)
        self._read_actions()

    def _let_go(self, env_id: int) -> GeneratorState | None:
        """Close an env that will live on elsewhere; returns its generator, so that it can continue there."""
        slot = self.slots.pop(env_id)
        generator = generator_of(slot.env)
        close_env(env_id, slot.env)
        self._read_actions()
        return generator

    def attach(self, rows: Rows) -> None:
        """Connect the lane to its memory."""
        self._spec = rows.spec
        self._writers = [RowWriter(rows, block, self.config.check) for block in range(rows.layout.blocks)]
        self._rows = rows
        self._action_of = action_reader(rows)
        self._read_actions()
        self.is_plain = not (rows.spec.observation.has_objects or rows.spec.info)
        # The short way of ``step_all`` does not ask whether an observation is in its row already.
        self._images = images_of(rows) if self.lends_rows and not self.is_plain else None
        self._sweeps = sweeps_of(rows, self._writers, self.running, self.place) if self.is_plain else ()

    def watch(self, running: np.ndarray[Any, Any], place: int) -> None:
        """From now on, note elsewhere which env is running."""
        self.running, self.place = running, place
        self._sweeps = sweeps_of(self._rows, self._writers, running, place) if self.is_plain else ()

    def _read_actions(self) -> None:
        """From now on, read the actions of the envs that are here, which may be only some of the lane's."""
        self._actions = actions_reader(self._rows, tuple(self.slots))

    def detach(self) -> None:
        """Disconnect a lane that was given up from its memory: nobody reads what it still writes."""
        if self._spec is not None:
            config = replace(self.config, factories=(None,) * (max(self.env_ids) + 1))
            layout = row_layout(config, self._spec)
            self.attach(Rows(layout, layout.private()))

    def run(self, env_id: int, command: int, request: Request | None, block: int) -> Extra | Fault | None:
        """Carry out one command. The row is written when this returns None or an ``Extra``."""
        is_built = True
        try:
            if request is not None and request.incarnation is not None:
                is_built = False
                self._rebuild(env_id, request.incarnation, request.generator)
                is_built = True
            slot = self.slots.get(env_id)
            if slot is None:
                is_built = False
                raise StateError("the env could not be built, so it can do nothing")
            if request is not None and request.call is not None:
                return Extra(value=self._answer(env_id, slot, request.call), is_answer=True)
            if command == Command.STEP:
                row = slot.step(self._action_of(env_id, request.action if request else ()))
            else:
                row = slot.reset(request.seed, request.options) if request else slot.reset()
            return self._write(env_id, slot, row, self._writers[block])
        # Whatever an env raises, SystemExit included, is the env's fault and must not end the thread it runs in.
        except BaseException as error:
            return self.fault(env_id, PHASES[Command(command)] if is_built else "construct", error)

    def _answer(self, env_id: int, slot: Slot, call: Call) -> Any:
        operation, args = call[0], call[2]
        self._take_back_row(env_id, slot.env)  # only resets and steps may change it
        if operation == LET_GO:
            return self._let_go(env_id)
        if operation not in (KEEP, PUT_BACK):
            return answer(slot.env, call)
        if (reason := objection(slot.env)) is not None:
            return reason
        if operation == KEEP:
            return slot.state, self._own(keep(slot.env))
        state, kept = args
        put_back(slot.env, copy_leaves(kept))  # several envs may be given the same state
        slot.state = state
        return None

    def step_all(self, block: int) -> Outcomes:
        """Step every env of the lane: ``run`` for each, without its overhead. Returns what goes beyond a row."""
        outcomes: Outcomes = {}
        if self._sweeps:
            self._sweeps[block](self, outcomes)
        else:
            step_in_python(self, self._writers[block], outcomes, has_flags=len(self._writers) > 1)
        return outcomes

    @property
    def sweeps(self) -> tuple[Any, ...]:
        """The compiled forms of ``step_all``, one for each block; none if there are none."""
        return self._sweeps

    # What ``step_all`` is made of, in either form. Three of these say whether to go on with the next env.

    def read_actions(self) -> Iterable[Any]:
        """The actions of all envs that are here, in order, as values of the envs' own."""
        return self._actions()

    def step_slowly(self, writer: RowWriter, outcomes: Outcomes, env_id: int, action: Any) -> bool:
        """Step an env that may be at a boundary."""
        return self._put_row(writer, outcomes, env_id, self.slots[env_id].step, action)

    def conclude(self, writer: RowWriter, outcomes: Outcomes, env_id: int, result: Any) -> bool:
        """Write the row of an env whose step has returned something out of the usual."""
        return self._put_row(writer, outcomes, env_id, self.slots[env_id].conclude, result)

    def _put_row(
        self, writer: RowWriter, outcomes: Outcomes, env_id: int, rule: Callable[[Any], Row], given: Any
    ) -> bool:
        try:
            extra = self._write(env_id, self.slots[env_id], rule(given), writer)
        except BaseException as error:
            return self.note_failure(writer, outcomes, env_id, error)
        if extra is not None:
            outcomes[env_id] = extra
        return True

    def note_failure(self, _: RowWriter, outcomes: Outcomes, env_id: int, error: BaseException) -> bool:
        """Note the fault of an env; an interrupt in the caller's own thread ends the step there."""
        outcomes[env_id] = self.fault(env_id, "step", error)
        return not (self.worker is None and isinstance(error, KeyboardInterrupt))

    def extra_of(self, info: dict[str, Any]) -> Extra:
        """What goes with a usual row."""
        return Extra(self._own(info))

    def refuse(self, env_id: int, phase: str, error: BaseException) -> Fault:
        """The fault of an env whose row was written, yet cannot be handed out."""
        if phase == "step":
            self.slots[env_id].take_back()
        return self.fault(env_id, phase, error)

    def fault(self, env_id: int, phase: str, error: BaseException) -> Fault:
        """An exception as a fault of one env, with all that is known about it."""
        slot = self.slots.get(env_id)
        return fault_from(
            error,
            env_id=env_id,
            phase=phase,
            worker=self.worker,
            episode_step=slot.taken if slot else None,
            seed=slot.seed if slot else None,
            incarnation=self._incarnations[env_id],
        )

    def _write(self, env_id: int, slot: Slot, row: Row, writer: RowWriter) -> Extra | None:
        obs, reward, terminated, truncated, info = row
        last_objects = None
        try:
            if self._images is None:
                objects = writer.put_obs(env_id, obs)
            else:
                objects = self._put_image(env_id, slot.env, obs, writer)
            if slot.final is not None and writer.put_final is not None:
                last_objects = writer.put_final(env_id, slot.final[0])
            info = writer.put_info(env_id, info)
            writer.reward[env_id] = reward
            writer.terminated[env_id] = terminated
            writer.truncated[env_id] = truncated
        except BaseException:
            slot.take_back()
            raise
        if terminated or truncated:
            self.ends += 1
        writer.elapsed[env_id] = slot.elapsed
        writer.first[env_id] = slot.first
        if slot.final is not None and writer.put_final is not None:
            return Extra(self._own(info) or None, objects, slot.final[1] or None, last_objects, has_final=True)
        if info or objects is not None:
            return Extra(self._own(info) or None, objects)
        return None

    def _put_image(self, env_id: int, env: Any, obs: Any, writer: RowWriter) -> list[Any] | None:
        """Copy an image to its row unless it is there, and lend the row to an env that can keep the next ones there."""
        if obs is self._lent.get(env_id, _NOWHERE):
            return None
        self._take_back_row(env_id, env)  # the env keeps something else than it shows, and would lose it
        objects = writer.put_obs(env_id, obs)
        # The very class must have the method: some wrappers pass for their env, and a subclass may hold views.
        if "move_observation" in vars(type(env)):
            row = self._images[env_id]
            if env.move_observation(obs, row):
                self._lent[env_id] = row
        return objects

    def _take_back_row(self, env_id: int, env: Any) -> None:
        """Have an env that keeps its observation in its row keep it elsewhere."""
        row = self._lent.pop(env_id, None)
        if row is not None:
            env.move_observation(row, np.empty_like(row))

    def close(self) -> None:
        """Close every env. An env that fails to close is logged and does not keep the others from closing."""
        for env_id in list(self.slots):
            slot = self.slots.pop(env_id, None)  # taken out first, so that two threads close no env twice
            if slot is not None:
                close_env(env_id, slot.env)


def close_env(env_id: int, env: Any) -> None:
    """Close an env; a failure is only logged, so that everything else is closed as well."""
    try:
        env.close()
    except BaseException:
        _log.warning("close failed in env %d", env_id, exc_info=True)


def images_of(rows: Rows) -> Any:
    """The rows in which envs can keep their observations; None if that is impossible, or not worth it.

    With several blocks, the row of an env is elsewhere each time.
    """
    tree = rows.spec.observation
    column = rows.obs[0] if tree.is_single and rows.layout.blocks == 1 else None
    return None if column is None or len(tree.leaves[0].shape) < _IMAGE else column[0]


def _as_is(value: Any) -> Any:
    return value


def _no_action(*_: Any) -> Any:
    raise RuntimeError("the lane has no memory yet")


def answer(env: Any, call: Call) -> Any:
    """What a CALL on an env returns."""
    operation, name, args, kwargs = call
    if operation == "measure":
        return *measure(env), why_it_must_stay(env)
    if operation == "set":
        setter = getattr(env, "set_wrapper_attr", None)
        return setter(name, *args) if setter else setattr(env, name, *args)
    getter = getattr(env, "get_wrapper_attr", None)
    attribute = getter(name) if getter else getattr(env, name)
    return attribute(*args, **kwargs) if operation == "call" and callable(attribute) else attribute
