"""What a policy has written for the next step, on its way to the envs.

A policy with a memory writes it under ``"next"``. If the env declares it, because a `TensorDictPrimer` inside it does,
then it is the env that returns it with the next step: as the policy has left it, which the env therefore has to see.

Such entries are rare, and may be large. So they have no place in the rows of a pool: each env is handed its own before
the step, and its row says whether there were any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.adapters.tensordict_env import HEADER_BYTES, TensorDictEnv, plain, wrapped
from shoal.faces.torchrl.env.keys import leaf_keys, path_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from tensordict import TensorDict, TensorDictBase

    from shoal.adapters.byte_rows import Key
    from shoal.faces.torchrl.specs import Composite

PRESETS = "__shoal_presets__"
# The byte of a row that says so, after those that any env of TensorDicts reads.
PRESETS_BYTE = HEADER_BYTES


def carried_keys(read: Composite, written: Composite) -> list[Key]:
    """What an env reads and returns: only that may pass through it unchanged.

    Args:
        read: Its input spec.
        written: Its output spec.
    """
    states, returned = read.get("full_state_spec", None), written.get("full_observation_spec", None)
    if states is None or returned is None:
        return []
    known = set(leaf_keys(returned))
    return [key for key in leaf_keys(states) if key in known]


def presets_of(td: TensorDictBase, keys: Sequence[Key]) -> TensorDictBase | None:
    """Those of some entries that are already there under ``"next"``; None if there are none."""
    given = td.get("next", None) if keys else None
    if given is None:
        return None
    chosen: TensorDictBase = given.select(*keys, strict=False)
    return None if chosen.is_empty() else chosen


def plain_presets(td: TensorDictBase, keys: Sequence[Key]) -> dict[Key, Any]:
    """The same of one env, as plain data."""
    chosen = presets_of(td, keys)
    if chosen is None:
        return {}
    return {key: plain(value) for key in keys if (value := chosen.get(key, None)) is not None}


class PresetEnv(TensorDictEnv):
    """An env of TensorDicts with Gymnasium's interface that may be handed entries for its next step."""

    _presets: Mapping[Key, Any] = {}

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the env, or what is already under ``"next"`` in its next step."""
        if name == PRESETS:
            self._presets = value
        else:
            super().set_wrapper_attr(name, value)

    def _input(self, row: np.ndarray[Any, Any], loose: Mapping[Key, Any] | None) -> TensorDict:
        td = super()._input(row, loose)
        if row.item(PRESETS_BYTE):
            presets, self._presets = self._presets, {}
            for key, value in presets.items():
                td.set(("next", *path_of(key)), wrapped(value))
        return td
