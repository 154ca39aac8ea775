"""The info dict of a batch: ids and counts, what the envs report, and the last observations of ended episodes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.batch import merge_infos

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from shoal.batch import Batch
    from shoal.faces.envpool.arrayspec import Form
    from shoal.native import Alias
    from shoal.spec import SpaceTree

STEPS = "elapsed_step"
DISCOUNT = "discount"
NO_ALIASES: Mapping[str, Alias] = MappingProxyType({})
NO_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType({})


class InfoMaker:
    """Makes the info of a batch.

    Every key is an array with one row per env, or a dict of those. What an env has not reported is zero (None for
    objects). Under the ``same_step`` rule, ``final_obs`` and ``final_info`` hold the last observation and info of the
    episodes that ended in this batch, and ``_final_obs`` says in which rows.

    Args:
        tree: The observation space of the pool.
        form: How observations are handed out.
        aliases: Further names of info fields; or numbers, which every step reports under that name; or functions of
            fields and rewards.
        types: The types of info fields that are not handed out in the env's own type.
        tells_discount: Whether the envs report discounts of their own, which they do not at the start of an episode,
            where EnvPool has 1.
    """

    def __init__(
        self,
        tree: SpaceTree,
        form: Form,
        aliases: Mapping[str, Alias] = NO_ALIASES,
        types: Mapping[str, np.dtype[Any]] = NO_TYPES,
        *,
        tells_discount: bool = False,
    ) -> None:
        self._tree = tree
        self._given = form.given
        self._aliases = aliases
        self._types = types
        self._tells_discount = tells_discount

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """The info of this batch."""
        ids: dict[str, Any] = {"env_id": batch.env_id, "players": {"env_id": batch.env_id.copy()}}
        if batch.fields or batch.infos or batch.finals:
            # An env whose games go on over several episodes counts steps itself.
            steps = batch.fields.get(STEPS, batch.elapsed_step)
            # The ids first, and the pool's own: an env may report something of the same name.
            info = {**ids, **self.reported(batch), **ids}
            info.pop(STEPS, None)
            return {**info, STEPS: steps}
        return {**ids, STEPS: batch.elapsed_step}

    def reported(self, batch: Batch) -> dict[str, Any]:
        """What the envs have reported beyond their rows."""
        info: dict[str, Any] = dict(batch.fields)
        if batch.infos:
            info.update(without_masks(merge_infos(len(batch), batch.infos)))
        for name in self._types.keys() & info.keys():
            info[name] = info[name].astype(self._types[name])
        if self._tells_discount:
            info[DISCOUNT] = np.where(batch.first, 1.0, info[DISCOUNT])
        if self._aliases:
            self._add_aliases(info, batch, ~batch.first)
        if batch.finals:
            info.update(self._finals(batch))
        return info

    def _add_aliases(self, info: dict[str, Any], batch: Batch, is_step: npt.NDArray[np.bool_]) -> None:
        """Add the other names of fields to an info that was reported by a step in these rows, and not in others."""
        for alias, meant in self._aliases.items():
            if callable(meant):
                info[alias] = meant(info, np.where(is_step, batch.reward, 0.0))
            elif not isinstance(meant, str):
                info[alias] = np.where(is_step, meant, 0.0)
            elif meant in info:
                info[alias] = info[meant].copy()

    def _finals(self, batch: Batch) -> dict[str, Any]:
        # One row per observation, of which there may be more than envs.
        count = len(batch.reward)
        # The observations of the batch already have the structure that is needed, with a place for every row.
        columns = [_blank(column) for column in self._tree.flatten(batch.obs)]
        for row, (obs, _) in batch.finals.items():
            for column, value in zip(columns, self._tree.flatten(obs), strict=True):
                column[row] = value
        has_ended = np.zeros(count, np.bool_)
        has_ended[list(batch.finals)] = True
        finals: dict[str, Any] = {
            "final_obs": self._given(self._tree.unflatten(columns)),
            "_final_obs": has_ended,
        }
        last_infos = [(row, info) for row, (_, info) in batch.finals.items() if info]
        if last_infos:
            finals["final_info"] = last = without_masks(merge_infos(count, last_infos))
            if batch.fields.keys() <= last.keys():  # an env that has failed reports nothing of its own
                self._add_aliases(last, batch, has_ended)
        return finals


def _blank(column: Any) -> Any:
    return np.full(len(column), None, object) if column.dtype == object else np.zeros_like(column)


def without_masks(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Merged infos without the arrays that say which rows have a key."""
    return {
        key: without_masks(value) if isinstance(value, dict) else value
        for key, value in merged.items()
        if not (key.startswith("_") and key[1:] in merged)
    }
