"""The kernel engine: all envs of a kind in one compiled loop, in the caller's thread or a few beside it.

    records   one structured record per env: its state, info fields and constants
    words     one generator per env
    over      whether the episode has ended and the next step is a reset (``next_step``)
    steps     steps taken in the episode

Together with the rows, these are all there is to an env, so a snapshot is a copy of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.adapters import describe
from shoal.adapters.kernel_env import PlainKernelEnv, checked_options
from shoal.arrays import Rows, words
from shoal.engines.base import PHASES, Command, EngineConfig, Extra, Request, row_layout, sharers
from shoal.engines.kernel.actions import ActionIntake
from shoal.engines.kernel.loading import load_kernel, own_function
from shoal.engines.kernel.source import HEADER, MODES, NO_LIMIT, columns
from shoal.engines.kernel.threads import SharedRun
from shoal.engines.lane import answer, close_env
from shoal.engines.starting import common_spec, construction_error
from shoal.faults import Fault, fault_from
from shoal.seeding import WORDS, set_words, words_of
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.engines.kernel.machine_code import Call, Function
    from shoal.kernel import KernelEnv
    from shoal.spec import EnvSpec

_NEVER_SPLIT = 256  # rows; a batch this small is done before another thread has noticed it
_MAX_SEED = 2**64
_START, _STOP, _SLOT = 4, 5, 6  # words of a call of a loop


def _entropy(count: int) -> np.ndarray[Any, Any]:
    """Generators that nobody has seeded: any state will do, and any odd increment."""
    words = np.zeros((count, WORDS), np.uint64)
    words[:, :4] = np.random.SeedSequence().generate_state(count * 4, np.uint64).reshape(count, 4)
    words[:, 3] |= np.uint64(1)
    return words


class KernelEngine:
    """Runs compiled envs; a command is carried out when it is submitted, so its result is there at once."""

    name = "kernel"
    recycled = 0
    gone = ()
    finals_are_columns = True
    check_requests = ends = None

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.extras: dict[int, Extra] = {}
        self.faults: dict[int, Fault] = {}
        self.collected: list[int] = []
        self.num_workers = sharers(config)
        self.take: ActionIntake | None = None
        self._finished: list[int] = []
        self._is_small = config.num_envs <= _NEVER_SPLIT
        self._all_N = np.arange(config.num_envs, dtype=np.int32)
        self._all_ids = list(range(config.num_envs))
        self._views: dict[int, PlainKernelEnv] = {}
        self._threads = SharedRun(self, self.num_workers, config.affinity)

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Compile the kind, or load it from the cache, and lay out memory for all envs."""
        kinds = self._kinds()
        self.kind = kinds[0]
        self.spec = self._common_spec(kinds)
        self._kernel = load_kernel(self.kind, self.spec)
        self._seed_rows = own_function("seed_rows")
        layout = row_layout(self.config, self.spec)
        self.rows = Rows(layout, layout.private())
        count = self.config.num_envs
        self._records = self.kind.records(count)
        for i, kind in kinds.items():
            if i:
                self._records[i : i + 1] = kind.records(1)
        self._words = _entropy(count)
        self._over = np.zeros(count, np.bool_)
        self._steps = np.zeros(count, np.int64)
        self._progress = np.zeros(self.num_workers, np.int64)
        self._ended = np.zeros(self.num_workers, np.int64)
        self._odd = np.zeros(1, np.int64)
        self._odd_word = words(self._odd)
        # The last seed of each env, for messages; -1 for none, or for one that is too large to be remembered.
        self._seed_of = np.full(count, -1, np.int64)
        self._tables = [self._table(block) for block in range(layout.blocks)]
        self._step_all = [self._call_for(self._kernel.step_rows, table, self._all_N) for table in self._tables]
        self._some_N = np.zeros(min(count, _NEVER_SPLIT), np.int32)
        self._step_some = [self._call_for(self._kernel.step_rows, table, self._some_N) for table in self._tables]
        action, column = self.spec.action, self.rows.action[0]
        if action.is_single and column is not None and column.size:
            self.take = ActionIntake(action.leaves[0], column, bounded=self.config.bounded_actions)

    def _kinds(self) -> dict[int, KernelEnv]:
        """The kind of each env; envs that share a factory share the entry of the first of them."""
        kinds: dict[int, KernelEnv] = {}
        first_of: dict[int, int] = {}
        faults = []
        for i, factory in enumerate(self.config.factories):
            if id(factory) in first_of:
                continue
            first_of[id(factory)] = i
            try:
                kind = factory()
                kind.check()
                kinds[i] = kind
            except Exception as error:
                faults.append(fault_from(error, env_id=i, phase="construct"))
        if faults:
            raise construction_error(faults)
        self._kind_of = [kinds[first_of[id(factory)]] for factory in self.config.factories]
        return {i: kind for i, kind in enumerate(self._kind_of) if kind is not self._kind_of[0] or i == 0}

    def _common_spec(self, kinds: dict[int, KernelEnv]) -> EnvSpec:
        reference = kinds[0]
        for i, kind in kinds.items():
            if type(kind) is not type(reference) or kind.record_dtype() != reference.record_dtype():
                error = TypeError(f"a kernel pool runs one kind of env, got {kind!r} beside {reference!r}")
                raise construction_error([fault_from(error, env_id=i, phase="construct")])
        specs = {i: describe(PlainKernelEnv(kind), self.config.name) for i, kind in kinds.items()}
        spec = common_spec(specs, lambda env_id: None)
        return replace(spec, info=reference.info_fields(), registered=self.config.registered)

    def _table(self, block: int) -> np.ndarray[Any, Any]:
        rows = self.rows
        arrays: dict[str, Any] = {
            **self._state(block),
            "progress": self._progress,
            "ends": self._ended,
            "odd": self._odd,
            **{f"final{j}": column for j, column in enumerate(rows.final)},
            **{f"action{j}": column for j, column in enumerate(rows.action)},
            **{f"final_info_{name}": column for name, column in rows.final_info.items()},
        }
        # Columns for final rows exist only under same_step, and the loop touches them under no other rule.
        addresses = [arrays[c.name].ctypes.data if c.name in arrays else 0 for c in columns(self.spec)]
        limit = self.config.max_episode_steps
        limit = NO_LIMIT if limit is None else limit
        head = [self.config.num_envs, MODES[self.config.autoreset], limit, int(self.config.finite_rewards)]
        assert len(head) == HEADER  # noqa: S101
        return np.array([*head, *addresses], np.uint64)

    def has_odd_rows(self, block: int) -> bool:
        """Whether a row has held NaN or a non-finite reward since the last time this was asked."""
        if not self._odd_word[0]:
            return False
        if not self._finished:  # else the odd row may be one that nobody has collected yet
            self._odd_word[0] = 0
        return True

    @property
    def episodes(self) -> int:
        """Episodes that have ended."""
        return int(self._ended.sum())

    # ------------------------------------------------------------------ commands

    def step_now(self, block: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Step every env."""
        if meanwhile is not None:
            meanwhile()
        if self._is_small:
            if self._step_all[block].run():  # the hottest line of the engine
                self._go_on(self._step_all[block], self._all_N, Command.STEP)
        else:
            self._threads.run(self._tables[block], self._all_N)
        self.collected = self._all_ids

    def submit(
        self, ids: Sequence[int], command: Command, requests: dict[int, Request] | None = None, block: int = 0
    ) -> None:
        """Carry out the commands."""
        self._threads.settle()
        requests = requests or {}
        for i, wish in requests.items():
            if wish.incarnation is not None:
                self._records[i : i + 1] = self._kind_of[i].records(1)
        if command is Command.CALL:
            for i in ids:
                self._call(i, requests[i])
        elif command is Command.RESET:
            self._reset(ids, requests, block)
        elif len(ids) <= _NEVER_SPLIT:
            self._some_N[: len(ids)] = ids
            call = self._step_some[block]
            call.block[_STOP] = len(ids)
            self._run(call, self._some_N, Command.STEP)
        else:
            self._threads.run(self._tables[block], self._as_ids(ids))
        self._finished.extend(ids)

    def collect(self, at_least: int, timeout_s: float | None) -> list[int]:
        """What has been submitted, which is finished by now."""
        self.collected, self._finished = self._finished, []
        return self.collected

    def _as_ids(self, ids: Sequence[int]) -> np.ndarray[Any, Any]:
        return self._all_N if len(ids) == len(self._all_N) and ids[0] == 0 else np.array(ids, np.int32)

    def run_slice(
        self, table: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], start: int, stop: int, slot: int
    ) -> None:
        """Step ``ids[start:stop]``; an env that raises gets a fault, and the loop continues after it."""
        self._run(self._call_for(self._kernel.step_rows, table, ids, start, stop, slot), ids, Command.STEP)

    def keep_fault(self, error: Exception, ids: np.ndarray[Any, Any], slot: int) -> int:
        """Keep the fault of the env at which a slice of a step has stopped; returns where to continue."""
        return self._note_fault(error, ids, Command.STEP, slot)

    def serving(self, bell: np.ndarray[Any, Any], slot: int, looks: int) -> Call:
        """The compiled call in which a helper steps slices."""
        return self._kernel.serving().bind(bell.ctypes.data, slot, looks)

    def _call_for(
        self,
        loop: Function,
        table: np.ndarray[Any, Any],
        ids: np.ndarray[Any, Any],
        start: int = 0,
        stop: int | None = None,
        slot: int = 0,
    ) -> Call:
        return loop.bind(table.ctypes.data, ids.ctypes.data, start, len(ids) if stop is None else stop, slot)

    def _run(self, call: Call, ids: np.ndarray[Any, Any], command: Command) -> None:
        if call.run():
            self._go_on(call, ids, command)

    def _go_on(self, call: Call, ids: np.ndarray[Any, Any], command: Command) -> None:
        """Keep the fault of the env at which a loop has stopped, continue after it, and so on until the end."""
        start, slot = call.block[_START], call.block[_SLOT]
        has_stopped = 1
        try:
            while has_stopped:
                call.block[_START] = self._note_fault(call.error(), ids, command, slot)
                has_stopped = call.run()
        finally:  # later steps use the same block, and an interrupt must not make them begin halfway
            call.block[_START] = start

    def _note_fault(self, error: BaseException, ids: np.ndarray[Any, Any], command: Command, slot: int) -> int:
        self._odd_word[0] = 1  # to be safe: the loop says what it has seen only at its end
        place = int(self._progress[slot])
        env_id = int(ids[place])
        self.faults[env_id] = self._fault(error, env_id, command)
        return place + 1

    def _fault(self, error: BaseException, env_id: int, command: Command) -> Fault:
        # What fails after the end of an episode is the reset of the next, which has no steps yet.
        step = 0 if self._over[env_id] else int(self._steps[env_id])
        seed = int(self._seed_of[env_id])
        return fault_from(
            error, env_id=env_id, phase=PHASES[command], episode_step=step, seed=None if seed < 0 else seed
        )

    def _reset(self, ids: Sequence[int], requests: dict[int, Request], block: int) -> None:
        seeds = {i: request.seed for i in ids if (request := requests.get(i)) and request.seed is not None}
        self._seed(seeds)
        changed: list[tuple[int, str]] = []
        try:
            self._apply_options(requests, changed)
            good = [i for i in ids if i not in self.faults] if self.faults else ids
            if good:
                chosen = self._as_ids(good)
                self._run(self._call_for(self._kernel.reset_rows, self._tables[block], chosen), chosen, Command.RESET)
        finally:
            for i, name in changed:
                self._records[name][i] = self.kind.reset_options[name]

    def _seed(self, seeds: dict[int, int]) -> None:
        self._seed_of[list(seeds)] = [seed if seed < 2**63 else -1 for seed in seeds.values()]
        small = {i: seed for i, seed in seeds.items() if seed < _MAX_SEED}
        if small:
            words = np.empty((len(small) + 1, WORDS), np.uint64)  # and a scratch row
            numbers = np.fromiter(small.values(), np.uint64, len(small))
            self._seed_rows(numbers.ctypes.data, words.ctypes.data, len(small))
            self._words[list(small)] = words[:-1]
        for i in seeds.keys() - small.keys():
            self._words[i] = words_of(np.random.default_rng(seeds[i]))

    def _apply_options(self, requests: dict[int, Request], changed: list[tuple[int, str]]) -> None:
        """Set the options of this reset, noting each in ``changed`` beforehand."""
        for i, request in requests.items():
            try:
                for name, value in checked_options(self.kind, request.options).items():
                    changed.append((i, name))
                    self._records[name][i] = value
            except (TypeError, ValueError) as error:
                self.faults[i] = self._fault(error, i, Command.RESET)

    # ------------------------------------------------------------------ one env

    def _call(self, env_id: int, request: Request) -> None:
        try:
            if request.call is None:
                raise ValueError("a call needs something to call")
            view = self._view(env_id)
            generator = view.np_random
            value = answer(view, request.call)
            if view.np_random is not generator:  # the call gave the env another one
                self._words[env_id] = words_of(view.np_random)
                self._seed_of[env_id] = -1
            self.extras[env_id] = Extra(value=value, is_answer=True)
        except Exception as error:
            self.faults[env_id] = fault_from(error, env_id=env_id, phase="call")

    def _view(self, env_id: int) -> PlainKernelEnv:
        """The env as an object, with a copy of its generator: drawing from that does not disturb the env."""
        if env_id not in self._views:
            self._views[env_id] = PlainKernelEnv(self._kind_of[env_id], self._records[env_id : env_id + 1])
        view = self._views[env_id]
        generator = np.random.default_rng()
        set_words(generator, self._words[env_id])
        view.np_random = generator
        view._np_random_seed = int(self._seed_of[env_id])
        return view

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, ids: list[int], block: int) -> dict[str, np.ndarray[Any, Any]]:
        """The whole state of these envs, as arrays of its own."""
        self._threads.settle()
        return {name: array[ids] for name, array in self._state(block).items()}

    def restore(self, ids: list[int], block: int, state: dict[str, np.ndarray[Any, Any]]) -> None:
        """Put these envs into a state that others, or they themselves, were in."""
        self._threads.settle()
        for name, array in self._state(block).items():
            array[ids] = state[name]
        # Whether a reset is due depends on this pool's rule, not on that of the pool that the snapshot is from.
        ended = (state["terminated"] | state["truncated"]) & ~state["first"]
        self._over[ids] = ended & (self.config.autoreset is Autoreset.NEXT_STEP)

    def _state(self, block: int) -> dict[str, np.ndarray[Any, Any]]:
        """The whole state of all envs, under the names that the loop has for it."""
        return {
            "records": self._records,
            "words": self._words,
            "over": self._over,
            "steps": self._steps,
            "seed": self._seed_of,
            **self.rows.of_block(block),
        }

    # ------------------------------------------------------------------ the end

    def describe(self) -> str:
        """``kernel``."""
        return self.name

    def worker_rss_bytes(self) -> tuple[int, ...]:
        """Empty: the envs live in this process."""
        return ()

    def close(self) -> None:
        """End the threads, and close whatever has drawn pictures."""
        self._threads.close()
        for env_id, view in self._views.items():
            close_env(env_id, view)
        self._views.clear()

    def release(self) -> None:
        """Let go of the rows."""
        self.__dict__.pop("rows", None)
        self._tables = []
        self._step_all, self._step_some = [], []  # they hold the addresses of the rows
