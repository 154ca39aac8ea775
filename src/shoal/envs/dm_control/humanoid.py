"""The humanoids, which stand, walk or run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.dm_control import rewards
from shoal.envs.dm_control.task import NativeTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.dm_control.sim import SuiteSim
    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array, Errors, Ids

_STANDING = 1.4  # height of the head
_Z_ROW = slice(6, 9)  # of a rotation matrix
_ZY, _ZZ = 7, 8


class Humanoid(NativeTask):
    """A person. In ``run_pure_state`` only positions and speeds are observed.

    Attributes:
        trunk: The body that is to be upright.
        limbs: Hands and feet.
        up: The element of the trunk's rotation matrix that says how upright it is.
    """

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "stand": {"speed": 0.0, "pure": False},
        "walk": {"speed": 1.0, "pure": False},
        "run": {"speed": 10.0, "pure": False},
        "run_pure_state": {"speed": 10.0, "pure": True},
    }
    frame_skip: int = 5
    fields: tuple[str, ...] = ("xmat", "xpos", "sensordata", "ncon")
    trunk: ClassVar[str] = "torso"
    limbs: ClassVar[tuple[str, ...]] = ("left_hand", "left_foot", "right_hand", "right_foot")
    up: ClassVar[int] = _ZZ

    def start(self, rng: Any) -> tuple[Array, Array]:
        """A random orientation, and joints anywhere within their limits."""
        turned = rng.rand(4)
        qpos, qvel = super().start(rng)
        qpos[3:7] = turned / np.linalg.norm(turned)
        return qpos, qvel

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Begin episodes such that nothing touches anything."""
        return self.begin_apart(sim, ids)

    def observe(self, d: Sims) -> dict[str, Array]:
        """Joints, the height of the head, hands and feet in the torso's frame, which way is up, and speeds."""
        if self.settings["pure"]:
            return {"position": d.qpos, "velocity": d.qvel}
        trunk = self.body_id(self.trunk)
        limbs = d.xpos[:, [self.body_id(limb) for limb in self.limbs]] - d.xpos[:, trunk, None]
        seen = limbs @ d.xmat[:, trunk].reshape(-1, 3, 3)
        return {
            "joint_angles": d.qpos[:, 7:],
            "head_height": d.xpos[:, self.body_id("head"), 2],
            "extremities": seen.reshape(len(seen), -1),
            "torso_vertical": d.xmat[:, trunk, _Z_ROW],
            "com_velocity": d.sensordata[:, self.sensor(f"{self.trunk}_subtreelinvel")],
            "velocity": d.qvel,
        }

    def reward(self, d: Sims) -> Array:
        """Standing upright with little effort, and either standing still or moving at the task's speed."""
        standing = rewards.bell(d.xpos[:, self.body_id("head"), 2], _STANDING, np.inf, _STANDING / 4)
        upright = rewards.slope(d.xmat[:, self.body_id(self.trunk), self.up], 0.9, 1.9)
        easy = (4 + rewards.small(d.ctrl).mean(axis=1)) / 5
        along = d.sensordata[:, self.sensor(f"{self.trunk}_subtreelinvel")][:, :2]
        speed = self.settings["speed"]
        if speed:
            moving = (5 * rewards.slope(np.linalg.norm(along, axis=1), speed, speed) + 1) / 6
        else:
            moving = rewards.bell(along, margin=2.0).mean(axis=1)
        reward: Array = easy * (standing * upright) * moving
        return reward


class HumanoidCMU(Humanoid):
    """A person with more joints."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: settings for name, settings in Humanoid.tasks.items() if not settings["pure"]
    }
    frame_skip: int = 10
    trunk: ClassVar[str] = "thorax"
    limbs: ClassVar[tuple[str, ...]] = ("lhand", "lfoot", "rhand", "rfoot")
    up: ClassVar[int] = _ZY
