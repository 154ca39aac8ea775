"""Whether what envs return has the shapes that their specs declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDict

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env.keys import NestedKey, leaf_keys
from shoal.faces.torchrl.fast_td import entries_of
from shoal.faces.torchrl.specs import NonTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from tensordict import TensorDictBase

    Shapes = dict[NestedKey, torch.Size]


def fixed_shapes(output_spec: Any) -> Shapes:
    """The shapes, by key, that the specs of an env fix for what it returns."""
    return {
        key: leaf.shape
        for spec in output_spec.values()
        for key in leaf_keys(spec)
        if (leaf := spec[key]) is not None and not isinstance(leaf, NonTensor) and -1 not in leaf.shape
    }


def check_shapes(
    ids: Sequence[int], rows: Sequence[TensorDictBase], stacked: TensorDictBase, shapes: Sequence[Shapes]
) -> None:
    """Refuse rows that do not have the shapes of their specs.

    Args:
        ids: The envs that returned them.
        rows: What each returned.
        stacked: All of it stacked; if that is dense, one look at it is enough.
        shapes: What the specs of every env say.

    Raises:
        TensorEnvError: Names the env and the key.
    """
    if type(stacked) is TensorDict and _is_as_said(stacked, len(ids), shapes[ids[0]]):
        return
    for i, row in zip(ids, rows, strict=True):
        for key, shape in shapes[i].items():
            value = row.get(key, None)
            if value is not None and value.shape != shape:
                raise TensorEnvError(
                    f"env {i}: {key!r}: the spec says shape {tuple(shape)}, and the env returned {tuple(value.shape)}"
                )


def _is_as_said(stacked: TensorDictBase, count: int, shapes: Shapes) -> bool:
    entries = entries_of(stacked)
    for key, shape in shapes.items():
        value = entries.get(key) if entries is not None and isinstance(key, str) else stacked.get(key, None)
        if value is not None and value.shape != (count, *shape):
            return False
    return True
