"""Partial resets and partial steps: which rows are concerned, and what all others keep.

``"_reset"`` and ``"_step"`` are boolean masks in the data given to an env. Rows that a mask leaves out keep what the
input held for them, and are zero where the input held nothing.

A mask of a reset sits beside the done flags of its level, and decides for everything below it: the masks of levels that
lie within another one with done flags do not count, and if the root has any, its mask is the only one. A level without
a mask is reset as a whole. Entries that lie beside all such levels begin anew in rows where any mask resets something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor, is_tensor_collection

from shoal.faces.torchrl.env.keys import Path, drop, is_nested, level_of
from shoal.faces.torchrl.fast_td import entries_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.env.plan import EnvPlan

Masks = list[tuple[Path, torch.Tensor]]


def take_reset_masks(td: TensorDictBase, plan: EnvPlan) -> Masks:
    """The masks of a partial reset that count; those that do not are removed from the data.

    Args:
        td: The data given to ``reset``, changed in place.
        plan: Where the env has done flags.

    Returns:
        Paths of levels and their masks, which are still in the data for the env to read; none for a total reset.
    """
    entries = entries_of(td)
    if entries is not None and plan.is_flat:
        mask = entries.get("_reset")
        return [] if mask is None else [((), mask)]
    root = td.get("_reset", None)
    paths = [level.path for level in plan.levels if level.path]
    nested = [
        (path, here.get("_reset"))
        for path in paths
        if (here := level_of(td, path)) is not None and here.get("_reset", None) is not None
    ]
    is_total = root is not None or plan.root_done
    counting: Masks = []
    for path, mask in nested:
        if is_total or _is_below(path, [other for other in paths if other != path]):
            drop(td, (*path, "_reset"))
        else:
            counting.append((path, mask))
    return counting if root is None else [((), root)]


def drop_reset_masks(td: TensorDictBase) -> None:
    """Remove all masks of resets from the data, at every level."""
    if isinstance(td, LazyStackedTensorDict):
        for row in td.tensordicts:
            drop_reset_masks(row)
        return
    entries = entries_of(td)
    if entries is None:
        drop(td, ("_reset",))
    else:
        entries.pop("_reset", None)
    for value in (td if entries is None else entries).values():
        if type(value) is not torch.Tensor and is_nested(value):
            drop_reset_masks(value)


def keep_unreset(fresh: TensorDictBase, given: TensorDictBase, masks: Masks, plan: EnvPlan) -> TensorDictBase:
    """What a partial reset gives: fresh data where a mask is True, the given data elsewhere."""
    paths = [path for path, _ in masks]
    if () not in paths and all(_is_below(level.path, paths) for level in plan.levels):
        rows = torch.stack([row_mask(mask, given.batch_size) for _, mask in masks]).any(0)
        if not rows.all():
            _keep_beside(fresh, given, rows, paths)
    for path, mask in masks:
        if mask.all():
            continue
        fresh_here, given_here = level_of(fresh, path), level_of(given, path)
        if fresh_here is None:
            continue
        chosen = select(mask, fresh_here, given_here)
        if path:
            fresh.set(path, chosen)
        else:
            fresh = chosen
    return fresh


def _is_below(path: Path, others: Sequence[Path]) -> bool:
    """Whether a level is one of the others, or below one."""
    return any(path[: len(other)] == other for other in others)


def _keep_beside(fresh: TensorDictBase, given: TensorDictBase | None, rows: torch.Tensor, masked: list[Path]) -> None:
    """Put the given values of rows that are not reset into all entries that are not at or below a masked level."""
    if isinstance(fresh, LazyStackedTensorDict) and fresh.stack_dim == 0:
        for i, row in enumerate(fresh.tensordicts):
            _keep_beside(row, None if given is None else given[i], rows[i], masked)
        return
    for name in list(fresh.keys()):
        below = [path[1:] for path in masked if path[0] == name]
        before = None if given is None else given.get(name, None)
        if not below:
            fresh.set(name, _select_value(rows, fresh.get(name), before))
        elif () not in below:
            _keep_beside(fresh.get(name), before, rows, below)


def row_mask(mask: torch.Tensor, batch_size: torch.Size) -> torch.Tensor:
    """A mask in the shape of the flags, reduced to one bool per row."""
    return mask.reshape(*batch_size, -1).any(-1)


def step_mask(td: TensorDictBase) -> torch.Tensor | None:
    """Take the mask of a partial step out of the data, as one bool per row; None when there is none."""
    mask = td.get("_step", None)
    if mask is None:
        return None
    mask = torch.as_tensor(td.pop("_step")).bool()
    if mask.shape != td.batch_size and mask.numel() == td.batch_size.numel():
        mask = mask.reshape(td.batch_size)
    return mask


def select(mask: torch.Tensor, new: TensorDictBase, old: TensorDictBase | None) -> Any:
    """New values where a mask is True, old ones elsewhere, zeros where there are no old ones.

    Args:
        mask: One bool per row, possibly with the trailing dim that done flags have.
        new: Has all keys of the result.
        old: Where the values of the other rows come from; keys it lacks are zero there.
    """
    if any(isinstance(td, LazyStackedTensorDict) and td.stack_dim == 0 for td in (new, old)):
        return _select_rows(mask, new, old)
    chosen = new.empty()
    for key, value in new.items():
        before = None if old is None else old.get(key, None)
        chosen.set(key, _select_value(mask, value, before))
    return chosen


def _select_rows(mask: torch.Tensor, new: TensorDictBase, old: TensorDictBase | None) -> LazyStackedTensorDict:
    """Like ``select``, but row by row, for stacks whose rows may differ in shape."""
    # The agents of an env without batch dims are stacked too, and its mask is for all of them.
    masks = mask.unbind(0) if mask.shape[:1] == new.shape[:1] else [mask] * len(new)
    rows = [
        select(chosen, row, None if old is None else old[i])
        for i, (chosen, row) in enumerate(zip(masks, new.unbind(0), strict=True))
    ]
    return LazyStackedTensorDict(*rows, stack_dim=0)


def _select_value(mask: torch.Tensor, new: Any, old: Any) -> Any:
    if is_tensor_collection(new) and not is_non_tensor(new):
        return select(mask, new, old)
    if not isinstance(new, torch.Tensor):
        return _select_objects(mask, new, old)
    if not isinstance(old, torch.Tensor):
        old = torch.zeros_like(new)
    elif old.shape != new.shape:
        if mask.numel() == 1 and not mask.any():
            return old  # one row, of data whose shape varies
        old = torch.zeros_like(new)
    return torch.where(over(mask, new), new, old.to(new.dtype))


def over(mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A mask that broadcasts over a value: trailing dims are added to it, or a trailing 1 is dropped."""
    while mask.ndim > value.ndim and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    common = mask.ndim
    if common and mask.shape[-1] == 1 and value.shape[: common - 1] == mask.shape[:-1] and value.ndim >= common:
        return mask.reshape(*mask.shape, *(1,) * (value.ndim - common))
    if mask.ndim > value.ndim or value.shape[:common] != mask.shape:
        # The flags have a dim that the value lacks: a row is taken when any of its flags is set.
        lead = _common_lead(mask.shape, value.shape)
        mask = mask.reshape(*mask.shape[:lead], -1).any(-1)
    # As a tuple, since it is empty where neither has a dim.
    return mask.reshape((*mask.shape, *(1,) * (value.ndim - mask.ndim)))


def _common_lead(first: torch.Size, second: torch.Size) -> int:
    lead = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        lead += 1
    return lead


def _select_objects(mask: torch.Tensor, new: Any, old: Any) -> Any:
    """Rows of objects: the old object stays where the mask is False and there is one."""
    if old is None:
        return new
    if not mask.ndim or not new.ndim:
        return new if mask.any() else old
    rows = zip(mask.unbind(0), new.unbind(0), old.unbind(0), strict=True)
    return LazyStackedTensorDict.lazy_stack([_select_objects(*row) for row in rows], 0)
