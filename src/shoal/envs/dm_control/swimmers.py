"""In the water: the swimmer, a chain of six or fifteen links, and the fish."""

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

_JOINTS = ("tail1", "tail_twist", "tail2", "finright_roll", "finright_pitch", "finleft_roll", "finleft_pitch")
_CLOSE = 0.2  # the probability that a target is close
_HEAD_SENSORS = 12  # sensor values before those of the links
_ZZ = 8  # index in a rotation matrix


class Swimmer(NativeTask):
    """Swims to a target that is new in every episode."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"swimmer6": {"links": 6}, "swimmer15": {"links": 15}}
    frame_skip: int = 15
    fields: tuple[str, ...] = ("geom_xpos", "xmat", "sensordata")

    def model_options(self) -> dict[str, Any]:
        """The number of links in the task."""
        return {"n_joints": self.settings["links"]}

    def prepare(self, batch: Any) -> None:
        """Give every env a target of its own, and a light above it."""
        batch.expand("geom_pos")
        batch.expand("light_pos")

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Draw the joints, then the target."""
        super().begin(sim, ids)
        target, light = self.id_of("geom", "target"), self.id_of("light", "target_light")
        for i in ids.tolist():
            rng = sim.generators[i]
            reach = 0.3 if rng.rand() < _CLOSE else 2.0
            place = rng.uniform(-reach, reach, size=2)
            sim.own_model("geom_pos")[i, target, :2] = place
            sim.own_model("light_pos")[i, light, :2] = place
        return {}

    def observe(self, d: Sims) -> dict[str, Array]:
        """Joints, the vector to the target in the head's frame, and the velocities of all links in the plane."""
        links = d.sensordata[:, _HEAD_SENSORS:]
        moves = links.reshape(len(links), -1, 6)[:, :, (0, 1, 5)]
        return {
            "joints": d.qpos[:, 3:],
            "to_target": self._way(d),
            "body_velocities": moves.reshape(len(moves), -1),
        }

    def reward(self, d: Sims) -> Array:
        """How close the nose is to the target."""
        size = float(self.compiled.geom_size[self.id_of("geom", "target"), 0])
        return rewards.long_tail(np.linalg.norm(self._way(d), axis=1), size, 5 * size)

    def _way(self, d: Sims) -> Array:
        way = _towards(d.geom_xpos, self.id_of("geom", "target"), self.id_of("geom", "nose"))
        return _as_seen_from(d.xmat[:, self.body_id("head")], way)[:, :2]


class Fish(NativeTask):
    """Keeps upright, or swims to a target that is new in every episode."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"upright": {"swims": False}, "swim": {"swims": True}}
    frame_skip: int = 10
    fields: tuple[str, ...] = ("geom_xpos", "geom_xmat", "xmat")

    def adjust(self, model: mujoco.MjModel) -> None:
        """Hide the target if there is none to swim to."""
        if not self.settings["swims"]:
            model.geom("target").rgba[3] = 0.0

    def prepare(self, batch: Any) -> None:
        """Give every env a target of its own."""
        if self.settings["swims"]:
            batch.expand("geom_pos")

    def start(self, rng: Any) -> tuple[Array, Array]:
        """A random orientation, with tail and fins nearly straight."""
        qpos = self.qpos0.copy()
        turned = rng.randn(4)
        qpos[3:7] = turned / np.linalg.norm(turned)
        qpos[self._joints] = rng.uniform(-0.2, 0.2, len(_JOINTS))
        return qpos, self.qvel0

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Draw the pose of the fish, then the target."""
        super().begin(sim, ids)
        if self.settings["swims"]:
            places = sim.own_model("geom_pos")[:, self.id_of("geom", "target")]
            for i in ids.tolist():
                places[i] = sim.generators[i].uniform((-0.4, -0.4, 0.1), (0.4, 0.4, 0.3))
        return {}

    def observe(self, d: Sims) -> dict[str, Array]:
        """Joints, how upright it is, the vector to the target in the mouth's frame, and speeds."""
        seen = {"joint_angles": d.qpos[:, self._joints], "upright": d.xmat[:, self.body_id("torso"), _ZZ]}
        if self.settings["swims"]:
            seen["target"] = self._way(d)
        return {**seen, "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """How upright it is; if it swims, mainly how close the mouth is to the target."""
        upright = d.xmat[:, self.body_id("torso"), _ZZ]
        if not self.settings["swims"]:
            return rewards.bell(upright, 1.0, 1.0)
        sizes = self.compiled.geom_size[:, 0]
        radii = float(sizes[self.id_of("geom", "mouth")] + sizes[self.id_of("geom", "target")])
        there = rewards.bell(np.linalg.norm(self._way(d), axis=1), 0.0, radii, 2 * radii)
        reward: Array = (7 * there + 0.5 * (upright + 1)) / 8
        return reward

    def _way(self, d: Sims) -> Array:
        mouth = self.id_of("geom", "mouth")
        return _as_seen_from(d.geom_xmat[:, mouth], _towards(d.geom_xpos, self.id_of("geom", "target"), mouth))

    @property
    def _joints(self) -> Array:
        places: Array = self.compiled.jnt_qposadr[[self.id_of("joint", joint) for joint in _JOINTS]]
        return places


def _towards(places: Array, there: int, here: int) -> Array:
    way: Array = places[:, there] - places[:, here]
    return way


def _as_seen_from(frames: Array, ways: Array) -> Array:
    """Vectors in the frames with these rotation matrices."""
    seen: Array = (ways[:, None] @ frames.reshape(-1, 3, 3))[:, 0]
    return seen
