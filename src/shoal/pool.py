"""The pool: N envs as one, whatever engine runs them and whatever face speaks to it.

A call goes through four stages, and each has one place: actions are checked as a whole before anything moves
(``spec``), commands are kept in order (``dispatch``, ``traffic``), envs run (``engines``), and rows are copied out
(``receiving``, ``reading``).
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.arguments import check_count, check_patience
from shoal.asking import Asking
from shoal.dispatch import Dispatch
from shoal.errors import NothingInFlight, ShippingError, StateError
from shoal.gate import Gate
from shoal.readiness import Ids, Wishes, check_one_each
from shoal.receiving import enough_of
from shoal.seeding import Seed, seeds_for
from shoal.stats import PoolStats

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import numpy.typing as npt

    from shoal.batch import Batch
    from shoal.black_box import FaultFiles
    from shoal.engines.base import Engine
    from shoal.recovery import Restart
    from shoal.slot import Autoreset
    from shoal.snapshot import Snapshot
    from shoal.spec import EnvSpec


class Pool:
    """Many envs behind ``reset``, ``step``, ``send`` and ``recv``.

    With ``batch_size == num_envs`` the pool is synchronous: ``recv`` returns the rows of one ``send``, in the order
    of its ids. With a smaller ``batch_size`` it is asynchronous: ``recv`` returns the first ``batch_size`` rows that
    are ready, and ``env_id`` says whose they are.

    One thread at a time may use a pool; a second one gets ``BusyPool`` instead of a corrupted batch. The exception: one
    thread may send while another receives.

    Args:
        engine: A started engine.
        autoreset: The boundary rule the engine's envs run under.
        batch_size: Rows per ``recv``.
        seed: Seed for the first reset of each env, unless that reset is given its own.
        copy: Whether observations are copies. If False, a synchronous pool returns views, which stay valid until
            the pool has been called ``blocks - 1`` more times.
        engine_reason: Why this engine was chosen, for ``stats``.
        bounded_actions: Whether continuous actions outside their space are refused.
        implicit_reset: Whether the first step of an env that was never reset resets it, ignoring the action.
        on_fault: What becomes of envs that fail; see ``shoal.recovery``.
        on_nan: What becomes of rows with NaN: ``"raise"``, ``"truncate"`` or ``"pass"``; None does not check.
        fault_files: Keeps the last commands of each env, and writes them to disk at a fault.

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
        bounded_actions: bool = True,
        implicit_reset: bool = False,
        on_fault: str | Restart = "raise",
        on_nan: str | None = None,
        fault_files: FaultFiles | None = None,
    ) -> None:
        self.engine = engine
        self._files = fault_files
        self.spec: EnvSpec = engine.spec
        self.autoreset = autoreset
        self.num_envs = engine.rows.layout.num_envs
        self.batch_size = batch_size or self.num_envs
        self.is_async = self.batch_size < self.num_envs
        self._engine_reason = engine_reason
        self._dispatch = Dispatch(
            engine,
            autoreset,
            seeds_for(seed, self.num_envs),
            self.is_async,
            copy=copy,
            bounded_actions=bounded_actions,
            implicit_reset=implicit_reset,
            on_fault=on_fault,
            on_nan=on_nan,
            fault_files=fault_files,
        )
        self._receiver = self._dispatch.receiver
        self._asking = Asking(self._dispatch)
        self._gate = Gate(f"the pool of {self.num_envs} {self.spec.id}")
        self._born = monotonic()

    def reset(self, seed: Seed = None, options: Wishes = None, env_id: Ids = None) -> Batch:
        """Reset all envs, or those in ``env_id``, and return their first rows in the order of the ids.

        Whatever was under way for those envs is waited for and dropped. ``seed`` may be one int (env ``i`` gets
        ``seed + i``) or a list with one entry per env that is reset; ``options`` one dict for all, or such a list.
        """
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            ids = self._dispatch.begin_reset(seed, options, env_id)
            return self._receiver.receive(ids, len(ids))

    def step(self, action: Any, env_id: Ids = None) -> Batch:
        """Send one action per env and wait for the results of this very send.

        Raises:
            ActionError: If any action is invalid; no env has moved then.
            StateError: If rows of an earlier send are still to be received.
        """
        dispatch = self._dispatch
        with self._gate.knock(), self._gate:
            if not dispatch.traffic.is_empty or self._receiver.given is not None:
                self._receiver.settle()
                if not dispatch.traffic.is_empty:
                    raise StateError("rows of an earlier call are under way: recv() returns them, reset() drops them")
            if env_id is None and dispatch.moves_as_one:
                return dispatch.step_all(action)
            ids = dispatch.begin_step(action, env_id)
            return self._receiver.receive(ids, len(ids))

    def restart(self, env_id: Ids = None, seed: Seed = None) -> Batch:
        """Build all envs, or those in ``env_id``, anew, and return their first rows in the order of the ids.

        An env comes back from whatever state it is in: hung, dead with its worker, or dropped. It gets a new seed
        stream, unless ``seed`` gives it one, or it has given no row yet and the pool's own seed is still to be used.
        ``on_fault="restart"`` does this automatically; here it is done on demand, and counts against no budget.
        """
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            ids = self._dispatch.restart(env_id, seed)
            return self._receiver.receive(ids, len(ids))

    def renew(self, env_id: Ids = None) -> None:
        """Have all envs, or those in ``env_id``, built anew with their next reset: the first half of ``restart``."""
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            self._dispatch.renew(env_id)

    def async_reset(self, seed: Seed = None, options: Wishes = None, env_id: Ids = None) -> None:
        """Start resetting all envs, or those in ``env_id``; ``recv`` returns their rows."""
        with self._gate.sending.knock(), self._gate.sending:
            self._receiver.settle()
            ids = self._dispatch.begin_reset(seed, options, env_id)
            self._dispatch.traffic.groups.append(ids)
            self._gate.note_send()

    def send(self, action: Any, env_id: Ids = None) -> None:
        """Start one step per env. Several sends may be under way; each env takes its own in order."""
        with self._gate.sending.knock(), self._gate.sending:
            self._receiver.settle()
            ids = self._dispatch.begin_send(action, env_id)
            self._dispatch.traffic.groups.append(ids)
            self._gate.note_send()

    def recv(self, timeout: float | None = None, min_batch: int | None = None, max_wait: float | None = None) -> Batch:
        """Wait for rows and return them.

        If less than a batch is under way, an asynchronous pool returns what is. But the next ``send`` of another thread
        that did the last one is waited for; and if nothing is under way, some seconds for that of any other thread.

        Args:
            timeout: Seconds until ``RecvTimeout``; nothing is lost then. None waits as long as the envs' own
                deadlines allow.
            min_batch: Be content with this many rows instead of a full batch ...
            max_wait: ... once this many seconds have passed (at once, if only ``min_batch`` is given).

        Raises:
            NothingInFlight: If nothing was sent whose result could arrive.
            FaultError: If an env failed. The other rows stay, and the next ``recv`` returns them.
            ArgumentError: If one of the arguments is neither None nor a valid number.
        """
        if timeout is not None or min_batch is not None or max_wait is not None:
            check_patience(timeout=timeout, max_wait=max_wait)
            check_count("min_batch", min_batch, low=0)
        with self._gate.receiving.knock(), self._gate.receiving:
            self._receiver.settle()
            traffic = self._dispatch.traffic
            is_idle = self.is_async and traffic.is_empty
            if not self._gate.has_sender and not (is_idle and self._gate.finds_sender(timeout)):
                return self._receive(timeout, min_batch, max_wait)
            wanted = enough_of(self.batch_size, min_batch, max_wait)
            patience = monotonic() + (max_wait or 0.0)
            return self._gate.take_turns(
                lambda left: self._receive(left, min_batch, None if max_wait is None else patience - monotonic()),
                lambda: traffic.num_under_way >= wanted if self.is_async else not traffic.is_empty,
                timeout,
            )

    def _receive(self, timeout: float | None, min_batch: int | None, max_wait: float | None) -> Batch:
        if self._dispatch.traffic.is_empty:
            raise NothingInFlight("recv: nothing is under way; call send() or async_reset() first")
        group = self._receiver.next_group()
        full = min(self.batch_size, self._dispatch.traffic.num_under_way) if group is None else len(group)
        return self._receiver.receive(group, full, enough_of(full, min_batch, max_wait), timeout, max_wait)

    def recv_ready(
        self, env_id: Ids = None, *, at_least: int = 1, at_most: int | None = None, timeout: float | None = None
    ) -> Batch:
        """Wait for rows of all envs, or of those in ``env_id``, and return them in order of arrival.

        Unlike ``recv``, it ignores which rows were sent together, and the pool's batch size.

        Args:
            env_id: Envs whose rows are wanted; the rows of others stay.
            at_least: How many rows to wait for.
            at_most: How many rows to return at most; None for all that are ready by then.
            timeout: Seconds until ``RecvTimeout``; nothing is lost then. None waits as long as the envs' own
                deadlines allow.

        Raises:
            NothingInFlight: If fewer than ``at_least`` of these envs are under way.
            FaultError: If an env failed. The other rows stay, and the next call returns them.
        """
        check_count("at_least", at_least, low=0, may_be_none=False)
        check_count("at_most", at_most)
        check_patience(timeout=timeout)
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            return self._receiver.receive_ready(env_id, at_least, at_most, timeout)

    # ------------------------------------------------------------------ talking to single envs

    def call(self, name: str, *args: Any, env_id: Ids = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute) and return the answers in the order of the ids."""
        return self.ask(name, args, kwargs, env_id)

    def ask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], env_id: Ids = None) -> tuple[Any, ...]:
        """``call`` with its arguments in a tuple and a dict, so that none can be mistaken for the pool's own."""
        return self._ask("call", name, args, kwargs, env_id)

    def get_attr(self, name: str, env_id: Ids = None) -> tuple[Any, ...]:
        """Read an attribute of each env."""
        return self._ask("get", name, (), {}, env_id)

    def set_attr(self, name: str, values: Any, env_id: Ids = None) -> None:
        """Set an attribute of each env; a list or tuple has one value per env, anything else is for all."""
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            ids = self._dispatch.check_ids(env_id)
            each = list(values) if isinstance(values, (list, tuple)) else [values] * len(ids)
            check_one_each("set_attr", each, ids)
            self._asking.ask({i: ("set", name, (value,), {}) for i, value in zip(ids, each, strict=True)})

    def fit_actions(self, action: Any, count: int) -> list[npt.NDArray[Any]]:
        """Actions for ``count`` envs as this pool takes them: one array per leaf of the action space.

        Raises:
            ActionError: If it would refuse them.
        """
        return self._dispatch.action.fit_batch(action, count)

    def render(self, env_id: Ids = None) -> tuple[Any, ...]:
        """A frame from each env, or from those in ``env_id``."""
        return self.call("render", env_id=env_id)

    def _ask(
        self, operation: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], env_id: Ids
    ) -> tuple[Any, ...]:
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            ids = self._dispatch.check_ids(env_id)
            return self._asking.ask({i: (operation, name, args, kwargs) for i in ids})

    def snapshot(self, env_id: Ids = None) -> Snapshot:
        """Capture all envs, or those in ``env_id``: state, generator, episode, last row.

        A snapshot can be kept, pickled, and restored any number of times. Compiled and native envs support this, and
        Python envs that have ``snapshot()`` and ``restore(state)``; see ``shoal.keeping``.

        Raises:
            StateError: If one of the envs does not support it, or is under way.
        """
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            return self._asking.snapshot(env_id)

    def restore(self, snapshot: Snapshot, env_id: Ids = None) -> None:
        """Put all envs, or those in ``env_id``, into the states of the snapshot's envs, row by row.

        A snapshot of one env can be restored into any number of envs: they then share a past and, given the same
        actions, a future.
        """
        with self._gate.knock(), self._gate:
            self._receiver.settle()
            self._asking.restore(snapshot, env_id)

    def save_black_box(self, folder: str | os.PathLike[str], env_id: int) -> Path:
        """Write the last commands of an env to a folder that ``shoal replay`` takes; returns the folder.

        Best called while the error is being handled: the env's next reset with a seed starts its story over.

        Raises:
            StateError: If this pool keeps none, because its envs are compiled or its actions are not arrays.
        """
        if self._files is None:
            raise StateError("this pool keeps no black box: its envs are compiled, or its actions are not arrays")
        (checked,) = self._dispatch.check_ids([env_id])
        fault = self._dispatch.ready.faulted.get(checked)
        return self._files.recording(checked, None if fault is None else fault.as_dict()).save(folder)

    def stats(self) -> PoolStats:
        """What the pool has done so far."""
        dispatch, receiver, reader = self._dispatch, self._receiver, self._dispatch.reader
        return PoolStats(
            engine=self.engine.name,
            engine_reason=self._engine_reason,
            num_envs=self.num_envs,
            num_workers=self.engine.num_workers,
            steps=reader.rows_read - receiver.resets,
            resets=receiver.resets,
            episodes=reader.episodes if self.engine.episodes is None else self.engine.episodes + reader.cuts,
            batches=reader.batches,
            faults=dispatch.desk.count,
            restarts=dispatch.recovery.restarts,
            dropped=len(dispatch.recovery.dropped),
            nans=0 if dispatch.desk.nan_watch is None else dispatch.desk.nan_watch.found,
            recycled=self.engine.recycled,
            worker_rss_bytes=self.engine.worker_rss_bytes(),
            waiting_s=receiver.waiting_s,
            handling_s=max(0.0, self._gate.inside_s - receiver.waiting_s),
            age_s=monotonic() - self._born,
        )

    def close(self) -> None:
        """End all envs and workers. Bounded in time, silent, and safe to call twice or from another thread."""
        self._gate.is_closed = True
        self.engine.close()
        # The memory is released too, unless a thread is still inside, about to learn that the pool is closed.
        if self._gate.try_enter():
            self._dispatch.release()
            self.engine.release()
            self._gate.leave()

    @property
    def dropped(self) -> frozenset[int]:
        """Envs that failed and are out, under ``on_fault="drop"``."""
        return frozenset(self._dispatch.recovery.dropped)

    @property
    def faulted(self) -> frozenset[int]:
        """Envs that failed, whose faults were raised, and that now wait for a reset."""
        return frozenset(self._dispatch.ready.faulted)

    @property
    def never_reset(self) -> frozenset[int]:
        """Envs that have begun no episode yet."""
        return frozenset(self._dispatch.ready.fresh_N.nonzero()[0].tolist())

    @property
    def under_way(self) -> list[int]:
        """Envs with a command whose row has not been handed out."""
        return self._dispatch.traffic.busy()

    @property
    def rows_read(self) -> int:
        """Rows handed out so far; whoever keeps the last row can tell from it whether there is a newer one."""
        return self._dispatch.reader.rows_read

    @property
    def is_closed(self) -> bool:
        """Whether the pool has been closed."""
        return self._gate.is_closed

    def latest(self, env_id: Ids = None) -> Batch:
        """The last row of every env, or of those in ``env_id``, whether or not it has just answered."""
        with self._gate.knock(), self._gate:
            ids = None if env_id is None else self._dispatch.check_ids(env_id) if len(env_id) else []
            return self._dispatch.reader.latest(ids)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rows = f", batches of {self.batch_size}" if self.is_async else ""
        state = "closed" if self.is_closed else "open"
        return f"Pool({self.spec.id}, {self.num_envs} envs{rows}, {self.engine.describe()}, {self.autoreset}, {state})"

    def __reduce__(self) -> Any:
        raise ShippingError(f"{self!r}: its envs run here, and cannot be copied or pickled; make another pool there")
