"""Actions of many players, turned into what the pool takes: one row per env with a place for every player.

A caller gives one action for each player row of the last batch of the envs that are to step, in the order of those
rows. The actions of players who left in that batch, or whose episode has ended, are ignored and may be left out, all
of them or none. Where at most one player per env is left to act, one action per env will do. In a dict,

    players.env_id    says which env each action is for, so that every env may make that choice for itself
    players.id        says which player each action is for, in any order; both come in info["players"]

Actions sent before the last batch was received are for the players of the batch before it. A player who joins in
between takes the action that is closest to zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ActionError, WrongShape
from shoal.faces.envpool.actions import ActionReader, cast, listed
from shoal.faces.envpool.players import Mask, Seats, player_spec
from shoal.readiness import check_ids

if TYPE_CHECKING:
    from shoal.readiness import Ids
    from shoal.spec import EnvSpec

Ints = npt.NDArray[np.int64]


class PlayerActionReader(ActionReader):
    """Turns what a caller passes to ``step`` or ``send`` into actions and ids for a pool of multi-player envs.

    Args:
        spec: The contract of the envs.
        seats: Which players are to act.
    """

    def __init__(self, spec: EnvSpec, seats: Seats) -> None:
        tree = player_spec(spec).action
        super().__init__(tree, len(seats.shown_NK))
        self._seats = seats
        self._num_players = len(spec.players)
        # As in the pool, continuous actions may leave their space.
        self._leaves = tree.without_bounds().leaves
        self._blanks = [leaf.blank() for leaf in tree.leaves]

    def __call__(self, action: Any, env_id: Ids) -> tuple[Any, Ids]:
        """Actions and ids in the pool's form.

        Raises:
            ActionError: If there is no such form; no env has moved.
        """
        owners = places = None
        env_id = listed(env_id)
        if isinstance(action, Mapping):
            env_id, owners = self._given_ids(action, env_id)
            places = self._given(action, "players.id")
            action = self._actions_of(action)
        values = self._flat(action)
        count = _rows(values[0]) if values else 0
        ids = self._everyone if env_id is None else np.array(check_ids(env_id, self._num_envs))
        env_row, place, order = self._find(ids, count, owners, places)
        stacked = []
        for leaf, blank, value in zip(self._leaves, self._blanks, values, strict=True):
            column = np.empty((len(ids), self._num_players, *leaf.shape), leaf.dtype)
            column[:] = blank
            if count:
                column[env_row, place] = leaf.fit_batch(cast(leaf, value, count), count)[order]
            stacked.append(column)
        return self._tree.unflatten(stacked), env_id

    def _find(self, ids: Ints, count: int, owners: Any, places: Any) -> tuple[Ints, Ints, Any]:
        """For each action, its row among the ids and its player; and the order in which to take the actions."""
        shown, acting = self._seats.shown_NK[ids], self._seats.acting_NK[ids]
        if owners is None:
            if places is not None:
                raise ActionError("players.id: players.env_id is missing, which says whose players they are")
            row, place = np.nonzero(self._infer(shown, acting, count))
            return row, place, slice(None)
        rows = self._rows_of(ids, owners, count)
        if places is not None:
            return rows, self._check_places(ids, rows, places, acting), slice(None)
        # Within an env the order counts; the envs themselves may be interleaved.
        order = np.argsort(rows, kind="stable")
        row, place = np.nonzero(self._match(ids, shown, acting, np.bincount(rows, minlength=len(ids))))
        return row, place, order

    def _infer(self, shown: Mask, acting: Mask, count: int) -> Mask:
        """The players that this many actions are for."""
        if count == shown.sum():
            return shown
        if count == acting.sum():
            return acting
        if count == len(acting) and (acting.sum(axis=1) <= 1).all():
            return _one_each(acting)
        raise WrongShape(
            f"action: expected {shown.sum()} actions, one per player row of the last batch of these {len(shown)} envs"
            + (f" (or {acting.sum()}, for the players who play on)" if acting.sum() not in (0, shown.sum()) else "")
            + f", got {count}; a dict can say whose they are with 'players.env_id'"
        )

    def _match(self, ids: Ints, shown: Mask, acting: Mask, counts: Ints) -> Mask:
        """The players that the actions are for if each env has this many of them."""
        num_shown, num_acting = shown.sum(axis=1), acting.sum(axis=1)
        is_single = (counts == 1) & (num_acting <= 1)
        for_shown, for_acting = counts == num_shown, counts == num_acting
        unclear = np.flatnonzero(~(for_shown | for_acting | is_single))
        if unclear.size:
            row = unclear[0]
            raise ActionError(
                f"players.env_id: env {ids[row]} has {num_shown[row]} players in its last batch, of whom "
                f"{num_acting[row]} play on, got {counts[row]} actions"
            )
        few = np.where(for_acting[:, None], acting, _one_each(acting))
        mask: Mask = np.where(for_shown[:, None], shown, few)
        return mask

    def _rows_of(self, ids: Ints, owners: Any, count: int) -> Ints:
        owners = _integers("players.env_id", owners, count)
        row_of = np.full(self._num_envs, -1)
        row_of[ids] = np.arange(len(ids))
        is_known = (owners >= 0) & (owners < self._num_envs)
        rows: Ints = np.where(is_known, row_of[np.where(is_known, owners, 0)], -1)
        if (rows < 0).any():
            strangers = np.unique(owners[rows < 0]).tolist()
            raise ActionError(f"players.env_id: envs {strangers} are not among those that step (env_id)")
        return rows

    def _check_places(self, ids: Ints, rows: Ints, given: Any, acting: Mask) -> Ints:
        places = _integers("players.id", given, len(rows))
        if ((places < 0) | (places >= self._num_players)).any():
            raise ActionError(f"players.id: there are players 0 to {self._num_players - 1}, got {places.tolist()}")
        taken = np.zeros(acting.shape, int)
        np.add.at(taken, (rows, places), 1)
        for wrong, what in (((taken == 0) & acting, "no action"), (taken > 1, "more than one action")):
            if wrong.any():
                row, place = np.argwhere(wrong)[0]
                raise ActionError(f"players.id: player {place} of env {ids[row]} has {what}")
        return places


def _one_each(acting: Mask) -> Mask:
    """The player who is to act in each env; where there is none, the first, whose action is ignored."""
    mask = acting.copy()
    mask[~acting.any(axis=1), 0] = True
    return mask


def _rows(values: Any) -> int:
    try:
        return len(values)
    except TypeError:
        return 1  # a bare number


def _integers(name: str, values: Any, count: int) -> Ints:
    array = np.asarray(values)
    if array.shape != (count,) or (count and array.dtype.kind not in "iu"):
        raise ActionError(f"{name}: expected {count} ints, one per action, got {values!r}")
    return array.astype(np.int64)
