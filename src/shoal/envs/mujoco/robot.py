"""What Gymnasium's robots have in common: two versions, noise at the start, a cost for every action.

Each robot says where its versions differ. In both, numbers are computed in Gymnasium's order and precision, so that the
same seed and actions give the same episode: actions are float32, and so is their cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.mujoco.env import MujocoEnv
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.native import Array

FLOAT = np.float64


class Robot(MujocoEnv):
    """One of Gymnasium's robots.

    Args:
        version: 4 or 5, as in the id.
        xml_file: The model.
        **options: The options of ``MujocoEnv``.

    Attributes:
        version: 4 or 5.
        models: The model of each version, if they differ.
    """

    depth_in_metres: ClassVar[bool] = False
    models: ClassVar[Mapping[int, str]] = {}

    def __init__(self, *, version: int = 5, xml_file: Any = None, **options: Any) -> None:
        if version not in (4, 5):
            raise ArgumentError(f"{type(self).__name__}: version: expected 4 or 5, got {version!r}")
        self.version = version
        super().__init__(xml_file=self.models.get(version) if xml_file is None else xml_file, **options)

    @classmethod
    def settled_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The model of the version."""
        return {"xml_file": cls.models.get(options["version"])}

    def _tell(self, at_reset: tuple[str, ...], at_step: tuple[str, ...]) -> None:
        """Declare the info fields; in version 4, a reset has none."""
        told = dict.fromkeys((*at_reset, *at_step), FLOAT)
        if self.version == 4:
            self.info, self.step_info = {}, told
        else:
            self.info, self.step_info = {name: told.pop(name) for name in at_reset}, told

    def noisy_start(
        self, rng: np.random.Generator, scale: float, *, normal_speeds: bool = False
    ) -> tuple[Array, Array]:
        """Initial positions with uniform noise, and speeds with uniform or normal noise."""
        qpos = self.qpos0 + rng.uniform(low=-scale, high=scale, size=self.nq)
        if normal_speeds:
            return qpos, self.qvel0 + scale * rng.standard_normal(self.nv)
        return qpos, self.qvel0 + rng.uniform(low=-scale, high=scale, size=self.nv)


def square_sum(rows: Array) -> Array:
    """The sum of squares of each row."""
    total: Array = np.add.reduce(np.square(rows), axis=1)
    return total


def norm(rows: Array) -> Array:
    """The length of each row."""
    length: Array = np.sqrt(np.add.reduce(rows * rows, axis=1))
    return length


# numpy's own functions take several times as long to reach the same ufuncs, which matters when there are few envs.


def clip(rows: Array, low: float, high: float) -> Array:
    """Every number, clipped to the range."""
    clipped: Array = np.minimum(np.maximum(rows, low), high)
    return clipped


def all_finite(*parts: Array) -> Array:
    """For each row, whether all its numbers are finite, in all of these arrays."""
    finite: Array = np.logical_and.reduce(np.isfinite(parts[0]), axis=1)
    for part in parts[1:]:
        finite = finite & np.logical_and.reduce(np.isfinite(part), axis=1)
    return finite


def interval(name: str, bounds: Any) -> tuple[float, float]:
    """A pair of bounds.

    Raises:
        ArgumentError: If it is not a pair.
    """
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}: expected (low, high), got {bounds!r}") from None
    return low, high
