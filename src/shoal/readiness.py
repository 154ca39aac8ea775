"""Which envs may be stepped: those that have been reset, whose episode goes on, and that have not failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.arrays import has_true
from shoal.errors import ActionError, ArgumentError, NotReset, StateError, WrongMask
from shoal.slot import copy_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.batch import Batch
    from shoal.faults import Fault

Ids = Sequence[int] | np.ndarray[Any, Any] | None
Options = dict[str, Any] | None
Wishes = Options | Sequence[Options]


class Readiness:
    """Keeps track of the envs that cannot be stepped now.

    Attributes:
        all_ready: Whether there are none, as in most pools all day.
        fresh_N: Envs that were never reset.
        unseeded: Envs that have given no row yet, so that the pool's own seed is still for their next reset.
        faulted: Envs that failed, and why.
    """

    def __init__(self, num_envs: int) -> None:
        self.all_ready = False
        self.fresh_N = np.ones(num_envs, np.bool_)
        self.unseeded = set(range(num_envs))
        # Without autoreset, an env must be reset after each episode.
        self._over_N = np.zeros(num_envs, np.bool_)
        self.faulted: dict[int, Fault] = {}
        # Envs that errors have reported as lost, including idle ones that fell with another, and whether that is
        # because they could not be built.
        self._lost: dict[int, bool] = {}

    def refuse_unready(self, ids: Sequence[int]) -> None:
        """Raise if one of these envs cannot be stepped, saying which and what to do."""
        if self.all_ready:
            return
        if fresh := [i for i in ids if self.fresh_N[i]]:
            raise NotReset(f"envs {fresh} were never reset: call reset() first")
        if over := [i for i in ids if self._over_N[i]]:
            raise NotReset(f"envs {over} have finished their episodes, and no autoreset follows: reset them first")
        if failed := [i for i in ids if i in self.faulted]:
            raise StateError(f"envs {failed} failed earlier ({self.faulted[failed[0]].summary}): reset them first")

    def note_reset(self, ids: Sequence[int]) -> None:
        """Note that these envs begin an episode."""
        self.fresh_N[ids] = False
        self._over_N[ids] = False
        self._look()

    def note_ends(self, ids: Sequence[int] | slice, batch: Batch) -> None:
        """Note which envs wait for a reset, because their episode has ended and no autoreset has begun the next."""
        if self.all_ready and not (has_true(batch.terminated) or has_true(batch.truncated)):
            return
        over = (batch.terminated | batch.truncated) > batch.first  # of flags: and not first
        if self.all_ready and not has_true(over):
            return
        self._over_N[ids] = over
        self.all_ready = False

    def excuse(self, ids: Iterable[int]) -> None:
        """Excuse dropped envs from the reset that the end of an episode asks for."""
        if out := list(ids):
            self._over_N[out] = False
            self._look()

    def note_faults(self, ids: Sequence[int], faults: Iterable[Fault]) -> None:
        """Note that these envs have failed."""
        for i, fault in zip(ids, faults, strict=True):
            self.faulted[i] = fault
            self.note_loss(fault)
        self.all_ready = False

    def note_loss(self, fault: Fault) -> None:
        """Remember which envs were lost to a fault, if any."""
        if fault.loses_env:
            is_unbuilt = fault.where.phase == "construct"
            self._lost.update({i: is_unbuilt or self._lost.get(i, False) for i in fault.where.env_ids})

    def take_lost(self, ids: Iterable[int]) -> dict[int, bool]:
        """Forget, and return, which of these envs were reported as lost, and whether they could not be built."""
        lost = sorted(self._lost.keys() & set(ids)) if self._lost else ()
        return {i: self._lost.pop(i) for i in lost}

    def forgive(self, ids: Iterable[int]) -> None:
        """Forget the faults of these envs."""
        for i in ids:
            self.faulted.pop(i, None)
        self._look()

    def _look(self) -> None:
        self.all_ready = not (self.faulted or has_true(self.fresh_N) or has_true(self._over_N))


def masked_ids(mask: Any, num_envs: int) -> npt.NDArray[np.intp]:
    """The envs that are True in ``options["reset_mask"]``.

    Raises:
        WrongMask: If it is not a mask.
        ArgumentError: If it does not have one entry per env, or no env is True.
    """
    is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_
    if not is_mask or mask.shape != (num_envs,):
        kind = ArgumentError if is_mask else WrongMask
        raise kind(f"options['reset_mask']: expected a bool array of shape ({num_envs},), got {mask!r}")
    if not mask.any():
        raise ArgumentError("options['reset_mask']: no env is True, so there is nothing to reset")
    return np.flatnonzero(mask)


def check_ids(env_id: Any, num_envs: int) -> list[int]:
    """Env ids as a list of ints, each in range and given once.

    Raises:
        ActionError: If they are not.
    """
    try:
        array = np.asarray(env_id)
    except ValueError:
        raise ActionError(f"env_id: expected a list of ints, got {env_id!r}") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ActionError(f"env_id: expected a list of ints, got {env_id!r}")
    ids: list[int] = array.tolist()
    if not ids:
        raise ActionError("env_id: expected at least one id")
    if min(ids) < 0 or max(ids) >= num_envs:
        bad = [i for i in ids if not 0 <= i < num_envs]
        raise ActionError(f"env_id: {bad} out of range, the pool has envs 0 to {num_envs - 1}")
    if len(set(ids)) != len(ids):
        raise ActionError(f"env_id: {sorted(i for i in set(ids) if ids.count(i) > 1)} given more than once")
    return ids


def check_one_each(name: str, values: Sequence[Any], ids: Sequence[int]) -> None:
    """Raise ``ActionError`` unless there is one value per env."""
    if len(values) != len(ids):
        raise ActionError(f"{name}: expected {len(ids)} values, one per env, got {len(values)}")


def options_of(ids: Sequence[int], options: Any) -> list[dict[str, Any] | None]:
    """The reset options of each env: one dict is for all of them, a list has one per env.

    Raises:
        ArgumentError: If it is neither, or a list of the wrong length or with entries other than dicts and None.

    Example:
        >>> options_of([4, 7], {"level": 1})
        [{'level': 1}, {'level': 1}]
        >>> options_of([4, 7], [None, {"level": 2}])
        [None, {'level': 2}]
    """
    if options is None:
        return [None] * len(ids)
    # Each env gets its own copy, so that neither the other envs nor the caller see what it does to it.
    if isinstance(options, Mapping):
        return [copy_leaves(options) for _ in ids]
    if not isinstance(options, (list, tuple)):
        raise ArgumentError(f"options: expected a dict, or a list with one per env that is reset, got {options!r}")
    if len(options) != len(ids):
        raise ArgumentError(f"options: expected {len(ids)} dicts, one per env that is reset, got {len(options)}")
    if odd := [type(own).__name__ for own in options if not (own is None or isinstance(own, dict))]:
        raise ArgumentError(f"options: expected a dict or None for each env, got {odd[0]}")
    return [copy_leaves(own) for own in options]
