"""A finger next to a body that can spin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import mujoco
import numpy as np

from shoal.envs.dm_control.task import NativeTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.dm_control.sim import SuiteSim
    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array, Errors, Ids

_SPINNING = 15.0  # rad/s
_DAMPING = 0.03  # of the hinge, if the body is to spin
_SIDES = (0, 2)


class Finger(NativeTask):
    """Spins the body, or turns it until its tip is at a target that is new in every episode."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "spin": {"radius": None},
        "turn_easy": {"radius": 0.07},
        "turn_hard": {"radius": 0.03},
    }
    frame_skip: int = 2
    fields: tuple[str, ...] = ("sensordata", "ncon")

    def adjust(self, model: mujoco.MjModel) -> None:
        """Set how freely the body spins and hide the target, or set the size of the target."""
        radius = self.settings["radius"]
        if radius is None:
            model.joint("hinge").damping = _DAMPING
            model.site("target").rgba[3] = model.site("tip").rgba[3] = 0.0
        else:
            model.site("target").size[0] = radius

    def prepare(self, batch: Any) -> None:
        """Give every env a target of its own."""
        if self.settings["radius"] is not None:
            batch.expand("site_pos")

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Draw a target, if there is one, then joints anywhere such that nothing touches."""
        if self.settings["radius"] is not None:
            places = sim.own_model("site_pos")[:, self.id_of("site", "target")]
            (x, z), radius = self._circle
            for i in ids.tolist():
                angle = sim.generators[i].uniform(-np.pi, np.pi)
                places[i, 0], places[i, 2] = x + radius * np.sin(angle), z + radius * np.cos(angle)
        return self.begin_apart(sim, ids)

    @property
    def _circle(self) -> tuple[Array, float]:
        """The circle on which the tip moves, around the hinge."""
        model = self.compiled
        data = mujoco.MjData(model)
        mujoco.mj_kinematics(model, data)
        return data.xanchor[model.joint("hinge").id, _SIDES], float(model.geom("cap1").size.sum())

    def observe(self, d: Sims) -> dict[str, Array]:
        """The finger, the tip, speeds, touch; the target and the distance of the tip from it."""
        hinge = self._sensor(d, "spinner")[:, _SIDES]
        tip = self._sensor(d, "tip")[:, _SIDES] - hinge
        seen = {
            "position": np.concatenate((self._sensor(d, "proximal", "distal"), tip), axis=1),
            "velocity": self._sensor(d, "proximal_velocity", "distal_velocity", "hinge_velocity"),
            "touch": np.log1p(self._sensor(d, "touchtop", "touchbottom")),
        }
        if self.settings["radius"] is not None:
            seen["target_position"] = self._sensor(d, "target")[:, _SIDES] - hinge
            seen["dist_to_target"] = self._distance(d)
        return seen

    def reward(self, d: Sims) -> Array:
        """Whether the body spins fast enough, or the tip is inside the target."""
        if self.settings["radius"] is None:
            is_good = self._sensor(d, "hinge_velocity")[:, 0] <= -_SPINNING
        else:
            is_good = self._distance(d) <= 0
        reward: Array = is_good.astype(np.float64)
        return reward

    def _distance(self, d: Sims) -> Array:
        hinge = self._sensor(d, "spinner")[:, _SIDES]
        way = (self._sensor(d, "target")[:, _SIDES] - hinge) - (self._sensor(d, "tip")[:, _SIDES] - hinge)
        distance: Array = np.linalg.norm(way, axis=1) - self.settings["radius"]
        return distance

    def _sensor(self, d: Sims, *names: str) -> Array:
        return np.concatenate([d.sensordata[:, self.sensor(name)] for name in names], axis=1)
