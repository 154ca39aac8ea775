"""Which rows of a batch a reset or a step concerns, for transforms that remember something about each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.env.keys import level_of, path_of
from shoal.faces.torchrl.env.masks import row_mask

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.env.plan import EnvPlan


def reset_mask(td: TensorDictBase, key: NestedKey) -> torch.Tensor | None:
    """The mask of a partial reset that applies to an entry: the outermost one above it; None for all rows.

    Args:
        td: What the reset was given.
        key: The entry.
    """
    path = path_of(key)
    for end in range(len(path)):
        level = level_of(td, path[:end])
        mask = None if level is None else level.get("_reset", None)
        if mask is not None:
            return torch.as_tensor(mask)
    return None


def step_mask(td: TensorDictBase) -> torch.Tensor | None:
    """The rows that a step concerns; None for all."""
    mask: Any = td.get("_step", None)
    return None if mask is None else torch.as_tensor(mask).reshape(td.batch_size)


def rows_reset(td: TensorDictBase, fresh: TensorDictBase, plan: EnvPlan) -> torch.Tensor:
    """The rows that a reset restarts, as one bool per row."""
    masks = [td.get(level.reset_key, None) for level in plan.deciding]
    given = [row_mask(mask, fresh.batch_size) for mask in masks if mask is not None]
    if not given:
        return torch.ones(fresh.batch_size, dtype=torch.bool, device=fresh.device)
    return torch.stack(given).any(0)


def rows_ended(td: TensorDictBase, plan: EnvPlan) -> torch.Tensor:
    """The rows in which an episode has ended, as one bool per row."""
    ended = [row_mask(mask, td.batch_size) for _, mask in plan.ended(td)]
    if not ended:
        return torch.zeros(td.batch_size, dtype=torch.bool, device=td.device)
    return torch.stack(ended).any(0)
