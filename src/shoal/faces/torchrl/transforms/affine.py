"""RewardScaling and ObservationNorm: values times a scale plus a location."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError, StateError
from shoal.faces.torchrl.transforms.base import Transform, WrongArgument
from shoal.faces.torchrl.transforms.keyed import KeyTransform, bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.specs import TensorSpec
    from shoal.faces.torchrl.transforms.base import Keys


class Affine(KeyTransform):
    """``x * scale + loc``, or ``(x - loc) / scale``.

    Attributes:
        loc: The location, None while it is not known.
        scale: The scale.
        standard_normal: Whether the two are a mean and a standard deviation, and the second formula applies.
        eps: The smallest number to divide by.
    """

    loc: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(
        self, loc: Any | None, scale: Any | None, standard_normal: bool, eps: float | None = None, **keys: Any
    ) -> None:
        super().__init__(**keys)
        self.standard_normal = standard_normal
        self.register_buffer("loc", _as_float(loc))
        self.register_buffer("scale", _as_float(scale))
        self.eps = torch.finfo(torch.get_default_dtype()).eps if eps is None else eps

    @property
    def initialized(self) -> bool:
        """Whether location and scale are known."""
        return self.loc is not None and self.scale is not None

    def _known(self) -> tuple[torch.Tensor, torch.Tensor]:
        buffers = self._buffers
        loc, scale = buffers["loc"], buffers["scale"]
        if loc is None or scale is None:
            raise StateError(
                f"{type(self).__name__} has no loc and scale yet: give them to the constructor, or call init_stats"
            )
        return loc, scale

    def _outwards(self, value: torch.Tensor) -> torch.Tensor:
        loc, scale = self._known()
        return (value - loc) / self._divisor(scale) if self.standard_normal else value * scale + loc

    def _inwards(self, value: torch.Tensor) -> torch.Tensor:
        loc, scale = self._known()
        return value * self._divisor(scale) + loc if self.standard_normal else (value - loc) / scale

    def _divisor(self, scale: torch.Tensor) -> torch.Tensor:
        return scale.clamp_min(self.eps)

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return self._outwards(value)

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return self._inwards(value)

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return bounded(leaf, self._outwards)

    def _inv_apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        return bounded(leaf, self._outwards)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}standard_normal"] = torch.tensor(self.standard_normal)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        # Which formula applies is part of the state, but no buffer: it is read with every step.
        self.standard_normal = bool(state_dict.pop(f"{prefix}standard_normal", self.standard_normal))
        for name in ("loc", "scale"):
            given = state_dict.get(f"{prefix}{name}")
            mine = self._buffers[name]
            if given is not None and (mine is None or mine.shape != given.shape):
                self._buffers[name] = torch.empty_like(given)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _as_float(value: Any | None) -> torch.Tensor | None:
    if value is None:
        return None
    tensor = torch.as_tensor(value)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


class RewardScaling(Affine):
    """Rewards times a scale plus a location.

    Args:
        loc: The location.
        scale: The scale.
        in_keys: The rewards, ``"reward"`` by default.
        out_keys: Where the results are written; in place by default.
        standard_normal: Whether the reward becomes ``(reward - loc) / scale`` instead.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, RewardScaling
        >>> env = GymEnv("CartPole-v1").append_transform(RewardScaling(0.5, 2.0))
        >>> env.rollout(2)["next", "reward"].flatten().tolist()
        [2.5, 2.5]
    """

    def __init__(
        self,
        loc: Any,
        scale: Any,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(
            loc, scale, standard_normal, in_keys=["reward"] if in_keys is None else in_keys, out_keys=out_keys
        )


class ObservationNorm(Affine):
    """Observations times a scale plus a location, the same for all keys.

    Args:
        loc: The location; `init_stats` finds one if none is given.
        scale: The scale.
        in_keys: The observations, which have to be named.
        out_keys: Where the results are written; in place by default.
        in_keys_inv: What the env reads on its own scale and callers write on that of the results, such as actions.
        out_keys_inv: Where callers write it; ``in_keys_inv`` by default.
        standard_normal: Whether an observation becomes ``(observation - loc) / scale`` instead.
        eps: The smallest number to divide by then.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, ObservationNorm
        >>> env = GymEnv("Pendulum-v1").append_transform(ObservationNorm(in_keys=["observation"]))
        >>> env.transform.init_stats(100)
        >>> env.transform.loc.shape
        torch.Size([3])
    """

    def __init__(
        self,
        loc: Any | None = None,
        scale: Any | None = None,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        standard_normal: bool = False,
        eps: float | None = None,
    ) -> None:
        if (loc is None) != (scale is None):
            raise ArgumentError("ObservationNorm: give both loc and scale, or none of them")
        if in_keys is None:
            raise WrongArgument("ObservationNorm: give in_keys, the observations to change; [] for none")
        super().__init__(
            loc,
            scale,
            standard_normal,
            eps,
            in_keys=in_keys,
            out_keys=out_keys,
            in_keys_inv=in_keys_inv,
            out_keys_inv=out_keys_inv,
        )

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | Sequence[int] = 0,
        cat_dim: int | None = None,
        key: NestedKey | None = None,
        keep_dims: Sequence[int] | None = None,
    ) -> None:
        """Find the location and the scale that make the observations of random steps standard normal.

        Args:
            num_iter: How many steps to take with the env below.
            reduce_dim: The dims of the rollout to average over: its batch dims, the last of which is time, and then
                those of the observation.
            cat_dim: One of these dims. It makes no difference, as the rollout is in one piece.
            key: The observation to use, which may be left out if there is only one.
            keep_dims: Those of ``reduce_dim`` that the results keep, with size 1.

        Raises:
            StateError: Location and scale are already known, or there is no env.
            ArgumentError: There are several observations, and no ``key`` says which to use.
        """
        if self.initialized:
            raise StateError("ObservationNorm.init_stats: loc and scale are known already")
        parent = self._lower
        if parent is None:
            raise StateError("ObservationNorm.init_stats needs an env: put the transform into a TransformedEnv first")
        dims = [reduce_dim] if isinstance(reduce_dim, int) else list(reduce_dim)
        if cat_dim is not None and cat_dim not in dims:
            raise ArgumentError(f"ObservationNorm.init_stats: cat_dim {cat_dim} is not among reduce_dim {dims}")
        if key is None and len(self.in_keys) > 1:
            raise WrongArgument(f"ObservationNorm.init_stats: key must be one of {self.in_keys}, as there are several")
        name = self.in_keys[0] if key is None else key
        data = parent.rollout(num_iter, break_when_any_done=False).get(name)
        data = data if data.is_floating_point() else data.to(torch.get_default_dtype())
        places = sorted(dim % data.ndim for dim in dims)
        kept = {dim % data.ndim for dim in keep_dims or ()}
        mean, std = data.mean(places, keepdim=True), data.std(places, keepdim=True).nan_to_num(0.0)
        dropped = tuple(dim for dim in places if dim not in kept)
        mean, std = mean.squeeze(dropped), std.squeeze(dropped).clamp_min(self.eps)
        self.loc, self.scale = (mean, std) if self.standard_normal else (-mean / std, 1 / std)
        self._specs_changed()

    def _specs_changed(self) -> None:
        """Make the chains and the env around the transform recompute their specs."""
        holder = self._holder
        while isinstance(holder, Transform):
            holder.empty_cache()
            holder = holder._holder
        if holder is not None:
            holder.empty_cache()
