"""Envs that reset themselves inside their step.

What such an env returns when an episode ends already belongs to the next one. It is kept, to be the root of the next
step, where a reset would have been; the last observation of the episode is not known, and is filled with a mark.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.env.keys import leaf_keys
from shoal.faces.torchrl.env.masks import over
from shoal.faces.torchrl.transforms.base import Transform
from shoal.faces.torchrl.transforms.transformed_env import TransformedEnv

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.masks import Masks
    from shoal.faces.torchrl.env_base import EnvBase


class AutoResetTransform(Transform):
    """Sorts what a self-resetting env returns into the end of one episode and the start of the next.

    Args:
        replace: Whether observations at the end of an episode are filled with a mark (the default).
        fill_float: The mark for floats.
        fill_int: The mark for integers.
        fill_bool: The mark for bools.
    """

    def __init__(
        self,
        *,
        replace: bool | None = None,
        fill_float: float | str = "nan",
        fill_int: int = -1,
        fill_bool: bool = False,
    ) -> None:
        super().__init__()
        self.replace = replace is not False
        self.fill_float = float(fill_float)
        self.fill_int = fill_int
        self.fill_bool = fill_bool
        self.__dict__["begun"] = None

    begun: tuple[TensorDictBase, Masks] | None

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        parent = self._lower
        self.__dict__["begun"] = None
        if parent is None:
            return next_tensordict
        ended = parent._plan().ended(next_tensordict)
        if not ended:
            return next_tensordict
        keys = leaf_keys(parent.full_observation_spec)
        first = next_tensordict.select(*keys, strict=False).clone()
        self.__dict__["begun"] = (first, [(level.path, mask.clone()) for level, mask in ended])
        for level, mask in ended:
            for key in keys:
                path = (key,) if isinstance(key, str) else key
                if path[: len(level.path)] == level.path and (value := next_tensordict.get(key, None)) is not None:
                    next_tensordict.set(key, self._last(key, value, mask, next_tensordict))
        return self._without_lasts(next_tensordict)

    def _last(self, key: Any, value: Any, mask: torch.Tensor, following: TensorDictBase) -> Any:
        """An observation with the mark where an episode has ended."""
        if not self.replace or not isinstance(value, torch.Tensor):
            return value
        mark: float = self.fill_bool if value.dtype is torch.bool else self.fill_int
        if value.dtype.is_floating_point:
            mark = self.fill_float
        elif value.dtype is torch.uint8 and mark < 0:
            mark = 0
        return value.masked_fill(over(mask, value), mark)

    def _without_lasts(self, following: TensorDictBase) -> TensorDictBase:
        return following

    def take_begun(self, masks: Masks) -> TensorDictBase | None:
        """The first observations of the episodes that these masks reset, if the env has begun them already."""
        begun = self.begun
        if begun is None or not masks:
            return None
        first, begun_masks = begun
        known = dict(begun_masks)
        for path, mask in masks:
            if path not in known or bool((mask & ~known[path].reshape(mask.shape)).any()):
                return None
        self.__dict__["begun"] = None
        return first

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply it to data outside an env, where that has a meaning."""
        raise NotImplementedError(f"{type(self).__name__} follows an env from step to step")


class VecGymEnvTransform(AutoResetTransform):
    """The same for vector envs that return the last observations too, beside the first ones of the next episodes.

    Args:
        final_name: Under which entry the last observations are.
        missing_obs_value: What stands there in rows whose episode goes on.
        native_autoreset: Whether the env resets itself in the same step.
    """

    def __init__(
        self, final_name: str = "final", missing_obs_value: Any = math.nan, *, native_autoreset: bool = False
    ) -> None:
        super().__init__()
        self.final_name = final_name
        self.missing_obs_value = missing_obs_value
        self.native_autoreset = native_autoreset

    def _last(self, key: Any, value: Any, mask: torch.Tensor, following: TensorDictBase) -> Any:
        last = following.get((self.final_name, *((key,) if isinstance(key, str) else key)), None)
        if last is None:
            return super()._last(key, value, mask, following)
        return torch.where(over(mask, value), last.to(value.dtype), value)

    def _without_lasts(self, following: TensorDictBase) -> TensorDictBase:
        return following.exclude(self.final_name)

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        """The observation spec with what the transform adds."""
        if observation_spec.get(self.final_name, None) is not None:
            del observation_spec[self.final_name]
        return observation_spec


class AutoResetEnv(TransformedEnv):
    """An env that resets itself inside its step, seen as one that does not.

    Args:
        base_env: The env.
        transform: An `AutoResetTransform`.
        **kwargs: As of `TransformedEnv`.
    """

    def __init__(self, base_env: EnvBase, transform: AutoResetTransform, **kwargs: Any) -> None:
        super().__init__(base_env, transform, auto_unwrap=False, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None and not kwargs:
            masks = [
                (level.path, mask)
                for level in self._plan().deciding
                if (mask := tensordict.get(level.reset_key, None)) is not None
            ]
            sorter = self.transform[0] if not isinstance(self.transform, AutoResetTransform) else self.transform
            begun = sorter.take_begun(masks)
            if begun is not None:
                return begun
        return super()._reset(tensordict, **kwargs)
