"""ConditionalSkip: skips the steps of an env on a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.transforms.base import Transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase


class ConditionalSkip(Transform):
    """Skips the step where a condition holds: the env is not stepped, observations stay, the reward is 0.

    All transforms of the same `TransformedEnv` are skipped with it. Those of an outer one
    (``TransformedEnv(env, ..., auto_unwrap=False)``) see the skipped step like any other.

    Args:
        cond: Maps the data given to ``step`` to a bool, or to one per row: True to skip.

    Example:
        >>> from shoal.faces.torchrl import ConditionalSkip, GymEnv
        >>> env = GymEnv("CartPole-v1").append_transform(ConditionalSkip(lambda td: True))
        >>> env.rollout(3)["next", "reward"].flatten().tolist()
        [0.0, 0.0, 0.0]
    """

    def __init__(self, cond: Callable[[TensorDictBase], bool | torch.Tensor]) -> None:
        super().__init__()
        self.cond: Any = cond

    changes_actions = False

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        skip = torch.as_tensor(self.cond(tensordict), dtype=torch.bool, device=tensordict.device)
        if skip.shape != tensordict.batch_size:
            is_per_row = skip.numel() == tensordict.batch_size.numel()
            skip = skip.reshape(tensordict.batch_size if is_per_row else ()).expand(tensordict.batch_size)
        before = tensordict.get("_step", None)
        return tensordict.set("_step", ~skip if before is None else before.reshape(skip.shape) & ~skip)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse: the transform has no meaning outside an env."""
        raise NotImplementedError("ConditionalSkip decides about the steps of an env: it has no meaning outside one")
