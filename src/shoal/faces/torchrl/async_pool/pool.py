"""AsyncEnvPool: send to some envs, receive from whichever is ready."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorData, TensorDictBase

from shoal.adapters.tensordict_env import Wish
from shoal.errors import ArgumentError, FaultError, StateError
from shoal.faces.torchrl.async_pool.counting import RecvCounts
from shoal.faces.torchrl.async_pool.exchange import Exchange, exchange_of
from shoal.faces.torchrl.async_pool.flights import (
    INDEX,
    Flight,
    Flights,
    addressed,
    by_number,
    check_limits,
    index_entry,
)
from shoal.faces.torchrl.async_pool.members import members_of
from shoal.faces.torchrl.async_pool.translating import Translation
from shoal.faces.torchrl.batched.group import EnvGroup
from shoal.faces.torchrl.batched.hosts import OnPool, told
from shoal.faces.torchrl.batched.slots import MakeSlot, patience_s
from shoal.faces.torchrl.batched.stacking import put, renewed
from shoal.faces.torchrl.env.keys import path_of
from shoal.faces.torchrl.fast_td import entries_of
from shoal.faces.torchrl.specs import NonTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.adapters.byte_rows import Key
    from shoal.adapters.tensordict_env import Crossing
    from shoal.batch import Batch
    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.pool import Pool

STACKS = ("dense", "maybe_dense", "lazy")
_WISHES = {"step": Wish.STEP, "step_and_maybe_reset": Wish.STEP_AND_MAYBE_RESET}


class AsyncEnvPool(EnvGroup):
    """Envs that each go at their own pace, as one.

    ``reset``, ``step`` and their kin act on all envs and wait for all. ``async_step_send`` and its kin start some of
    them, without waiting, and ``async_step_recv`` returns what is ready. Rows carry the number of their env as
    ``"env_index"``, and come in the order of these numbers.

    Args:
        env_makers: A function that makes an env, an env, or a list of these.
        backend: ``"threading"`` or ``"multiprocessing"``.
        stack: How rows are put together: ``"dense"``, ``"lazy"`` for envs whose data differs, or ``"maybe_dense"``.
        exchange: With worker processes, ``"shm"`` refuses envs that differ, and entries that are in no spec; ``"auto"``
            does the latter where the envs allow it. ``"queue"``, the default, takes any data. All are equally fast.
        worker_affinity: The CPU of each worker process, or a function that returns it for a worker's number.
        envs_per_worker: Envs that share a worker process, each in a thread of its own.
        create_env_kwargs: Keyword arguments for the functions, or a list with one dict per env.
        step_timeout: Seconds that an env may take for a step or a reset; by default what ``BATCHED_PIPE_TIMEOUT`` in
            the environment says, or 10,000.

    Attributes:
        num_envs: How many envs there are.
        min_get: How many rows a receive waits for by default.

    Example:
        >>> from functools import partial
        >>> from shoal.faces.torchrl import AsyncEnvPool, GymEnv
        >>> pool = AsyncEnvPool([partial(GymEnv, "Pendulum-v1"), partial(GymEnv, "CartPole-v1")], stack="lazy")
        >>> td = pool.rand_action(pool.reset())
        >>> pool.async_step_send(td[:1])
        >>> pool.async_step_recv()["env_index"].tolist()
        [0]
        >>> pool.close()
    """

    _engine = ""
    _exchange: Exchange

    def __new__(cls, env_makers: Any = None, *, backend: str = "threading", **options: Any) -> Any:
        """An instance of the backend's own class."""
        from shoal.faces.torchrl.async_pool import CLASSES

        if backend not in CLASSES:
            raise NotImplementedError(f"backend: expected one of {sorted(CLASSES)}, got {backend!r}")
        return super().__new__(CLASSES[backend] if cls is AsyncEnvPool else cls)

    def __init__(
        self,
        env_makers: Any,
        *,
        backend: str | None = None,
        stack: str = "dense",
        exchange: str | None = None,
        worker_affinity: Sequence[Any] | None = None,
        envs_per_worker: int = 1,
        create_env_kwargs: Any = None,
        step_timeout: float | None = None,
    ) -> None:
        if stack not in STACKS:
            raise NotImplementedError(f"stack: expected one of {STACKS}, got {stack!r}")
        if isinstance(envs_per_worker, bool) or not isinstance(envs_per_worker, int) or envs_per_worker < 1:
            raise ArgumentError(f"envs_per_worker: expected an int of at least 1, got {envs_per_worker!r}")
        given = list(env_makers) if isinstance(env_makers, (list, tuple)) else [env_makers]
        members = members_of(given, create_env_kwargs)
        metas = members.metadata(by_kwargs=True)
        resolved = exchange_of(exchange, metas, in_processes=self._engine == "process")
        super().__init__(metas, range(len(given)))
        env_batch = torch.Size(self.batch_size[1:])
        state = self.full_state_spec.clone()
        state[INDEX] = NonTensor(shape=self.batch_size, example_data=0)
        self.state_spec = state
        own = self.__dict__
        own.update(
            num_envs=len(given),
            min_get=1,
            stack=stack,
            exchange=resolved.asked,
            _exchange=resolved,
            envs_per_worker=envs_per_worker,
            env_batch_sizes=[torch.Size(meta.batch_size) for meta in metas],
            _affinity=worker_affinity,
            _patience_s=patience_s() if step_timeout is None else step_timeout,
            _members=members,
            _flights=Flights(),
            _counts=RecvCounts(len(given)),
            _indices=index_entry(range(len(given)), env_batch),
            _host=None,
        )
        own["_host"] = OnPool(self._make_pool, metas, self.device, stack=stack)

    def _make_pool(self, crossings: Sequence[Crossing], has_loose: bool) -> Pool:
        raise NotImplementedError

    def _factories(self, crossings: Sequence[Crossing]) -> list[MakeSlot]:
        members = self._members
        return [
            MakeSlot(maker, kwargs, crossing)
            for maker, kwargs, crossing in zip(members.makers, members.kwargs, crossings, strict=True)
        ]

    def _running(self) -> OnPool:
        host: OnPool | None = self.__dict__["_host"]
        if host is None:
            raise StateError(f"{type(self).__name__} is closed")
        if self._flights:
            raise StateError(f"{len(self._flights)} envs are under way: receive them before all are asked together")
        return host

    def _translated(self, error: FaultError) -> BaseException:
        """What to raise for the failure of an env."""
        return told(error)

    # ------------------------------------------------------------------ all envs together

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._exchange.check(tensordict)
        with self._failures():
            return super()._reset(tensordict, **kwargs).set(INDEX, self._indices)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        with self._failures():
            return super()._step(tensordict)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step all envs; see ``EnvBase.step``."""
        self._exchange.check(tensordict)
        return self._with_index(super().step(tensordict))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step all envs, and reset those whose episode has ended; see ``EnvBase.step_and_maybe_reset``."""
        self._exchange.check(tensordict)
        self._running()
        entries = entries_of(tensordict)
        if entries is not None:
            entries.pop(INDEX, None)  # it is the same for every step, and data without objects is quicker
        with self._failures():
            stepped, root = super().step_and_maybe_reset(tensordict)
        return self._with_index(stepped), self._with_index(root)

    def _with_index(self, td: TensorDictBase) -> TensorDictBase:
        if td.get(INDEX, None) is None:
            put(td, INDEX, self._indices)
        return td

    def _failures(self) -> Translation:
        return Translation(self._translated)

    # ------------------------------------------------------------------ sending

    def async_step_send(self, tensordict: TensorDictBase, env_index: Any = None) -> None:
        """Start a step of some envs, without waiting.

        Args:
            tensordict: Their actions, one row per env.
            env_index: Which envs, if the rows do not say so as ``"env_index"``. For one number the TensorDict has no
                leading dim, and the result waits for ``async_step_recv`` with the same number.
        """
        self._send("step", tensordict, env_index)

    def async_step_and_maybe_reset_send(self, tensordict: TensorDictBase, env_index: Any = None) -> None:
        """Start a step of some envs, and a reset if it ends their episode; see ``async_step_send``."""
        self._send("step_and_maybe_reset", tensordict, env_index)

    def async_reset_send(self, tensordict: TensorDictBase | None = None, env_index: Any = None, **kwargs: Any) -> None:
        """Start a reset of some envs, or of all; see ``async_step_send``."""
        self._send("reset", tensordict, env_index, kwargs)

    def _send(self, call: str, td: TensorDictBase | None, env_index: Any, kwargs: dict[str, Any] | None = None) -> None:
        host: OnPool | None = self.__dict__["_host"]
        if host is None:
            raise StateError(f"{type(self).__name__} is closed")
        self._exchange.check(td)
        env_dims = len(self.batch_size) - 1
        address = addressed(td, env_index, env_dims, self.num_envs, needs_data=call != "reset")
        self._flights.refuse_busy(address.ids)
        if call == "reset":
            rows: list[Any] = [None] * len(address.ids) if address.td is None else list(address.td.unbind(0))
            wishes = host.wishes(rows, [kwargs or {}] * len(address.ids))
            host.pool.async_reset(options=wishes, env_id=address.ids)
        else:
            host.pool.send(host.traffic.pack(address.td, address.ids, _WISHES[call]), address.ids)
        self._flights.take_off(address, call)
        self._counts.note_send(address.ids)

    # ------------------------------------------------------------------ receiving

    def async_step_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> TensorDictBase:
        """Wait for steps, and return those that are ready.

        Args:
            min_get: How many to wait for; by default ``self.min_get``.
            env_index: Wait for this env alone. Its result has no leading dim.
            max_get: How many to return at most.
            timeout: Seconds to wait in all; 0 only checks. None waits for as long as envs may take.

        Returns:
            What was sent, with what followed under ``"next"``, in the order of the envs' numbers.

        Raises:
            TimeoutError: If fewer than ``min_get`` were ready in time. Nothing is lost.
            StateError: If fewer than ``min_get`` are under way.
        """
        batch, flights = self._receive("step", min_get, env_index, max_get, timeout)
        return self._one_or_all(self._followed(batch, flights), env_index)

    def async_step_and_maybe_reset_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Wait for steps; return those that are ready, and the roots of the next steps: see ``async_step_recv``."""
        batch, flights = self._receive("step_and_maybe_reset", min_get, env_index, max_get, timeout)
        stepped = self._followed(batch, flights)
        root = self._plan().advance(stepped)
        places, first = self._host.traffic.unpack_following(batch)
        if first is not None:
            root = renewed(root, first, places)
        root.set(INDEX, stepped.get(INDEX))
        return self._one_or_all(stepped, env_index), self._one_or_all(root, env_index)

    def async_reset_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> TensorDictBase:
        """Wait for resets, and return those that are ready; see ``async_step_recv``."""
        batch, flights = self._receive("reset", min_get, env_index, max_get, timeout)
        fresh = self._host.traffic.unpack(batch, is_first=True)
        if all(flight.source is not None for flight in flights):
            fresh = self._inputs_of(flights).exclude("_reset", *self.reset_keys).update(fresh)
        fresh.set(INDEX, self._index_of(batch))
        return self._one_or_all(fresh, env_index)

    def _receive(
        self, call: str, min_get: int | None, env_index: int | None, max_get: int | None, timeout: float | None
    ) -> tuple[Batch, list[Flight]]:
        host: OnPool | None = self.__dict__["_host"]
        if host is None:
            raise StateError(f"{type(self).__name__} is closed")
        if env_index is None:
            ids = self._flights.waiting(call)
            least = self.min_get if min_get is None else min_get
            check_limits(least, max_get, timeout)
            if len(ids) < least:
                raise StateError(f"async_{call}_recv: {least} results are wanted, and {len(ids)} are under way")
        else:
            ids, least, max_get = [int(env_index)], 1, 1
            if not self._flights.expects(ids[0], call):
                raise StateError(f"async_{call}_recv: env {ids[0]} was sent no such command")
        began = perf_counter()
        try:
            batch = host.pool.recv_ready(ids, at_least=least, at_most=max_get, timeout=timeout)
        except FaultError as error:
            # Other envs may have failed at the same moment: rows that the pool no longer waits for will not come.
            self._flights.lose(set(ids).difference(host.pool.under_way))
            raise self._translated(error) from error.__cause__
        batch = by_number(batch)
        self._counts.note_recv(batch.env_id.tolist(), began)
        return batch, self._flights.land(batch.env_id.tolist())

    def _followed(self, batch: Batch, flights: list[Flight]) -> TensorDictBase:
        following = self._host.traffic.unpack(batch, is_first=False)
        td = self._inputs_of(flights, following.keys(True, True))
        before = td.get("next", None)
        td.set("next", following if before is None else before.copy().update(following))
        return td.set(INDEX, self._index_of(batch))

    def _inputs_of(self, flights: list[Flight], returned: Iterable[Key] = ()) -> TensorDictBase:
        """What envs were given, one row each; those of several sends, without what envs have ``returned`` anew."""
        source = flights[0].source
        if all(flight.source is source for flight in flights) and source is not None:
            rows = [flight.row for flight in flights]
            if rows == list(range(source.batch_size[0])):
                return source
            return source[torch.as_tensor(rows)]
        replaced = [("next", *path_of(key)) for key in returned]
        return self._host.traffic.stacked([flight.given(replaced) for flight in flights])

    def _index_of(self, batch: Batch) -> Any:
        ids = batch.env_id.tolist()
        return self._indices if len(ids) == self.num_envs else index_entry(ids, torch.Size(self.batch_size[1:]))

    def _one_or_all(self, td: TensorDictBase, env_index: int | None) -> TensorDictBase:
        if env_index is None:
            return td
        return td[0].set(INDEX, NonTensorData(int(env_index), batch_size=td.batch_size[1:]))

    # ------------------------------------------------------------------ the rest

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, where they are in this process."""
        raise AttributeError(f"{type(self).__name__}: the envs live in other processes")

    @property
    def backend(self) -> str:
        """``"threading"`` or ``"multiprocessing"``."""
        raise NotImplementedError

    @property
    def resolved_exchange(self) -> str:
        """``"shm"`` if data is held to the specs of the envs, ``"queue"`` if not."""
        return self._exchange.resolved

    @property
    def exchange_keys(self) -> tuple[NestedKey, ...]:
        """The keys that data may have; empty if it may have any."""
        return self._exchange.keys

    def stats(self, reset: bool = False) -> dict[str, float]:
        """What was received so far, and how long it took.

        Args:
            reset: Whether to start counting over.

        Returns:
            ``batches``, ``items``, ``avg_batch_size``; ``batch_fill_ratio``, the same as a share of all envs;
            ``partial_batch_fraction``, of batches that lacked an env; ``avg_observation_to_batch_ms``, how long a
            receive took; ``avg_batch_to_action_ms``, how long an env then waited for its next command;
            ``consumer_busy_fraction``, the share of time not spent in receives.
        """
        counts: dict[str, float] = self._counts.take(reset=reset)
        return counts

    @property
    def is_closed(self) -> bool:
        """Whether the envs have been closed."""
        return self.__dict__.get("_host") is None

    def shutdown(self) -> None:
        """Close the envs, whatever they are doing."""
        host: OnPool | None = self.__dict__.get("_host")
        self.__dict__["_host"] = None
        if host is not None:
            host.close()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the envs; a second call does nothing."""
        self.shutdown()

    def __del__(self) -> None:
        self.shutdown()
