"""TensorDicts built and read without their checks: the only module that knows the insides of a TensorDict.

What it offers, for code whose tensors are known to fit together:

    build(entries, batch_size, device)   a TensorDict over tensors (and TensorDicts) that have that batch size; no copy
    entries_of(td)                       the dict inside a plain unlocked TensorDict: read and write it like any dict.
                                         None for everything else (lazy stacks, locked, subclasses): use td.get/set
    stack(rows, dim)                     rows of equal keys and shapes stacked dense; None when they are not equal

The constructor of TensorDict costs three times as much, and reading an entry with ``get`` thirty times. With a version
of tensordict that lacks these insides, the same functions go through its public interface.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDictBase


def _build_publicly(entries: dict[str, Any], batch_size: torch.Size, device: torch.device | None = None) -> TensorDict:
    return TensorDict(entries, batch_size=batch_size, device=device)


def _build_unchecked(entries: dict[str, Any], batch_size: torch.Size, device: torch.device | None = None) -> TensorDict:
    made: TensorDict = TensorDict._new_unsafe(source=entries, batch_size=batch_size, device=device, nested=False)
    return made


def _entries_inside(td: Any) -> dict[str, Any] | None:
    # A td with named dims passes the names on to what is set in it; a write into the dict would not.
    if type(td) is TensorDict and not td._is_locked and td._td_dim_names is None:
        inside: dict[str, Any] = td._tensordict
        return inside
    return None


def _no_entries(td: Any) -> dict[str, Any] | None:
    return None


def _has_insides() -> bool:
    try:
        made = _build_unchecked({"x": torch.zeros(2, 1)}, torch.Size([2]))
        inside = _entries_inside(made)
        if inside is None:
            return False
        inside["y"] = torch.ones(2)
        return made["y"].sum().item() == 2 and made.batch_size == (2,) and "nested" in _parameters()
    except (AttributeError, TypeError):
        return False


def _parameters() -> set[str]:
    return set(inspect.signature(TensorDict._new_unsafe).parameters)


_INSIDES = _has_insides()
build = _build_unchecked if _INSIDES else _build_publicly
entries_of = _entries_inside if _INSIDES else _no_entries


def stack(rows: Sequence[TensorDictBase], dim: int) -> TensorDict | None:
    """Stack plain TensorDicts of equal keys and shapes along a new dim.

    Args:
        rows: What to stack, at least one.
        dim: The place of the new dim, counted from the front.

    Returns:
        A dense TensorDict, or None when a row is of another kind, or keys or shapes differ.
    """
    inside = [entries_of(row) for row in rows]
    first = inside[0]
    if first is None:
        return None
    stacked: dict[str, Any] = {}
    for key, value in first.items():
        column = []
        for entries in inside:
            if entries is None or len(entries) != len(first) or key not in entries:
                return None
            column.append(entries[key])
        joined = _stack_column(value, column, dim)
        if joined is None:
            return None
        stacked[key] = joined
    batch_size = rows[0].batch_size
    return build(stacked, torch.Size((*batch_size[:dim], len(rows), *batch_size[dim:])), rows[0].device)


def _stack_column(first: Any, column: list[Any], dim: int) -> torch.Tensor | TensorDict | None:
    if type(first) is torch.Tensor:
        shape, dtype = first.shape, first.dtype
        if all(type(value) is torch.Tensor and value.shape == shape and value.dtype is dtype for value in column):
            return torch.stack(column, dim)
        return None
    if type(first) is TensorDict and all(type(value) is TensorDict for value in column):
        batch_size = first.batch_size
        return stack(column, dim) if all(value.batch_size == batch_size for value in column) else None
    return None
