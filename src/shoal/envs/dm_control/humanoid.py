"""The humanoid, which stands, walks or runs."""

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
_LIMBS = ("left_hand", "left_foot", "right_hand", "right_foot")


class Humanoid(NativeTask):
    """A person. In ``run_pure_state`` all that is observed are positions and speeds."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "stand": {"speed": 0.0, "pure": False},
        "walk": {"speed": 1.0, "pure": False},
        "run": {"speed": 10.0, "pure": False},
        "run_pure_state": {"speed": 10.0, "pure": True},
    }
    frame_skip: int = 5
    fields: tuple[str, ...] = ("xmat", "xpos", "sensordata", "ncon")

    def start(self, rng: Any) -> tuple[Array, Array]:
        """Turned anyhow, and joints anywhere within their limits."""
        turned = rng.rand(4)
        qpos, qvel = super().start(rng)
        qpos[3:7] = turned / np.linalg.norm(turned)
        return qpos, qvel

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Nothing touches anything."""
        return self.begin_apart(sim, ids)

    def observe(self, d: Sims) -> dict[str, Array]:
        """Joints, the height of the head, hands and feet as the torso sees them, which way is up, and speeds."""
        if self.settings["pure"]:
            return {"position": d.qpos, "velocity": d.qvel}
        torso = self.body_id("torso")
        limbs = d.xpos[:, [self.body_id(limb) for limb in _LIMBS]] - d.xpos[:, torso, None]
        seen = limbs @ d.xmat[:, torso].reshape(-1, 3, 3)
        return {
            "joint_angles": d.qpos[:, 7:],
            "head_height": d.xpos[:, self.body_id("head"), 2],
            "extremities": seen.reshape(len(seen), -1),
            "torso_vertical": d.xmat[:, torso, _Z_ROW],
            "com_velocity": d.sensordata[:, self.sensor("torso_subtreelinvel")],
            "velocity": d.qvel,
        }

    def reward(self, d: Sims) -> Array:
        """Standing upright with little effort, and either staying there or moving on."""
        standing = rewards.bell(d.xpos[:, self.body_id("head"), 2], _STANDING, np.inf, _STANDING / 4)
        upright = rewards.slope(d.xmat[:, self.body_id("torso"), 8], 0.9, 1.9)
        easy = (4 + rewards.small(d.ctrl).mean(axis=1)) / 5
        along = d.sensordata[:, self.sensor("torso_subtreelinvel")][:, :2]
        speed = self.settings["speed"]
        if speed:
            moving = (5 * rewards.slope(np.linalg.norm(along, axis=1), speed, speed) + 1) / 6
        else:
            moving = rewards.bell(along, margin=2.0).mean(axis=1)
        reward: Array = easy * (standing * upright) * moving
        return reward
