"""Commands on their way to some envs: which envs they address, and what they were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from shoal.errors import ActionError, ArgumentError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.adapters.byte_rows import Key
    from shoal.batch import Batch

INDEX = "env_index"


@dataclass(frozen=True, slots=True)
class Flight:
    """A command to one env whose result has not been received.

    Attributes:
        call: What was asked: ``"step"``, ``"reset"`` or ``"step_and_maybe_reset"``.
        source: A copy of the TensorDict it came with, if any.
        row: Its row there; None if the whole TensorDict is its own.
        is_alone: Whether it was sent to this one env by number: its result then waits to be received by number.
    """

    call: str
    source: TensorDictBase | None
    row: int | None
    is_alone: bool

    def given(self, replaced: Sequence[Key] = ()) -> TensorDictBase | None:
        """What the env was given, without entries that are ``replaced``.

        Those may be left over from an earlier step, and then what another env was given may lack them.
        """
        row = self.source if self.source is None or self.row is None else self.source[self.row]
        if row is None or not replaced or row.get("next", None) is None:
            return row
        rest: TensorDictBase = row.exclude(*replaced)
        return rest.exclude("next") if rest.get("next").is_empty() else rest


@dataclass(frozen=True, slots=True)
class Address:
    """Which envs a TensorDict is for.

    Attributes:
        ids: Their numbers, one per row.
        td: A copy of the data, with one row per env; None if there is none.
        is_alone: Whether a single env was named, by its number.
    """

    ids: list[int]
    td: TensorDictBase | None
    is_alone: bool


def addressed(td: TensorDictBase | None, env_index: Any, env_dims: int, count: int, *, needs_data: bool) -> Address:
    """Which envs are meant by a TensorDict and an index.

    Args:
        td: The data.
        env_index: One number, several, or None: then they are in the data, or, if there is no data, all envs are meant.
        env_dims: How many batch dims the data of one env has.
        count: How many envs there are.
        needs_data: Whether there must be data.
    """
    if td is None and needs_data:
        raise ActionError("tensordict: expected the actions of the envs, got None")
    # Results repeat what was sent, and until then the caller may write to the TensorDict.
    td = None if td is None else td.clone()
    if isinstance(env_index, (torch.Tensor, np.ndarray)):
        env_index = env_index.tolist()  # one number, or several
    if hasattr(env_index, "__index__") and not isinstance(env_index, bool):
        i = int(env_index)
        _check([i], count)
        if td is not None and len(td.batch_size) != env_dims:
            raise ActionError(
                f"env_index: {i} is one env, whose data has batch size of {env_dims} dims; got {tuple(td.batch_size)}"
            )
        return Address([i], None if td is None else td.unsqueeze(0), is_alone=True)
    if td is not None and len(td.batch_size) == env_dims:
        td = td.unsqueeze(0)
    if env_index is None and td is None:
        ids = list(range(count))
    elif env_index is None:
        ids = _indices_in(td)
    else:
        ids = [int(i) for i in env_index]
    _check(ids, count)
    if td is not None and td.batch_size[0] != len(ids):
        raise _WrongNumber(f"env_index: {len(ids)} envs are named, and the TensorDict has {td.batch_size[0]} rows")
    return Address(ids, td, is_alone=False)


def _check(ids: Sequence[int], count: int) -> None:
    if not ids:
        raise ArgumentError("env_index: expected at least one env")
    if outside := [i for i in ids if not 0 <= i < count]:
        raise _NoSuchEnv(f"env_index: there is no env {outside[0]}, the pool has envs 0 to {count - 1}")
    if len(set(ids)) != len(ids):
        raise ArgumentError(f"env_index: {ids} names an env twice")


class _NoSuchEnv(ArgumentError, IndexError):
    """A number that no env has."""


class _NoIndex(ActionError, KeyError):
    """Data that does not say for which envs it is."""

    __str__ = Exception.__str__  # a KeyError shows its text as a repr


class _WrongNumber(ActionError, RuntimeError):
    """Data for another number of envs than are named."""


def _indices_in(td: TensorDictBase) -> list[int]:
    """The numbers that the rows of a TensorDict carry, as objects or as a tensor."""
    found = td.get(INDEX, None)
    if found is None:
        raise _NoIndex(
            f"env_index: the TensorDict has no {INDEX!r}, so it cannot be told which envs it is for; pass env_index"
        )
    rows = td.batch_size[0]
    if isinstance(found, torch.Tensor):
        return [int(row.flatten()[0]) for row in found.reshape(rows, -1)]
    listed = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(listed, list):
        return [_number(listed)] * rows
    return [_number(row) for row in listed]


def _number(value: Any) -> int:
    """The number in a possibly nested list: each row of an env that is itself a batch carries it."""
    while isinstance(value, list):
        value = value[0]
    if isinstance(value, torch.Tensor):
        value = value.flatten()[0]
    return int(value)


def index_entry(ids: Sequence[int], env_batch: torch.Size) -> NonTensorStack:
    """The numbers of envs as an entry of their TensorDict, one per row."""
    return NonTensorStack(*[NonTensorData(i, batch_size=env_batch) for i in ids])


class Flights:
    """All commands whose results have not been received."""

    def __init__(self) -> None:
        self._of: dict[int, Flight] = {}

    def __len__(self) -> int:
        return len(self._of)

    def refuse_busy(self, ids: Sequence[int]) -> None:
        """Raise if the result of one of these envs has not been received yet."""
        if busy := [i for i in ids if i in self._of]:
            raise StateError(f"envs {busy} are busy: receive what they were sent before ({self._of[busy[0]].call})")

    def take_off(self, address: Address, call: str) -> None:
        """Note that a command has been sent."""
        for row, i in enumerate(address.ids):
            self._of[i] = Flight(call, address.td, None if address.td is None else row, address.is_alone)

    def waiting(self, call: str) -> list[int]:
        """Envs that were sent this call, and not by number: any receive of the call may take their results."""
        return [i for i, flight in self._of.items() if flight.call == call and not flight.is_alone]

    def expects(self, env_id: int, call: str) -> bool:
        """Whether an env was sent this call."""
        return env_id in self._of and self._of[env_id].call == call

    def land(self, ids: Sequence[int]) -> list[Flight]:
        """Note that these have been received, and return their flights."""
        return [self._of.pop(i) for i in ids]

    def lose(self, ids: Iterable[int]) -> None:
        """Note that these have failed."""
        for i in ids:
            self._of.pop(i, None)


def by_number(batch: Batch) -> Batch:
    """The same rows, in the order of the envs' numbers."""
    order = np.argsort(batch.env_id)
    if (order[:-1] < order[1:]).all():
        return batch
    place = {int(old): new for new, old in enumerate(order)}
    batch.obs, batch.env_id = batch.obs[order], batch.env_id[order]
    batch.infos = sorted((place[row], info) for row, info in batch.infos) if batch.infos else ()
    return batch


def check_limits(least: int, most: int | None, timeout: float | None) -> None:
    """Refuse a receive whose limits make no sense."""
    if least < 1:
        raise ArgumentError(f"min_get: expected at least 1, got {least}")
    if most is not None and most < least:
        raise ArgumentError(f"max_get: expected at least min_get, which is {least}, got {most}")
    if timeout is not None and timeout < 0:
        raise ArgumentError(f"timeout: expected seconds, got {timeout}")
