"""Robots that run in a plane: cheetah, walker and hopper."""

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

_SETTLING = 200  # steps of the simulation before an episode of the cheetah begins
_STANDING = 1.2  # height of the walker's torso
_UPRIGHT = 0.6  # height of the hopper's torso above its foot
_XX, _XZ, _ZZ = 0, 2, 8  # indices in a rotation matrix


class Cheetah(NativeTask):
    """Runs as fast as it can, up to 10 m/s."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"run": {"speed": 10.0}}
    fields: tuple[str, ...] = ("sensordata",)

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Put limited joints anywhere within their limits, then let the robot settle.

        dm_control computes the first of these steps from the model's own pose, not from the one that was drawn: forces
        and speeds are those of a step from there.
        """
        errors = sim.run(sim.batch.step, ids)
        qpos, qvel = sim.array("qpos"), sim.array("qvel")
        model = self.compiled
        places = np.flatnonzero(model.jnt_limited)
        low, high = model.jnt_range[places].T
        for i in ids.tolist():
            qpos[i] = self.qpos0
            qpos[i, places] = sim.generators[i].uniform(low, high)
            qpos[i] += model.opt.timestep * qvel[i]
        errors.update(sim.settle(ids, _SETTLING - 1))
        return errors

    def observe(self, d: Sims) -> dict[str, Array]:
        """Positions, except for how far it has come, and speeds."""
        return {"position": d.qpos[:, 1:], "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """Speed."""
        speed = self.settings["speed"]
        return rewards.slope(d.sensordata[:, self.sensor("torso_subtreelinvel")][:, 0], speed, speed)


class Walker(NativeTask):
    """Stands, walks or runs."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "stand": {"speed": 0.0},
        "walk": {"speed": 1.0},
        "run": {"speed": 8.0},
    }
    frame_skip: int = 10
    fields: tuple[str, ...] = ("xmat", "xpos", "sensordata")

    def observe(self, d: Sims) -> dict[str, Array]:
        """The orientations of its parts, the height of the torso, and speeds."""
        turned = d.xmat[:, 1:, (_XX, _XZ)]
        return {
            "orientations": turned.reshape(len(turned), -1),
            "height": d.xpos[:, self.body_id("torso"), 2],
            "velocity": d.qvel,
        }

    def reward(self, d: Sims) -> Array:
        """Standing upright, times speed."""
        torso, speed = self.body_id("torso"), self.settings["speed"]
        standing = rewards.bell(d.xpos[:, torso, 2], _STANDING, np.inf, _STANDING / 2)
        reward: Array = (3 * standing + (1 + d.xmat[:, torso, _ZZ]) / 2) / 4
        if speed:
            ahead = d.sensordata[:, self.sensor("torso_subtreelinvel")][:, 0]
            reward = reward * (5 * rewards.slope(ahead, speed, speed / 2, 0.5) + 1) / 6
        return reward


class Hopper(NativeTask):
    """Stands on its leg, or hops."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"stand": {"speed": 0.0}, "hop": {"speed": 2.0}}
    frame_skip: int = 4
    fields: tuple[str, ...] = ("xipos", "sensordata")

    def observe(self, d: Sims) -> dict[str, Array]:
        """Positions, except for how far it has come, speeds, and the touch sensors of the foot."""
        felt = [d.sensordata[:, self.sensor(name)] for name in ("touch_toe", "touch_heel")]
        return {"position": d.qpos[:, 1:], "velocity": d.qvel, "touch": np.log1p(np.concatenate(felt, axis=1))}

    def reward(self, d: Sims) -> Array:
        """Standing, times speed or, if it is only to stand, times how little effort that takes."""
        height = d.xipos[:, self.body_id("torso"), 2] - d.xipos[:, self.body_id("foot"), 2]
        standing = rewards.within(height, _UPRIGHT, 2.0)
        speed = self.settings["speed"]
        if not speed:
            effort: Array = standing * (rewards.small(d.ctrl).mean(axis=1) + 4) / 5
            return effort
        ahead = d.sensordata[:, self.sensor("torso_subtreelinvel")][:, 0]
        reward: Array = standing * rewards.slope(ahead, speed, speed / 2, 0.5)
        return reward
