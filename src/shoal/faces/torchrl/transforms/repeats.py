"""Transforms that take steps of their own: FrameSkipTransform and NoopResetEnv."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.errors import ArgumentError, StateError, TensorEnvError
from shoal.faces.torchrl.transforms.base import Transform
from shoal.faces.torchrl.transforms.rows import rows_ended, rows_reset, step_mask

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env_base import EnvBase

_TRIALS = 10


class _Repeating(Transform):
    changes_actions = False

    @property
    def _below(self) -> EnvBase:
        parent = self._lower
        if parent is None:
            raise StateError(f"{type(self).__name__} makes steps of its own: put it into a TransformedEnv")
        return parent

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse: the transform has no meaning outside an env."""
        raise NotImplementedError(f"{type(self).__name__} makes steps of an env: it has no meaning outside one")


class FrameSkipTransform(_Repeating):
    """Repeats every action and adds up the rewards; an episode that ends on the way stays at its end.

    Args:
        frame_skip: How many steps of the env make up one step.

    Example:
        >>> from shoal.faces.torchrl import FrameSkipTransform, GymEnv
        >>> env = GymEnv("CartPole-v1").append_transform(FrameSkipTransform(3))
        >>> env.rollout(2)["next", "reward"].flatten().tolist()
        [3.0, 3.0]
    """

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        if frame_skip < 1:
            raise ArgumentError(f"FrameSkipTransform: frame_skip must be at least 1, got {frame_skip}")
        self.frame_skip = frame_skip
        self.__dict__["_asked"] = None

    _asked: TensorDictBase | None

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        # What is repeated is what the env below is given, before the transforms in it change it.
        self.__dict__["_asked"] = tensordict.copy()
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        asked, below = self._asked, self._below
        self.__dict__["_asked"] = None
        if asked is None:
            raise StateError("FrameSkipTransform: a step came out of the env that did not go into it")
        running = step_mask(asked)
        sums = {key: next_tensordict.get(key) for key in below.reward_keys}
        for _ in range(self.frame_skip - 1):
            ended = rows_ended(next_tensordict, below._plan())
            running = ~ended if running is None else running & ~ended
            if not running.any():
                break
            root = below.step_mdp(asked.copy().set("next", next_tensordict))
            if not running.all():
                root.set("_step", running)
            next_tensordict = below.step(root).get("next")
            sums = {key: total + next_tensordict.get(key) for key, total in sums.items()}
        for key, total in sums.items():
            next_tensordict.set(key, total)
        return next_tensordict


class NoopResetEnv(_Repeating):
    """Takes some random steps at the beginning of every episode.

    An episode that ends on the way is restarted.

    Args:
        noops: How many steps at most.
        random: Whether their number is drawn from 0 to ``noops``; otherwise it is always ``noops``.

    Raises:
        TensorEnvError: Episodes kept ending before that many steps.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, NoopResetEnv, StepCounter
        >>> env = GymEnv("Pendulum-v1").append_transform(StepCounter()).append_transform(NoopResetEnv(5, random=False))
        >>> env.reset()["step_count"]
        tensor([5])
    """

    def __init__(self, noops: int = 30, random: bool = True) -> None:
        super().__init__()
        if noops < 0:
            raise ArgumentError(f"NoopResetEnv: noops must be at least 0, got {noops}")
        self.noops = noops
        self.random = random

    def _draw(self, like: torch.Tensor) -> torch.Tensor:
        """How many steps each row has to take."""
        if self.random:
            return torch.randint(0, self.noops + 1, like.shape, device=like.device)
        return torch.full(like.shape, self.noops, device=like.device)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        below = self._below
        plan = below._plan()
        rows = rows_reset(tensordict, tensordict_reset, plan)
        wanted = self._draw(rows) * rows
        left, trials = wanted.clone(), torch.zeros_like(wanted)
        keys = list(tensordict_reset.keys())
        root = tensordict_reset
        while (left > 0).any():
            active = left > 0
            root = below.rand_action(root.copy())
            if not active.all():
                root.set("_step", active)
            root = below.step_mdp(below.step(root))
            left = left - active.long()
            ended = rows_ended(root, plan) & active
            if ended.any():
                trials = trials + ended.long()
                if int(trials.max()) >= _TRIALS:
                    raise TensorEnvError(
                        f"NoopResetEnv: episodes of {type(below).__name__} ended {_TRIALS} times before "
                        f"{int(wanted.max())} random steps were made; take fewer noops"
                    )
                root = _begun_anew(below, root, ended)
                left = torch.where(ended, wanted, left)
        return root.select(*keys)


def _begun_anew(below: EnvBase, root: TensorDictBase, ended: torch.Tensor) -> TensorDictBase:
    """The data with some rows reset."""
    for level in below._plan().deciding:
        shape = (*below._plan().lead(root), *level.shape)
        root.set(level.reset_key, ended.reshape(*ended.shape, *(1,) * (len(shape) - ended.ndim)).expand(shape).clone())
    return below.reset(root)
