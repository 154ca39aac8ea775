"""The base of transforms that continue from what they wrote at the previous step.

They read it from the data, where it follows the rows wherever they go. If a later transform has renamed it or left it
out, they fall back on what they remember writing last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.faces.torchrl.env.masks import over
from shoal.faces.torchrl.transforms.base import Transform, put
from shoal.faces.torchrl.transforms.rows import reset_mask, step_mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.specs import Composite


class FollowingTransform(Transform):
    """A transform that reads what it wrote at the previous step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__["_written"] = {}

    _written: dict[NestedKey, torch.Tensor]

    def _before(self, td: TensorDictBase, key: NestedKey, shape: torch.Size) -> torch.Tensor | None:
        """What was written at the previous step; None if nothing was, or if it was for other rows."""
        value: torch.Tensor | None = td.get(key, None)
        if value is None:
            value = self._written.get(key)
        return value if value is not None and value.shape == shape else None

    def _begin(self, td: TensorDictBase, fresh: TensorDictBase, key: NestedKey, value: torch.Tensor) -> None:
        """Write the value for episodes that begin."""
        self._keep(key, value, reset_mask(td, key))
        put(fresh, key, value)

    def _go_on(self, td: TensorDictBase, following: TensorDictBase, key: NestedKey, value: torch.Tensor) -> None:
        """Write the value for a step."""
        self._keep(key, value, step_mask(td))
        put(following, key, value)

    def _keep(self, key: NestedKey, value: torch.Tensor, mask: torch.Tensor | None) -> None:
        old = None if mask is None else self._written.get(key)
        if old is not None and mask is not None and old.shape == value.shape:
            value = torch.where(over(mask, value), value, old)
        self._written[key] = value

    def clone(self) -> Self:
        """A detached copy that has written nothing."""
        twin = super().clone()
        twin.__dict__["_written"] = {}
        return twin


def drop_followed(transform: Transform, state_spec: Composite, keys: Iterable[NestedKey]) -> Composite:
    """The state spec without entries that are removed from the data and that only transforms read.

    Args:
        transform: The transform that removes them.
        state_spec: The spec, changed in place.
        keys: The entries.
    """
    read_by_env = env_state_keys(transform)
    for key in keys:
        if key in state_spec and key not in read_by_env:
            del state_spec[key]
    return state_spec


def env_state_keys(transform: Transform) -> list[NestedKey]:
    """The state of the env that a transform belongs to, without what its transforms read."""
    env = transform.container
    return [] if env is None else [*env.base_env.state_keys, *env._recorded_keys]
