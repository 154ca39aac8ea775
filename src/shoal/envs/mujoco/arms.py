"""Arms: Reacher, which is to touch a target, and Pusher, which is to push something there.

Version 4 of both pays for where things were before the step, and reports the parts of the reward without their weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.mujoco.robot import Robot, interval, norm, square_sum
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array

_COSTS = {"ctrl_cost_weight": "reward_control_weight", "dist_cost_weight": "reward_dist_weight"}


class Reacher(Robot):
    """Two joints in a plane, and a target that is elsewhere in each episode.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        reward_dist_weight: What distance from the target costs.
        reward_control_weight: What the square of an action costs.
        reset_qpos_scale: How far off the joints may start.
        reset_qvel_scale: How fast they may move at the start.
        reset_goal_scale: How far away the target may be.
        **options: The options of ``Robot``.

    Raises:
        ArgumentError: If there is no place for the target.
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
        reset_qpos_scale: float = 0.1,
        reset_qvel_scale: float = 0.005,
        reset_goal_scale: float = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        if not reset_goal_scale > 0:
            raise ArgumentError(f"reset_goal_scale: expected more than 0, got {reset_goal_scale!r}")
        self.reset_qpos_scale = reset_qpos_scale
        self.reset_qvel_scale = reset_qvel_scale
        self.reset_goal_scale = reset_goal_scale
        self.reward_dist_weight = reward_dist_weight
        self.reward_control_weight = reward_control_weight
        self._tell((), ("reward_dist", "reward_ctrl"))
        self._axes = 3 if self.version == 4 else 2

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Joints near zero, a target within reach."""
        place, speed, reach = self.reset_qpos_scale, self.reset_qvel_scale, self.reset_goal_scale
        qpos = rng.uniform(low=-place, high=place, size=self.nq) + self.qpos0
        while True:
            goal = rng.uniform(low=-reach, high=reach, size=2)
            if np.linalg.norm(goal) < reach:
                break
        qpos[-2:] = goal
        qvel = self.qvel0 + rng.uniform(low=-speed, high=speed, size=self.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def track(self, d: Sims) -> Array:
        """The vector from the target to the fingertip."""
        way: Array = d.xpos[:, self.body_id("fingertip")] - d.xpos[:, self.body_id("target")]
        return way

    def observe(self, d: Sims) -> Array:
        """Angles as cosines and sines, the target, speeds, the vector from the target to the fingertip."""
        angles = d.qpos[:, :2]
        way = (self.track(d) if d.is_reset else d.after)[:, : self._axes]
        return np.concatenate((np.cos(angles), np.sin(angles), d.qpos[:, 2:], d.qvel[:, :2], way), axis=1)

    def reward(self, d: Sims) -> Array:
        """The cost of distance and of the action."""
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
        reset_qvel_scale: How fast the joints may move at the start.
        cylinder_x_range: Where the cylinder may start, seen from the goal.
        cylinder_y_range: The same along the other axis.
        cylinder_dist_min: How far it must be from the goal.
        **options: The options of ``Robot``.

    Raises:
        ArgumentError: If there is no place for the cylinder.
    """

    camera: ClassVar[Mapping[str, Any]] = {"trackbodyid": -1, "distance": 4.0}
    models: ClassVar[Mapping[int, str]] = {4: "pusher.xml", 5: "pusher_v5.xml"}
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
        reset_qvel_scale: float = 0.005,
        cylinder_x_range: tuple[float, float] = (-0.3, 0.0),
        cylinder_y_range: tuple[float, float] = (-0.2, 0.2),
        cylinder_dist_min: float = 0.17,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.reward_near_weight = reward_near_weight
        self.reward_dist_weight = reward_dist_weight
        self.reward_control_weight = reward_control_weight
        self.reset_qvel_scale = reset_qvel_scale
        self.cylinder_dist_min = cylinder_dist_min
        self._x = interval("cylinder_x_range", cylinder_x_range)
        self._y = interval("cylinder_y_range", cylinder_y_range)
        farthest = np.hypot(np.abs(self._x).max(), np.abs(self._y).max())
        if not farthest > cylinder_dist_min:
            raise ArgumentError(
                f"cylinder_dist_min: expected less than {farthest}, as far as the cylinder can be from the goal, "
                f"got {cylinder_dist_min!r}"
            )
        is_old = self.version == 4
        self._tell((), ("reward_dist", "reward_ctrl") if is_old else ("reward_dist", "reward_ctrl", "reward_near"))
        self.info_aliases = {"reward_near": self._near} if is_old else {}

    def _near(self, info: Mapping[str, Array], reward: Array) -> Array:
        """What remains of the reward without the parts that version 4 reports, which it does without their weights."""
        told = info["reward_dist"] * self.reward_dist_weight + info["reward_ctrl"] * self.reward_control_weight
        near: Array = reward - told
        return near

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """The arm almost at rest, the cylinder anywhere but at the goal."""
        qpos = self.qpos0.copy()
        while True:
            cylinder = np.concatenate((rng.uniform(*self._x, size=1), rng.uniform(*self._y, size=1)))
            if np.linalg.norm(cylinder) > self.cylinder_dist_min:
                break
        qpos[-4:-2] = cylinder
        qpos[-2:] = 0
        speed = self.reset_qvel_scale
        qvel = self.qvel0 + rng.uniform(low=-speed, high=speed, size=self.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def track(self, d: Sims) -> Array:
        """The positions of hand, cylinder and goal."""
        bodies = [self.body_id(name) for name in ("tips_arm", "object", "goal")]
        places: Array = d.xpos[:, bodies].reshape(len(d.xpos), -1)
        return places

    def observe(self, d: Sims) -> Array:
        """Joints, their speeds, and the three positions."""
        places = self.track(d) if d.is_reset else d.after
        return np.concatenate((d.qpos[:, :7], d.qvel[:, :7], places), axis=1)

    def reward(self, d: Sims) -> Array:
        """The cost of both distances and of the action."""
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
