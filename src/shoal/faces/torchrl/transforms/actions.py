"""ActionDiscretizer: discrete actions for an env with continuous ones."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError, StateError, WrongType
from shoal.faces.torchrl.specs import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot
from shoal.faces.torchrl.transforms.base import Transform

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.specs import TensorSpec


class Sampling(IntEnum):
    """Which value of its interval an action stands for."""

    MEDIAN = 0
    LOW = 1
    HIGH = 2
    RANDOM = 3


_PLACES = {Sampling.MEDIAN: 0.5, Sampling.LOW: 0.0, Sampling.HIGH: 1.0}


class ActionDiscretizer(Transform):
    """Divides the range of each element of an action into intervals, and lets callers choose among them.

    Args:
        num_intervals: How many intervals, for all elements or for each one.
        action_key: The action of the env.
        out_action_key: Where callers write theirs; the same by default. If it is another one, a step puts the action of
            the env beside it, and the state spec declares that; a batched env around such envs does not pass it on.
        sampling: Which value of its interval an action stands for, ``SamplingStrategy.MEDIAN`` by default.
        categorical: Whether actions are integers; one-hot vectors otherwise.

    Example:
        >>> import torch
        >>> from shoal.faces.torchrl import ActionDiscretizer, GymEnv
        >>> env = GymEnv("Pendulum-v1").append_transform(ActionDiscretizer(4))
        >>> env.action_spec.rand().dtype
        torch.int64
    """

    SamplingStrategy = Sampling

    def __init__(
        self,
        num_intervals: int | torch.Tensor,
        action_key: NestedKey = "action",
        out_action_key: NestedKey | None = None,
        sampling: Sampling | None = None,
        categorical: bool = True,
    ) -> None:
        written = action_key if out_action_key is None else out_action_key
        super().__init__(in_keys_inv=[action_key], out_keys_inv=[written])
        if int(torch.as_tensor(num_intervals).min()) < 1:
            raise ArgumentError(f"ActionDiscretizer: at least one interval is needed, got {num_intervals}")
        self.num_intervals = num_intervals
        self.action_key = action_key
        self.out_action_key = written
        self.sampling = Sampling.MEDIAN if sampling is None else Sampling(sampling)
        self.categorical = categorical
        self.__dict__["_range"] = None
        self.__dict__["_taken"] = None

    _taken: torch.Tensor | None

    def empty_cache(self) -> None:
        """Forget the range of the env's action."""
        super().empty_cache()
        self.__dict__["_range"] = None

    def _counts(self, leaf: TensorSpec) -> torch.Tensor:
        counts = torch.as_tensor(self.num_intervals, dtype=torch.int64, device=leaf.device)
        width = leaf.shape[-1] if leaf.shape else 1
        if counts.ndim and counts.shape != (width,):
            raise ArgumentError(
                f"ActionDiscretizer: {counts.numel()} num_intervals, and the last dim of {self.action_key!r} is {width}"
            )
        return counts.expand(width) if leaf.shape else counts.reshape(())

    def _checked(self, leaf: Any) -> Bounded:
        if not isinstance(leaf, Bounded) or not bool(leaf.low.isfinite().all() and leaf.high.isfinite().all()):
            raise WrongType(
                f"ActionDiscretizer: {self.action_key!r} is {type(leaf).__name__}; only a bounded range can be divided"
            )
        return leaf

    def _known(self) -> tuple[Bounded, torch.Tensor]:
        own = self.__dict__
        if own["_range"] is None:
            parent = self._lower
            if parent is None:
                raise StateError("ActionDiscretizer needs the range of an env's action: put it into a TransformedEnv")
            leaf = self._checked(parent.full_action_spec[self.action_key])
            own["_range"] = leaf, self._counts(leaf)
        known: tuple[Bounded, torch.Tensor] = own["_range"]
        return known

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        leaf, counts = self._known()
        if not self.categorical:
            parts = value.split(counts.reshape(-1).tolist(), -1)
            value = torch.stack([part.long().argmax(-1) for part in parts], -1)
            value = value if leaf.shape else value.squeeze(-1)
        elif leaf.shape and value.ndim < len(leaf.shape):
            value = value.unsqueeze(-1)
        if self.sampling is Sampling.RANDOM:
            place: Any = torch.rand(value.shape, dtype=leaf.dtype, device=value.device)
        else:
            place = _PLACES[self.sampling]
        # The upper bound is met exactly, however the division rounds.
        part = (value.to(leaf.dtype) + place) / counts.to(leaf.dtype)
        return torch.lerp(leaf.low, leaf.high, part.clamp(max=1)).to(leaf.dtype)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = super()._inv_call(tensordict)
        self.__dict__["_taken"] = tensordict.get(self.action_key, None)
        return tensordict

    @property
    def recorded(self) -> dict[NestedKey, Any]:
        """The last action of the env, unless callers write theirs under the same key."""
        return {} if self.action_key == self.out_action_key else {self.action_key: self._taken}

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec with the transform in place, where an action that is recorded belongs to the state."""
        leaf = input_spec["full_action_spec"][self.action_key]
        input_spec = super().transform_input_spec(input_spec)
        for key in self.recorded:
            input_spec["full_state_spec"][key] = leaf
        return input_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec with the transform in place."""
        leaf = self._checked(action_spec[self.action_key])
        counts = self._counts(leaf)
        del action_spec[self.action_key]
        action_spec[self.out_action_key] = self._choices(leaf, counts)
        return action_spec

    def _choices(self, leaf: Bounded, counts: torch.Tensor) -> TensorSpec:
        if not self.categorical:
            width, numbers = int(counts.sum()), counts.reshape(-1).tolist()
            return MultiOneHot(numbers, shape=(*leaf.shape[:-1], width), device=leaf.device)
        if not leaf.shape:
            return Categorical(int(counts), shape=(), device=leaf.device)
        return MultiCategorical(counts, shape=leaf.shape, device=leaf.device, remove_singleton=False)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Do nothing: the transform changes only what goes into an env."""
        return tensordict
