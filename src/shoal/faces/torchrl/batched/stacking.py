"""Rows of several envs as one TensorDict: dense where they are alike, a lazy stack where they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from shoal.faces.torchrl.env.keys import NestedKey, Path, path_of
from shoal.faces.torchrl.fast_td import build, entries_of, stack
from shoal.faces.torchrl.specs import Composite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Sizes = dict[Path, tuple[int, ...]]


def level_sizes(spec: Composite, lead: int) -> Sizes:
    """The dims that each nested level of a spec has after its first ``lead`` ones."""
    return {
        path_of(key): tuple(spec[key].shape[lead:])
        for key in spec.keys(include_nested=True)
        if isinstance(spec[key], Composite)
    }


def nested(
    entries: Mapping[NestedKey, Any],
    batch_size: torch.Size,
    device: torch.device | None = None,
    sizes: Sizes | None = None,
) -> TensorDict:
    """A TensorDict of entries by key, with a nested one per level; ``sizes`` is what levels add to the batch size."""
    if not any(isinstance(key, tuple) for key in entries):
        return build(dict(entries), batch_size, device)  # type: ignore[arg-type]
    tree: dict[str, Any] = {}
    for key, value in entries.items():
        path = path_of(key)
        here = tree
        for name in path[:-1]:
            here = here.setdefault(name, {})
        here[path[-1]] = value
    return _grow(tree, (), batch_size, device, sizes or {})


def _grow(tree: dict[str, Any], path: Path, lead: torch.Size, device: torch.device | None, sizes: Sizes) -> TensorDict:
    own = {
        name: _grow(value, (*path, name), lead, device, sizes) if isinstance(value, dict) else value
        for name, value in tree.items()
    }
    return build(own, torch.Size((*lead, *sizes.get(path, ()))), device)


def put(td: TensorDictBase, key: str, value: Any) -> None:
    """Set an entry that is known to fit, without the checks of ``set`` where possible."""
    entries = entries_of(td)
    if entries is not None and td.device == value.device:
        entries[key] = value
    else:
        td.set(key, value)


def stack_rows(rows: Sequence[TensorDictBase], *, lazily: bool = False) -> TensorDictBase:
    """Copies of one row per env, stacked: dense if they are alike, unless a lazy stack is wanted."""
    dense = None if lazily else stack(rows, 0)
    if dense is not None:
        return dense
    stacked = LazyStackedTensorDict(*rows, stack_dim=0) if lazily else LazyStackedTensorDict.maybe_dense_stack(rows, 0)
    # A lazy stack holds the rows themselves, whose tensors an env may write to again.
    return stacked.clone() if isinstance(stacked, LazyStackedTensorDict) else stacked


def spread(
    rows: TensorDictBase, places: Sequence[int], count: int, blank: Callable[[int], TensorDictBase], *, are_alike: bool
) -> TensorDictBase:
    """Rows put at their places among ``count``; the others are blank.

    Args:
        rows: One row per place.
        places: Where each belongs.
        count: How many rows the result has.
        blank: Makes the row of an env that has none, for data that cannot be one tensor per leaf.
        are_alike: Whether the data of all envs can be one tensor per leaf; that of some of them may be in any case.
    """
    if are_alike and type(rows) is TensorDict and _is_all_tensors(rows):
        return _spread_dense(rows, torch.as_tensor(list(places)), count)
    each = {place: row for place, row in zip(places, rows.unbind(0), strict=True)}
    filled = [each[i] if i in each else blank(i) for i in range(count)]
    return stack_rows(filled, lazily=not are_alike or isinstance(rows, LazyStackedTensorDict))


def _spread_dense(rows: TensorDictBase, places: torch.Tensor, count: int) -> TensorDict:
    entries: dict[str, Any] = {}
    for key, value in rows.items():
        if isinstance(value, TensorDictBase):
            entries[key] = _spread_dense(value, places, count)
        else:
            entries[key] = value.new_zeros((count, *value.shape[1:])).index_put((places.to(value.device),), value)
    return build(entries, torch.Size((count, *rows.batch_size[1:])), rows.device)


def _is_all_tensors(td: TensorDictBase) -> bool:
    return all(
        isinstance(value, torch.Tensor) or (type(value) is TensorDict and _is_all_tensors(value))
        for value in td.values()
    )


def renewed(root: TensorDictBase, first: TensorDictBase, places: Sequence[int]) -> TensorDictBase:
    """Data with the rows at some places replaced; the tensors that it was made from stay as they are.

    Args:
        root: One row per env; changed.
        first: One row per place, with some of the keys.
        places: Where each belongs.
    """
    if type(root) is TensorDict and type(first) is TensorDict and _is_all_tensors(first):
        _renew_dense(root, first, torch.as_tensor(list(places)))
        return root
    rows = list(root.unbind(0))
    for place, row in zip(places, first.unbind(0), strict=True):
        rows[place] = rows[place].copy().update(row)
    return stack_rows(rows, lazily=isinstance(root, LazyStackedTensorDict))


def _renew_dense(root: TensorDictBase, first: TensorDictBase, places: torch.Tensor) -> None:
    for key, value in first.items():
        before = root.get(key, None)
        if isinstance(value, TensorDictBase):
            size = torch.Size((len(root), *value.batch_size[1:]))
            level = build({}, size, root.device) if before is None else before.copy()
            _renew_dense(level, value, places)
            root.set(key, level)
            continue
        if before is None:
            before = value.new_zeros((len(root), *value.shape[1:]))
        root.set(key, before.index_put((places.to(before.device),), value.to(before.device)))
