"""The pool: N envs as one, whatever engine runs them and whatever face speaks to it.

A call goes through four stages, and each has one place: actions are checked as a whole before anything moves
(``spec``), commands are kept in order (``traffic``), envs run (``engines``), and rows are copied out (``reading``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engines.base import Command, Engine, Request
from shoal.errors import (
    ActionError,
    BusyPool,
    ClosedPool,
    FaultError,
    NothingInFlight,
    NotReset,
    RecvTimeout,
    ShoalError,
    StateError,
)
from shoal.reading import RowReader
from shoal.seeding import Seed, seeds_for
from shoal.slot import Autoreset
from shoal.stats import PoolStats
from shoal.traffic import Held, Traffic

if TYPE_CHECKING:
    from types import TracebackType

    from shoal.batch import Batch
    from shoal.faults import Fault
    from shoal.spec import EnvSpec

Ids = Sequence[int] | np.ndarray[Any, Any] | None
Options = dict[str, Any] | None


class Pool:
    """Many envs behind ``reset``, ``step``, ``send`` and ``recv``.

    With ``batch_size == num_envs`` the pool is synchronous: ``recv`` returns the rows of one ``send``, in the order
    of its ids. With a smaller ``batch_size`` it is asynchronous: ``recv`` returns the first ``batch_size`` rows that
    are ready, and ``env_id`` says whose they are.

    One thread at a time may use a pool; a second one gets ``BusyPool`` instead of a corrupted batch.

    Args:
        engine: A started engine.
        autoreset: The boundary rule the engine's envs run under.
        batch_size: Rows per ``recv``.
        seed: Seed for the first reset of each env that is given none.
        copy: Whether observations are copies. If False, a synchronous pool returns views, which stay valid until
            the pool has been called ``blocks - 1`` more times.
        engine_reason: Why this engine was chosen, for ``stats``.

    Example:
        >>> import shoal
        >>> envs = shoal.make_vec("CartPole-v1", num_envs=4, engine="serial")
        >>> envs.pool.reset(seed=1).env_id
        array([0, 1, 2, 3], dtype=int32)
        >>> envs.close()
    """

    def __init__(
        self,
        engine: Engine,
        *,
        autoreset: Autoreset,
        batch_size: int | None = None,
        seed: Seed = None,
        copy: bool = True,
        engine_reason: str = "",
    ) -> None:
        self.engine = engine
        self.spec: EnvSpec = engine.spec
        self.autoreset = autoreset
        self.num_envs = engine.rows.layout.num_envs
        self.batch_size = batch_size or self.num_envs
        self.is_async = self.batch_size < self.num_envs
        self.is_closed = False
        self._reader = RowReader(engine, copy=copy)
        self._seeds = seeds_for(seed, self.num_envs)
        self._engine_reason = engine_reason
        self._all_ids = list(range(self.num_envs))
        self._moves_as_one = not self.spec.action.has_objects
        self._traffic = Traffic(self.num_envs)
        # An env must be reset before its first step and, without autoreset, after each episode.
        self._fresh_N = np.ones(self.num_envs, np.bool_)
        self._over_N = np.zeros(self.num_envs, np.bool_)
        self._some_unready = True
        self._faulted: dict[int, Fault] = {}
        self._gate = _Gate(self)
        self._born = monotonic()
        self._resetting: set[int] = set()
        self._resets = self._faults = 0
        self._waiting_s = 0.0

    # ------------------------------------------------------------------ the synchronous pair

    def reset(self, seed: Seed = None, options: Options = None, env_id: Ids = None) -> Batch:
        """Reset all envs, or those in ``env_id``, and return their first rows in the order of the ids.

        Whatever was under way for those envs is waited for and dropped. ``seed`` may be one int (env ``i`` gets
        ``seed + i``) or a list with one entry per env that is reset.
        """
        with self._gate:
            ids = self._begin_reset(seed, options, env_id)
            return self._receive(ids, len(ids))

    def step(self, action: Any, env_id: Ids = None) -> Batch:
        """Send one action per env and wait for the result of this very send.

        Raises:
            ActionError: If any action is unfit; no env has moved then.
            StateError: If rows of an earlier send are still to be received.
        """
        with self._gate:
            if not self._traffic.is_empty:
                raise StateError("rows of an earlier call are still under way: recv() returns them, reset() drops them")
            if env_id is None and self._moves_as_one:
                return self._step_all(action)
            ids = self._begin_step(action, env_id)
            return self._receive(ids, len(ids))

    # ------------------------------------------------------------------ the asynchronous pair

    def async_reset(self, seed: Seed = None, options: Options = None, env_id: Ids = None) -> None:
        """Start resetting all envs, or those in ``env_id``; ``recv`` returns their rows."""
        with self._gate:
            self._traffic.groups.append(self._begin_reset(seed, options, env_id))

    def send(self, action: Any, env_id: Ids = None) -> None:
        """Start one step per env. Several sends may be under way; each env takes its own in order."""
        with self._gate:
            self._traffic.groups.append(self._begin_step(action, env_id))

    def recv(self, timeout: float | None = None, min_batch: int | None = None, max_wait: float | None = None) -> Batch:
        """Wait for rows and return them.

        Args:
            timeout: Seconds until ``RecvTimeout``; nothing is lost then. None waits as long as the envs' own
                deadlines allow.
            min_batch: Be content with this many rows instead of a full batch ...
            max_wait: ... once this many seconds have passed (at once, if only ``min_batch`` is given).

        Raises:
            NothingInFlight: If nothing was sent whose result could come.
            FaultError: If an env failed. The other rows stay, and the next ``recv`` returns them.
        """
        with self._gate:
            if self._traffic.is_empty:
                raise NothingInFlight("recv: nothing is under way; call send() or async_reset() first")
            group = self._next_group()
            full = min(self.batch_size, self._traffic.num_under_way) if group is None else len(group)
            least = full if min_batch is None and max_wait is None else max(1, min(full, min_batch or 1))
            return self._receive(group, full, least, timeout, max_wait)

    # ------------------------------------------------------------------ talking to single envs

    def call(self, name: str, *args: Any, env_id: Ids = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute) and return the answers in the order of the ids."""
        return self.ask(name, args, kwargs, env_id)

    def ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], env_id: Ids = None) -> tuple[Any, ...]:
        """``call`` with the arguments in a tuple and a dict, so that none of them can be mistaken for the pool's."""
        return self._ask("call", name, [(args, kwargs)], env_id)

    def get_attr(self, name: str, env_id: Ids = None) -> tuple[Any, ...]:
        """Read an attribute of each env."""
        return self._ask("get", name, [((), {})], env_id)

    def set_attr(self, name: str, values: Any, env_id: Ids = None) -> None:
        """Set an attribute of each env; a list or tuple has one value per env, anything else is for all."""
        ids = self._check_ids(env_id)
        each = list(values) if isinstance(values, (list, tuple)) else [values] * len(ids)
        if len(each) != len(ids):
            raise ActionError(f"set_attr: expected {len(ids)} values, one per env, got {len(each)}")
        self._ask("set", name, [((value,), {}) for value in each], env_id)

    def render(self, env_id: Ids = None) -> tuple[Any, ...]:
        """A frame from each env, or from those in ``env_id``."""
        return self.call("render", env_id=env_id)

    def stats(self) -> PoolStats:
        """What the pool has done so far."""
        reader = self._reader
        return PoolStats(
            engine=self.engine.name,
            engine_reason=self._engine_reason,
            num_envs=self.num_envs,
            num_workers=self.engine.num_workers,
            steps=reader.rows_read - self._resets,
            resets=self._resets,
            episodes=reader.episodes,
            batches=reader.batches,
            faults=self._faults,
            waiting_s=self._waiting_s,
            handling_s=max(0.0, self._gate.inside_s - self._waiting_s),
            age_s=monotonic() - self._born,
        )

    def close(self) -> None:
        """End all envs and workers. Bounded in time, silent, and safe to call twice or from another thread."""
        self.is_closed = True
        self.engine.close()
        # The memory goes with the pool, unless a thread is still inside and about to learn that it is closed.
        if self._gate.try_enter():
            self._reader.release()
            self.engine.release()
            self._gate.leave()

    def latest(self) -> Batch:
        """The last row of every env, whether or not it has just answered."""
        return self._reader.latest()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rows = f", batches of {self.batch_size}" if self.is_async else ""
        state = "closed" if self.is_closed else "open"
        return f"Pool({self.spec.id}, {self.num_envs} envs{rows}, {self.engine.describe()}, {self.autoreset}, {state})"

    # ------------------------------------------------------------------ sending

    def _step_all(self, action: Any) -> Batch:
        """Step every env of an idle pool: what most pools do all day, without the bookkeeping of the general case."""
        self._launch_all(self.spec.action.fit_batch(action, self.num_envs))
        try:
            self._collect(self.num_envs, None)
            if self.engine.faults:
                self._raise_faults(self._all_ids)
        except BaseException:
            self._keep(self._all_ids, ())
            raise
        self._traffic.hand_out(self._all_ids)
        batch = self._reader.read_all()
        if self.autoreset is Autoreset.DISABLED:
            self._note_ends(slice(None), batch)
        return batch

    def _launch_all(self, leaves: list[np.ndarray[Any, Any]]) -> None:
        if self._some_unready or self._faulted:
            self._refuse_unready(self._all_ids)
        self._reader.next_block()
        for column, leaf in zip(self.engine.rows.action, leaves, strict=True):
            column[:] = leaf  # type: ignore[index]
        self._traffic.take_off(self._all_ids)
        self.engine.submit(self._all_ids, Command.STEP, None, self._reader.block)

    def _begin_step(self, action: Any, env_id: Ids) -> list[int]:
        ids = self._all_ids if env_id is None else self._check_ids(env_id)
        leaves = self.spec.action.fit_batch(action, len(ids))
        if ids is self._all_ids and self._moves_as_one and self._traffic.is_empty:
            self._launch_all(leaves)
        else:
            self._refuse_unready(ids)
            self._launch(ids, [Held(Command.STEP, [leaf[row] for leaf in leaves]) for row in range(len(ids))])
        return ids

    def _begin_reset(self, seed: Seed, options: Options, env_id: Ids) -> list[int]:
        ids = self._all_ids if env_id is None else self._check_ids(env_id)
        if seed is None:
            # The pool's own seed serves the first reset of each env, also when that comes in parts.
            seeds = [self._seeds[i] if self._fresh_N[i] else None for i in ids]
        elif np.ndim(seed) == 0:  # type: ignore[arg-type]
            everyone = seeds_for(seed, self.num_envs)
            seeds = [everyone[i] for i in ids]
        else:
            seeds = seeds_for(seed, len(ids))
        self._abandon(ids)
        requests = [None if s is None and options is None else Request(seed=s, options=options) for s in seeds]
        self._launch(ids, [Held(Command.RESET, (), request) for request in requests])
        self._fresh_N[ids] = False
        self._over_N[ids] = False
        self._some_unready = bool(self._fresh_N.any() or self._over_N.any())
        self._resetting.update(ids)
        return ids

    def _launch(self, ids: Sequence[int], commands: Sequence[Held]) -> None:
        """Submit what can go now, hold what has to wait for its env."""
        if not self._traffic.num_flying:
            self._reader.next_block(keep_rows=True)
        now: dict[Command, list[int]] = {}
        requests: dict[int, Request] = {}
        for i, held in zip(ids, commands, strict=True):
            if self._traffic.is_busy(i):
                self._traffic.hold(i, held)
                continue
            objects = self._write_action(i, held)
            if held.request is not None:
                requests[i] = held.request
            elif objects:
                requests[i] = Request(action=objects)
            now.setdefault(held.command, []).append(i)
        for command, part in now.items():
            self._submit(part, command, {i: requests[i] for i in part if i in requests} or None)

    def _write_action(self, env_id: int, held: Held) -> tuple[Any, ...]:
        objects = []
        for column, value in zip(self.engine.rows.action, held.leaves, strict=False):
            if column is None:
                objects.append(value)
            else:
                column[env_id] = value
        return tuple(objects)

    def _submit(self, ids: list[int], command: Command, requests: dict[int, Request] | None) -> None:
        self._traffic.take_off(ids)
        try:
            self.engine.submit(ids, command, requests, self._reader.block)
        except ShoalError:
            self._traffic.cancel(ids)
            raise

    def _check_ids(self, env_id: Ids) -> list[int]:
        if env_id is None:
            return self._all_ids
        try:
            array = np.asarray(env_id)
        except ValueError:
            raise ActionError(f"env_id: expected a list of ints, got {env_id!r}") from None
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ActionError(f"env_id: expected a list of ints, got {env_id!r}")
        ids: list[int] = array.tolist()
        if not ids:
            raise ActionError("env_id: expected at least one id")
        if min(ids) < 0 or max(ids) >= self.num_envs:
            bad = [i for i in ids if not 0 <= i < self.num_envs]
            raise ActionError(f"env_id: {bad} out of range, the pool has envs 0 to {self.num_envs - 1}")
        if len(set(ids)) != len(ids):
            raise ActionError(f"env_id: {sorted(i for i in set(ids) if ids.count(i) > 1)} given more than once")
        return ids

    def _refuse_unready(self, ids: Sequence[int]) -> None:
        if not (self._some_unready or self._faulted):
            return
        if fresh := [i for i in ids if self._fresh_N[i]]:
            raise NotReset(f"envs {fresh} were never reset: call reset() first")
        if over := [i for i in ids if self._over_N[i]]:
            raise NotReset(f"envs {over} have finished their episodes and autoreset is disabled: reset them first")
        if failed := [i for i in ids if i in self._faulted]:
            raise StateError(f"envs {failed} failed earlier ({self._faulted[failed[0]].summary}): reset them first")

    def _abandon(self, ids: Sequence[int]) -> None:
        """Wait for what these envs are doing and drop it."""
        if not self._traffic.is_empty:
            self._traffic.abandon(ids)
            self._await_void()
        self._resetting.difference_update(ids)
        self._drop_faults(ids)

    def _await_void(self) -> None:
        """Wait until the engine is done with commands whose results nobody wants."""
        while void := set(self._traffic.void):
            self._collect(1, None)
            self._drop_faults(void - self._traffic.void)

    def _drop_faults(self, ids: Iterable[int]) -> None:
        if self._faulted or self.engine.faults or self.engine.extras:
            for i in ids:
                self._faulted.pop(i, None)
                self.engine.faults.pop(i, None)
                self.engine.extras.pop(i, None)

    # ------------------------------------------------------------------ receiving

    def _next_group(self) -> list[int] | None:
        """What a synchronous pool hands out next; None for an asynchronous pool, which hands out what lands."""
        if self.is_async:
            self._traffic.groups.clear()
            return None
        return self._traffic.groups.popleft()

    def _receive(
        self,
        group: list[int] | None,
        full: int,
        least: int | None = None,
        timeout: float | None = None,
        max_wait: float | None = None,
    ) -> Batch:
        """Wait for rows of ``group`` and hand them out; what is not handed out stays for the next ``recv``."""
        ids: list[int] = []
        try:
            ids = self._await(group, full, full if least is None else least, timeout, max_wait)[:full]
            if self.engine.faults:
                self._raise_faults(ids)
        except BaseException:
            self._keep(group, ())
            raise
        if group is not None:
            if len(ids) == len(group):
                return self._hand_out(group)
            self._keep(group, ids)
        return self._hand_out(ids)

    def _keep(self, group: list[int] | None, handed_out: Sequence[int]) -> None:
        """Put back the part of a group that its reader has not got."""
        if group is not None:
            rest = [i for i in group if i not in handed_out and self._traffic.is_busy(i)]
            if rest:
                self._traffic.groups.appendleft(rest)

    def _await(
        self, group: list[int] | None, full: int, least: int, timeout: float | None, max_wait: float | None
    ) -> list[int]:
        """Ids that have landed: ``full`` of them, or at least ``least`` when patience runs out."""
        start = monotonic()
        end = None if timeout is None else start + timeout
        patience = start + (max_wait or 0.0) if least < full else None
        has_looked = False  # even a caller without patience gets what is ready
        while True:
            landed = self._traffic.landed(group)
            now = monotonic()
            impatient = patience is not None and now >= patience
            if len(landed) >= full or (impatient and len(landed) >= least):
                return landed
            if end is not None and now >= end and has_looked:
                raise RecvTimeout(f"recv: {len(landed)} of {full} rows after {timeout} s; nothing is lost, recv again")
            has_looked = True
            limits = [max(0.0, t - now) for t in (end, None if impatient else patience) if t is not None]
            # A group may share the engine with others, so look again after each row that could be one of its own.
            wanted = 1 if impatient or group is not None else full - len(landed)
            self._collect(max(1, min(wanted, self._traffic.num_flying)), min(limits) if limits else None)

    def _collect(self, at_least: int, timeout_s: float | None) -> None:
        start = perf_counter()
        try:
            self._traffic.land(self.engine.collect(at_least, timeout_s))
        finally:
            self._waiting_s += perf_counter() - start

    def _raise_faults(self, ids: Sequence[int]) -> None:
        """Raise for the envs among ``ids`` that failed; the rows of the others stay to be received."""
        faults = self.engine.faults
        failed = [i for i in ids if i in faults]
        if not failed:
            return
        errors: list[FaultError] = []
        for i in failed:
            self._faulted[i] = fault = faults.pop(i)
            errors.append(fault.to_error())
        self._faults += len(failed)
        self._traffic.forget(failed)
        for other in errors[1:]:
            errors[0].add_note(f"Also: {other}")
        raise errors[0]

    def _hand_out(self, ids: list[int]) -> Batch:
        batch = self._reader.read_all() if ids is self._all_ids else self._reader.read(ids)
        if self.autoreset is Autoreset.DISABLED:
            self._note_ends(ids, batch)
        if self._resetting:
            self._resets += len(self._resetting.intersection(ids))
            self._resetting.difference_update(ids)
        follow_up = self._traffic.hand_out(ids)
        if follow_up:
            self._launch([i for i, _ in follow_up], [held for _, held in follow_up])
        return batch

    def _note_ends(self, ids: list[int] | slice, batch: Batch) -> None:
        """Without autoreset, an env whose episode has ended must be reset before it can step."""
        self._over_N[ids] = over = batch.terminated | batch.truncated
        self._some_unready = self._some_unready or bool(over.any())

    def _ask(
        self, operation: str, name: str, arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], env_id: Ids
    ) -> tuple[Any, ...]:
        with self._gate:
            ids = self._check_ids(env_id)
            busy = [i for i in ids if self._traffic.is_busy(i)]
            if busy:
                raise StateError(f"envs {busy} are under way: recv() their rows before calling them")
            each = list(arguments) * (len(ids) if len(arguments) == 1 else 1)
            requests = {i: Request(call=(operation, name, *parts)) for i, parts in zip(ids, each, strict=True)}
            self._submit(ids, Command.CALL, requests)
            try:
                while len(self._traffic.landed(ids)) < len(ids):
                    self._collect(1, None)
            except BaseException:
                self._traffic.abandon(ids)
                raise
            self._raise_call_faults(ids)
            self._traffic.hand_out(ids)
            return tuple(self.engine.extras.pop(i).value for i in ids)

    def _raise_call_faults(self, ids: Sequence[int]) -> None:
        failed = [i for i in ids if i in self.engine.faults]
        if not failed:
            return
        faults = [self.engine.faults.pop(i) for i in failed]
        self._faults += len(faults)
        for i in ids:
            self.engine.extras.pop(i, None)
        self._traffic.forget(ids)
        raise faults[0].to_error()


class _Gate:
    """Lets one thread in at a time, and adds up the time spent inside."""

    __slots__ = ("_entered", "_lock", "_pool", "inside_s")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._entered = 0.0
        self.inside_s = 0.0

    def try_enter(self) -> bool:
        """Enter if nobody is inside."""
        return self._lock.acquire(blocking=False)

    def leave(self) -> None:
        """Let the next one in."""
        self._lock.release()

    def __enter__(self) -> None:
        if self._pool.is_closed:
            raise ClosedPool(f"{self._pool!r} is closed")
        if not self._lock.acquire(blocking=False):
            raise BusyPool("another thread is inside this pool; give each thread its own pool, or take turns")
        self._entered = perf_counter()
        if self._pool._traffic.void:
            try:
                self._pool._await_void()
            except BaseException:
                self._lock.release()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inside_s += perf_counter() - self._entered
        self._lock.release()
