"""What transforms share that write something beside the done flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import StateError
from shoal.faces.torchrl.specs import Composite
from shoal.faces.torchrl.transforms.base import Transform

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.done import DoneLevel
    from shoal.faces.torchrl.env_base import EnvBase


class LevelTransform(Transform):
    """A transform that has an entry beside every done flag that decides about resets."""

    @property
    def below(self) -> EnvBase:
        """The env below the transform."""
        parent = self._lower
        if parent is None:
            raise StateError(f"{type(self).__name__} needs an env: put it into a TransformedEnv")
        return parent

    @property
    def levels(self) -> list[DoneLevel]:
        """The levels of the env below whose done flags decide about resets: the root, where it has one."""
        return self.below._plan().deciding

    def lead(self, td: TensorDictBase) -> torch.Size:
        """The dims of data before those of the specs."""
        return self.below._plan().lead(td)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply it to data outside an env, where that has a meaning."""
        raise NotImplementedError(
            f"{type(self).__name__} follows an env from step to step: it has no meaning outside one"
        )


def make_levels(spec: Composite, level: DoneLevel) -> None:
    """Make the composites that a path goes through, with the batch dims that flags have before their last."""
    here = spec
    for name in level.path:
        if here.get(name, None) is None:
            here[name] = Composite(shape=level.shape[:-1], device=here.device)
        here = here[name]
