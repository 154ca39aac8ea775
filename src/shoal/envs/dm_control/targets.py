"""Tasks of getting something to a target: reacher, point_mass, ball_in_cup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.dm_control import rewards
from shoal.envs.dm_control.task import NativeTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    import mujoco

    from shoal.envs.dm_control.sim import SuiteSim
    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array, Errors, Ids

_PARALLEL = 0.9  # directions whose cosine is above this are too similar


class Reacher(NativeTask):
    """Reaches with a finger for a target that is new in every episode."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"easy": {"radius": 0.05}, "hard": {"radius": 0.015}}
    fields: tuple[str, ...] = ("geom_xpos",)

    def adjust(self, model: mujoco.MjModel) -> None:
        """Set the size of the target."""
        model.geom("target").size[0] = self.settings["radius"]

    def prepare(self, batch: Any) -> None:
        """Give every env a target of its own."""
        batch.expand("geom_pos")

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Draw the joints, then the target."""
        places = sim.own_model("geom_pos")[:, self.id_of("geom", "target")]
        super().begin(sim, ids)
        for i in ids.tolist():
            rng = sim.generators[i]
            angle, radius = rng.uniform(0, 2 * np.pi), rng.uniform(0.05, 0.20)
            places[i, :2] = radius * np.sin(angle), radius * np.cos(angle)
        return {}

    def observe(self, d: Sims) -> dict[str, Array]:
        """Positions, the vector to the target, and speeds."""
        return {"position": d.qpos, "to_target": self._way(d), "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """Whether the finger touches the target."""
        sizes = self.compiled.geom_size[:, 0]
        radii = float(sizes[self.id_of("geom", "target")] + sizes[self.id_of("geom", "finger")])
        return rewards.within(np.linalg.norm(self._way(d), axis=1), 0.0, radii)

    def _way(self, d: Sims) -> Array:
        way: Array = d.geom_xpos[:, self.id_of("geom", "target"), :2] - d.geom_xpos[:, self.id_of("geom", "finger"), :2]
        return way


class PointMass(NativeTask):
    """Moves a mass to the middle; in the hard task, the motors pull in directions that are new in every episode."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"easy": {"draws": False}, "hard": {"draws": True}}
    fields: tuple[str, ...] = ("geom_xpos",)

    def prepare(self, batch: Any) -> None:
        """Give every env directions of its own."""
        if self.settings["draws"]:
            batch.expand("wrap_prm")

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Draw the position of the mass, then the directions."""
        super().begin(sim, ids)
        if self.settings["draws"]:
            for i in ids.tolist():
                sim.own_model("wrap_prm")[i, :4] = np.concatenate(_directions(sim.generators[i]))
        return {}

    def observe(self, d: Sims) -> dict[str, Array]:
        """Positions and speeds."""
        return {"position": d.qpos, "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """How close the mass is to the middle, and with how little effort."""
        target, mass = (self.id_of("geom", name) for name in ("target", "pointmass"))
        size = float(self.compiled.geom_size[target, 0])
        distance = np.linalg.norm(d.geom_xpos[:, target] - d.geom_xpos[:, mass], axis=1)
        reward: Array = rewards.bell(distance, 0.0, size, size) * (rewards.small(d.ctrl).mean(axis=1) + 4) / 5
        return reward


class BallInCup(NativeTask):
    """Catches a ball on a string with the cup that it hangs from."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"catch": {}}
    frame_skip: int = 10
    fields: tuple[str, ...] = ("site_xpos", "xpos", "ncon")

    def start(self, rng: Any) -> tuple[Array, Array]:
        """The ball somewhere within reach of the string."""
        qpos = self.qpos0.copy()
        for joint, low, high in (("ball_x", -0.2, 0.2), ("ball_z", 0.2, 0.5)):
            qpos[self.compiled.jnt_qposadr[self.id_of("joint", joint)]] = rng.uniform(low, high)
        return qpos, self.qvel0

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Begin episodes such that the ball touches nothing."""
        return self.begin_apart(sim, ids)

    def observe(self, d: Sims) -> dict[str, Array]:
        """Positions and speeds."""
        return {"position": d.qpos, "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """Whether the whole ball is in the cup."""
        model, sides = self.compiled, (0, 2)
        target = self.id_of("site", "target")
        room = model.site_size[target, sides] - model.geom_size[self.id_of("geom", "ball"), 0]
        way = d.site_xpos[:, target, sides] - d.xpos[:, self.body_id("ball"), sides]
        caught: Array = (np.abs(way) < room).all(axis=1).astype(np.float64)
        return caught


def _directions(rng: Any) -> tuple[Array, Array]:
    """Two directions that are not too similar."""
    first = rng.randn(2)
    first /= np.linalg.norm(first)
    while True:
        second = rng.randn(2)
        second /= np.linalg.norm(second)
        if abs(np.dot(first, second)) <= _PARALLEL:
            return first, second
