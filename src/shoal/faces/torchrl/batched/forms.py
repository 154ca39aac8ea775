"""Whether what envs return is what their specs declare: the entries, their shapes and their dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import LazyStackedTensorDict, TensorDict

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env.keys import NestedKey, leaf_keys
from shoal.faces.torchrl.fast_td import entries_of
from shoal.faces.torchrl.specs import NonTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import Composite


class Form(NamedTuple):
    """What a spec fixes for the tensors of one entry."""

    shape: torch.Size
    dtype: torch.dtype


class Forms:
    """What an env has to return.

    Args:
        *specs: They declare it.

    Attributes:
        fixed: Tensors of one shape.
        loose: The keys of everything else: tensors whose shape varies, and objects.
        keys: All keys, also those of entries that may be anything, or missing.
    """

    __slots__ = ("fixed", "keys", "loose")

    def __init__(self, *specs: Composite) -> None:
        self.fixed: dict[NestedKey, Form] = {}
        self.loose: list[NestedKey] = []
        leaves = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
        self.keys = list(leaves)
        for key, leaf in leaves.items():
            if leaf is None:
                continue
            if isinstance(leaf, NonTensor) or -1 in leaf.shape:
                self.loose.append(key)
            else:
                self.fixed[key] = Form(torch.Size(leaf.shape), leaf.dtype)

    @property
    def shapes(self) -> dict[NestedKey, torch.Size]:
        """The shapes that are fixed, by key."""
        return {key: form.shape for key, form in self.fixed.items()}


def as_declared(
    ids: Sequence[int], rows: Sequence[TensorDictBase], stacked: TensorDictBase, forms: Sequence[Forms]
) -> TensorDictBase:
    """Stacked rows of envs, with the dtypes of their specs.

    Args:
        ids: The envs that returned them.
        rows: What each returned.
        stacked: All of it stacked, changed in place; if it is dense and as declared, one look at it is enough.
        forms: What every env has to return.

    Raises:
        TensorEnvError: If an entry is missing, or has another shape, or a dtype that does not become that of its spec;
            names the env and the key.
    """
    if type(stacked) is TensorDict and _is_as_said(stacked, len(ids), forms[ids[0]]):
        return stacked
    for i, row in zip(ids, rows, strict=True):
        _check(i, row, forms[i])
    if isinstance(stacked, LazyStackedTensorDict):
        for i, row in zip(ids, stacked.tensordicts, strict=True):
            _cast(row, forms[i])
    else:
        _cast(stacked, forms[ids[0]])
    return stacked


def _is_as_said(stacked: TensorDictBase, count: int, forms: Forms) -> bool:
    entries = entries_of(stacked)
    for key, (shape, dtype) in forms.fixed.items():
        value = entries.get(key) if entries is not None and isinstance(key, str) else stacked.get(key, None)
        if value is None or value.shape != (count, *shape) or value.dtype is not dtype:
            return False
    return not forms.loose or all(_holds(stacked, key) for key in forms.loose)


def _holds(td: TensorDictBase, key: NestedKey) -> bool:
    # Without reading it: the rows of a stack may differ in shape.
    return key in td.keys(include_nested=True)


def _check(env_id: int, row: TensorDictBase, forms: Forms) -> None:
    for key, (shape, dtype) in forms.fixed.items():
        value: Any = row.get(key, None)
        if value is None:
            raise _missing(env_id, key)
        if value.shape != shape:
            raise TensorEnvError(
                f"env {env_id}: {key!r}: the spec says shape {tuple(shape)}, and the env returned {tuple(value.shape)}"
            )
        if value.dtype is not dtype and not torch.can_cast(value.dtype, dtype):
            raise TensorEnvError(f"env {env_id}: {key!r}: the spec says {dtype}, and the env returned {value.dtype}")
    for key in forms.loose:
        if not _holds(row, key):
            raise _missing(env_id, key)


def _missing(env_id: int, key: NestedKey) -> TensorEnvError:
    return TensorEnvError(f"env {env_id}: {key!r}: the specs declare it, and the env did not return it")


def _cast(td: TensorDictBase, forms: Forms) -> None:
    for key, (_, dtype) in forms.fixed.items():
        value: torch.Tensor = td.get(key)
        if value.dtype is not dtype:
            td.set(key, value.to(dtype))
