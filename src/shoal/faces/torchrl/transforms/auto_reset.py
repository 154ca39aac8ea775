"""Envs that reset themselves inside their step.

What such an env returns when an episode ends already belongs to the next one. It is kept, and becomes the root of the
next step in place of a reset. The last observation of the ended episode is unknown, and is filled with a mark.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import leaf_keys
from shoal.faces.torchrl.env.masks import over
from shoal.faces.torchrl.transforms.base import Transform
from shoal.faces.torchrl.transforms.compose import Compose
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
        """Refuse: the transform has no meaning outside an env."""
        raise NotImplementedError(f"{type(self).__name__} follows an env from step to step")


class VecGymEnvTransform(AutoResetTransform):
    """The same for vector envs that return the last observations too, beside the first ones of the next episodes.

    Args:
        final_name: The entry that holds the last observations.
        missing_obs_value: The mark for last observations that the env does not return; NaN is 0 where there is none.
        native_autoreset: Accepted for compatibility: envs that reset themselves in the next step are treated alike.
    """

    def __init__(
        self, final_name: str = "final", missing_obs_value: Any = math.nan, *, native_autoreset: bool = False
    ) -> None:
        mark = float(missing_obs_value)
        whole = 0 if math.isnan(mark) else int(mark)
        super().__init__(fill_float=mark, fill_int=whole, fill_bool=bool(whole))
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
        """The observation spec without the last observations."""
        if observation_spec.get(self.final_name, None) is not None:
            del observation_spec[self.final_name]
        return observation_spec


class AutoResetEnv(TransformedEnv):
    """An env that resets itself inside its step, seen as one that does not.

    Args:
        base_env: The env.
        transform: An `AutoResetTransform`.
        **kwargs: As for `TransformedEnv`.
    """

    def __init__(self, base_env: EnvBase, transform: AutoResetTransform, **kwargs: Any) -> None:
        super().__init__(base_env, transform, auto_unwrap=False, **kwargs)

    def insert_transform(self, index: int, transform: Any) -> TransformedEnv:
        """Add a transform, or a callable, before the one at ``index``, which may not be the first.

        Returns:
            The env itself.
        """
        if index in (0, -len(self._as_compose())):
            raise ArgumentError(
                f"AutoResetEnv.insert_transform: index {index} is before the AutoResetTransform, which comes first"
            )
        return super().insert_transform(index, transform)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        begun = None if tensordict is None or kwargs else self._take_begun(tensordict)
        return super()._reset(tensordict, **kwargs) if begun is None else begun

    def _take_begun(self, td: TensorDictBase) -> TensorDictBase | None:
        """What a reset returns if the env has begun all episodes that it asks for; None if it has not."""
        sorter, *later = self.transform if isinstance(self.transform, Compose) else (self.transform,)
        masks = [
            (level.path, mask) for level in self._plan().deciding if (mask := td.get(level.reset_key, None)) is not None
        ]
        begun: TensorDictBase | None = sorter.take_begun(masks)
        if begun is None:
            return None
        self._base._plan().complete_done(begun)
        for link in later:
            begun = link._reset(td, begun)
        return begun
