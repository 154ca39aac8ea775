"""The base of transforms that write something beside the done flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import StateError
from shoal.faces.torchrl.env.keys import NestedKey, key_of
from shoal.faces.torchrl.transforms.base import Transform
from shoal.faces.torchrl.transforms.declaring import declare, specs_of

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.done import DoneLevel
    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import Composite, TensorSpec


class LevelTransform(Transform):
    """A transform that writes an entry beside every done flag that decides on resets."""

    @property
    def below(self) -> EnvBase:
        """The env below the transform."""
        parent = self._lower
        if parent is None:
            raise StateError(f"{type(self).__name__} needs an env: put it into a TransformedEnv")
        return parent

    @property
    def levels(self) -> list[DoneLevel]:
        """The levels of the env below whose done flags decide on resets: the root alone, if it has any."""
        return self.below._plan().deciding

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Where the masks of partial resets are."""
        return [level.reset_key for level in self.levels]

    def _beside_flags(self, name: str) -> list[NestedKey]:
        """The keys of a name beside every done flag that decides on resets."""
        return [key_of((*level.path, name)) for level in self.levels]

    def _declare_beside(self, spec: Composite, level: DoneLevel, name: str, leaf: TensorSpec) -> None:
        """Put a leaf into a spec, beside the flags of a level."""
        declare(spec, key_of((*level.path, name)), leaf, *specs_of(self.below))

    def lead(self, td: TensorDictBase) -> torch.Size:
        """The dims that data has before those of the specs."""
        return self.below._plan().lead(td)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse: the transform has no meaning outside an env."""
        raise NotImplementedError(
            f"{type(self).__name__} follows an env from step to step: it has no meaning outside one"
        )
