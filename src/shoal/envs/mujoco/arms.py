"""Arms: Reacher, which is to touch a target, and Pusher, which is to push something there.

Version 4 of both pays for where things were before the step, and tells the parts of the reward without their weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.mujoco.robot import Robot, norm, square_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array

_SPEED = 0.005
_COSTS = {"ctrl_cost_weight": "reward_control_weight", "dist_cost_weight": "reward_dist_weight"}


class Reacher(Robot):
    """Two joints in a plane, and a target that is elsewhere in each episode.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        reward_dist_weight: What distance from the target costs.
        reward_control_weight: What the square of an action costs.
        **options: Those of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {"trackbodyid": 0}
    option_aliases: ClassVar[Mapping[str, str]] = _COSTS
    fields: tuple[str, ...] = ("xpos",)

    def __init__(
        self,
        *,
        xml_file: Any = "reacher.xml",
        frame_skip: int = 2,
        reward_dist_weight: float = 1.0,
        reward_control_weight: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.reward_dist_weight = reward_dist_weight
        self.reward_control_weight = reward_control_weight
        self._tell((), ("reward_dist", "reward_ctrl"))
        self._axes = 3 if self.version == 4 else 2

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Joints near zero, a target within reach."""
        qpos = rng.uniform(low=-0.1, high=0.1, size=self.nq) + self.qpos0
        while True:
            goal = rng.uniform(low=-0.2, high=0.2, size=2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = self.qvel0 + rng.uniform(low=-_SPEED, high=_SPEED, size=self.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def track(self, d: Sims) -> Array:
        """From the target to the fingertip."""
        way: Array = d.xpos[:, self.body_id("fingertip")] - d.xpos[:, self.body_id("target")]
        return way

    def observe(self, d: Sims) -> Array:
        """Angles as cosines and sines, the target, speeds, the way to the target."""
        angles = d.qpos[:, :2]
        way = (self.track(d) if d.is_reset else d.after)[:, : self._axes]
        return np.concatenate((np.cos(angles), np.sin(angles), d.qpos[:, 2:], d.qvel[:, :2], way), axis=1)

    def reward(self, d: Sims) -> Array:
        """The price of distance and of the action."""
        way = d.before if self.version == 4 else d.after
        d.info["reward_dist"] = distance = -norm(way) * self.reward_dist_weight
        d.info["reward_ctrl"] = control = -square_sum(d.action) * self.reward_control_weight
        reward: Array = distance + control
        return reward


class Pusher(Robot):
    """An arm, a cylinder, and a goal to push it to.

    Args:
        xml_file: The model; by default the one of the version.
        frame_skip: Steps of the simulation per step.
        reward_near_weight: What distance of the hand from the cylinder costs.
        reward_dist_weight: What distance of the cylinder from the goal costs.
        reward_control_weight: What the square of an action costs.
        **options: Those of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {"trackbodyid": -1, "distance": 4.0}
    option_aliases: ClassVar[Mapping[str, str]] = {**_COSTS, "near_cost_weight": "reward_near_weight"}
    fields: tuple[str, ...] = ("xpos",)

    def __init__(
        self,
        *,
        xml_file: Any = None,
        frame_skip: int = 5,
        reward_near_weight: float = 0.5,
        reward_dist_weight: float = 1.0,
        reward_control_weight: float = 0.1,
        **options: Any,
    ) -> None:
        own = "pusher.xml" if options.get("version") == 4 else "pusher_v5.xml"
        super().__init__(xml_file=own if xml_file is None else xml_file, frame_skip=frame_skip, **options)
        self.reward_near_weight = reward_near_weight
        self.reward_dist_weight = reward_dist_weight
        self.reward_control_weight = reward_control_weight
        is_old = self.version == 4
        self._tell((), ("reward_dist", "reward_ctrl") if is_old else ("reward_dist", "reward_ctrl", "reward_near"))
        self.info_aliases = {"reward_near": self._near} if is_old else {}

    def _near(self, info: Mapping[str, Array], reward: Array) -> Array:
        """What is left of the reward without the parts that version 4 tells, and tells without their weights."""
        told = info["reward_dist"] * self.reward_dist_weight + info["reward_ctrl"] * self.reward_control_weight
        near: Array = reward - told
        return near

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """The arm at rest, the cylinder anywhere but at the goal."""
        qpos = self.qpos0.copy()
        while True:
            cylinder = np.concatenate((rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)))
            if np.linalg.norm(cylinder) > 0.17:
                break
        qpos[-4:-2] = cylinder
        qpos[-2:] = 0
        qvel = self.qvel0 + rng.uniform(low=-_SPEED, high=_SPEED, size=self.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def track(self, d: Sims) -> Array:
        """Where hand, cylinder and goal are."""
        bodies = [self.body_id(name) for name in ("tips_arm", "object", "goal")]
        places: Array = d.xpos[:, bodies].reshape(len(d.xpos), -1)
        return places

    def observe(self, d: Sims) -> Array:
        """Joints, their speeds, and the three places."""
        places = self.track(d) if d.is_reset else d.after
        return np.concatenate((d.qpos[:, :7], d.qvel[:, :7], places), axis=1)

    def reward(self, d: Sims) -> Array:
        """The price of both distances and of the action."""
        is_old = self.version == 4
        places = d.before if is_old else d.after
        hand, thing, goal = places[:, :3], places[:, 3:6], places[:, 6:]
        near, distance, control = -norm(thing - hand), -norm(thing - goal), -square_sum(d.action)
        if is_old:
            d.info["reward_dist"], d.info["reward_ctrl"] = distance, control
        near, distance = near * self.reward_near_weight, distance * self.reward_dist_weight
        control = control * self.reward_control_weight
        if not is_old:
            d.info.update(reward_dist=distance, reward_ctrl=control, reward_near=near)
        reward: Array = distance + control + near
        return reward
