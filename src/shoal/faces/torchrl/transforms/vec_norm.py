"""VecNorm: observations and rewards normalised to mean 0 and variance 1, by running statistics.

Each entry has a weight, a mean and a variance. New values count in full and everything before them a little less, by
``decay``; with ``decay=1`` all count the same. The very first value becomes 0.

The statistics are a TensorDict in the state of the transform. All envs of one `EnvCreator` share it, whichever process
they are in, and take turns to change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict, TensorDictBase

from shoal.adapters.shared_tensors import SharedTensors
from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import NestedKey, path_of
from shoal.faces.torchrl.env.masks import over
from shoal.faces.torchrl.specs import Unbounded
from shoal.faces.torchrl.transforms.affine import ObservationNorm
from shoal.faces.torchrl.transforms.base import put
from shoal.faces.torchrl.transforms.compose import Compose
from shoal.faces.torchrl.transforms.keyed import KeyTransform
from shoal.faces.torchrl.transforms.rows import reset_mask, step_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.specs import TensorSpec
    from shoal.faces.torchrl.transforms.base import Keys


class VecNormV2(KeyTransform):
    """Normalises entries to mean 0 and variance 1, by statistics of everything seen so far.

    Args:
        in_keys: The entries.
        out_keys: Where the results are written; in place by default.
        lock: Accepted for compatibility: shared statistics have a lock of their own.
        stateful: Must be True: the statistics are kept by the transform.
        decay: The factor by which the weight of earlier values shrinks with each step.
        eps: The smallest standard deviation to divide by.
        shared_data: Statistics to begin with; shared if they are mapped from files.
        reduce_batch_dims: Whether all rows of a batch share their statistics; otherwise each row has its own.

    Attributes:
        frozen: Whether the statistics stay as they are.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, VecNormV2
        >>> env = GymEnv("Pendulum-v1").append_transform(VecNormV2(["observation", "reward"], decay=0.99))
        >>> env.rollout(100)["next", "observation"].abs().max() < 10
        tensor(True)
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        *,
        lock: Any = None,
        stateful: bool = True,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shared_data: TensorDictBase | None = None,
        reduce_batch_dims: bool = False,
    ) -> None:
        super().__init__(in_keys=in_keys, out_keys=out_keys)
        if not 0 < decay <= 1:
            raise ArgumentError(f"{type(self).__name__}: decay must be above 0 and at most 1, got {decay}")
        if not stateful:
            raise ArgumentError(f"{type(self).__name__}: statistics are kept by the transform; stateful has to be True")
        self.decay = decay
        self.eps = eps
        self.reduce_batch_dims = reduce_batch_dims
        self.frozen = False
        self._least_scale = eps
        self.__dict__["_shapes"] = {}
        self.__dict__["_statistics"] = SharedTensors()
        if shared_data is not None:
            self._statistics.take(shared_data)

    _statistics: SharedTensors
    _shapes: dict[NestedKey, torch.Size]

    # -- data ---------------------------------------------------------------------------------------------------------

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = step_mask(tensordict)
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            self._normalise(next_tensordict, key, out, mask)
        return next_tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._step(next_tensordict, next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for key, out in zip(*self._keys_at_reset(), strict=True):
            self._normalise(tensordict_reset, key, out, reset_mask(tensordict, key))
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Update the statistics with data outside an env, and normalise it."""
        return self._call(tensordict)

    def _normalise(self, td: TensorDictBase, key: NestedKey, out: NestedKey, mask: torch.Tensor | None) -> None:
        value = td.get(key, None)
        if value is None:
            if not self.missing_tolerance:
                raise self._missing(key, td)
            return
        value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
        name = self._prepare(key, value, td.ndim)
        with self._statistics.locked() as tensors:
            statistics = tensors.get(name)
            if not self.frozen:
                _update(statistics, value, mask, self.decay)
            loc, scale = statistics.get("loc").clone(), self._scale_of(statistics)
        put(td, out, (value - loc) / scale)

    def _scale_of(self, statistics: TensorDictBase) -> torch.Tensor:
        scale: torch.Tensor = statistics.get("var").sqrt().clamp_min(self._least_scale)
        return scale

    def _prepare(self, key: NestedKey, value: torch.Tensor, lead: int) -> str:
        """The name of an entry's statistics, which are created when it is first seen."""
        name = ".".join(path_of(key))
        if self._statistics.tensors.get(name, None) is None:
            shape = self._shape_of(key, value, lead)
            kind = {"dtype": value.dtype, "device": value.device}
            weight = torch.zeros(shape[: self._kept_dims()] + (1,) * (len(shape) - self._kept_dims()), **kind)
            made = {"loc": torch.zeros(shape, **kind), "var": torch.zeros(shape, **kind), "count": weight}
            self._statistics.tensors.set(name, TensorDict(made, []))
        return name

    def _kept_dims(self) -> int:
        parent = self._lower
        return 0 if self.reduce_batch_dims or parent is None else len(parent.batch_size)

    def _shape_of(self, key: NestedKey, value: torch.Tensor, lead: int) -> torch.Size:
        if key in self._shapes:
            return self._shapes[key]
        return torch.Size((*value.shape[: self._kept_dims()], *value.shape[lead:]))

    # -- statistics ---------------------------------------------------------------------------------------------------

    def freeze(self) -> Self:
        """Stop updating the statistics."""
        self.frozen = True
        return self

    def unfreeze(self) -> Self:
        """Update the statistics again."""
        self.frozen = False
        return self

    def frozen_copy(self) -> Self:
        """A copy that shares the statistics, which others may change, but never changes them itself."""
        return self.clone().freeze()

    @property
    def initialized(self) -> bool:
        """Whether anything has been seen."""
        return not self._statistics.tensors.is_empty()

    @property
    def standard_normal(self) -> bool:
        """Always True: ``loc`` and ``scale`` are a mean and a standard deviation."""
        return True

    @property
    def loc(self) -> TensorDictBase:
        """The mean of each entry."""
        return self._each(lambda statistics: statistics.get("loc").clone())

    @property
    def scale(self) -> TensorDictBase:
        """The standard deviation of each entry."""
        return self._each(self._scale_of)

    def _each(self, read: Any) -> TensorDictBase:
        out = TensorDict({}, [])
        with self._statistics.locked() as tensors:
            for key in self.in_keys:
                statistics = tensors.get(".".join(path_of(key)), None)
                if statistics is not None:
                    out.set(key, read(statistics))
        return out

    def denorm(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Undo the normalisation of data, by the current statistics."""
        loc, scale = self.loc, self.scale
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = tensordict.get(out, None)
            if value is not None and loc.get(key, None) is not None:
                tensordict.set(key, value * scale.get(key) + loc.get(key))
        return tensordict

    def to_observation_norm(self) -> Compose | ObservationNorm:
        """The same normalisation, with the statistics fixed at their current values."""
        loc, scale = self.loc, self.scale
        made = [
            ObservationNorm(loc.get(key), scale.get(key), [key], [out], standard_normal=True, eps=self.eps)
            for key, out in zip(self.in_keys, self.out_keys, strict=True)
            if loc.get(key, None) is not None
        ]
        return made[0] if len(made) == 1 else Compose(*made)

    def get_extra_state(self) -> Any:
        """The statistics."""
        return self._statistics.tensors

    def set_extra_state(self, state: Any) -> None:
        """Adopt statistics: the tensors themselves if they are mapped from files, otherwise their values."""
        self._statistics.take(state)

    # -- specs --------------------------------------------------------------------------------------------------------

    def _apply_to_spec(self, leaf: TensorSpec) -> TensorSpec:
        dtype = leaf.dtype if leaf.dtype is not None and leaf.dtype.is_floating_point else torch.get_default_dtype()
        return Unbounded(leaf.shape, dtype=dtype, device=leaf.device)


def _update(statistics: TensorDictBase, value: torch.Tensor, mask: torch.Tensor | None, decay: float) -> None:
    """Update the statistics with values, in place."""
    loc, var, count = (statistics.get(name) for name in ("loc", "var", "count"))
    value = value.detach()
    shared = tuple(range(value.ndim - loc.ndim))  # dims of rows that share their statistics
    seen = torch.ones_like(value) if mask is None else over(mask, value).expand(value.shape).to(value.dtype)
    number = seen.sum(shared) if shared else seen
    mean = ((value * seen).sum(shared) if shared else value) / number.clamp_min(1)
    spread = ((value - mean) ** 2 * seen).sum(shared) if shared else torch.zeros_like(value)
    news = number > 0
    before = count * decay
    after = before + number
    change = torch.where(news, mean - loc, 0.0)
    share = number / after.clamp_min(torch.finfo(after.dtype).tiny)
    total = before * var + spread + change**2 * before * share
    var.copy_(torch.where(news, total / after.clamp_min(torch.finfo(after.dtype).tiny), var))
    loc.add_(change * share)
    weight = torch.where(news, after, count.expand(after.shape))
    count.copy_(_in_shape(weight, count.shape))


def _in_shape(weight: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A weight reduced to this shape: it is the same all along the dims of a value, so one element is enough."""
    for dim, size in enumerate(shape):
        weight = weight.narrow(dim, 0, size)
    return weight


class VecNorm(VecNormV2):
    """Normalises entries to mean 0 and variance 1, by statistics of all rows seen so far.

    Args:
        in_keys: The entries, ``"observation"`` and ``"reward"`` by default.
        out_keys: Where the results are written; in place by default.
        shared_td: Statistics to begin with; shared if they are mapped from files.
        lock: Accepted for compatibility: shared statistics have a lock of their own.
        decay: The factor by which the weight of earlier values shrinks with each step.
        eps: The smallest variance; with ``new_api``, the smallest standard deviation to divide by.
        shapes: The shape of each entry's statistics, if that is not the shape of one row.
        new_api: Whether it is to be like `VecNormV2`, with statistics for each row of a batch.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, VecNorm
        >>> env = GymEnv("CartPole-v1").append_transform(VecNorm(["observation"]))
        >>> env.reset()["observation"]
        tensor([0., 0., 0., 0.])
    """

    def __init__(
        self,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        shared_td: TensorDictBase | None = None,
        lock: Any = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shapes: Sequence[Any] | None = None,
        new_api: bool | None = None,
    ) -> None:
        super().__init__(
            ["observation", "reward"] if in_keys is None else in_keys,
            out_keys,
            lock=lock,
            decay=decay,
            eps=eps,
            shared_data=shared_td,
            reduce_batch_dims=not new_api,
        )
        if not new_api:
            self._least_scale = eps**0.5
        if shapes is not None:
            if len(shapes) != len(self.in_keys):
                raise ArgumentError(f"VecNorm: {len(shapes)} shapes for {len(self.in_keys)} in_keys")
            self._shapes.update(zip(self.in_keys, map(torch.Size, shapes), strict=True))
