"""Swimmer: a chain in a viscous fluid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.envs.mujoco.robot import Robot, norm, square_sum

if TYPE_CHECKING:
    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array


class Swimmer(Robot):
    """Swims forward.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        forward_reward_weight: What a unit of speed is worth.
        ctrl_cost_weight: What the square of an action costs.
        reset_noise_scale: How far off an episode may start.
        exclude_current_positions_from_observation: Whether the position in the plane is hidden.
        **options: The options of ``Robot``.
    """

    def __init__(
        self,
        *,
        xml_file: Any = "swimmer.xml",
        frame_skip: int = 4,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-4,
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.reset_noise_scale = reset_noise_scale
        self._hidden = 2 * int(exclude_current_positions_from_observation)
        self._forward = ("reward_fwd", "forward_reward") if self.version == 4 else ("reward_forward",)
        at_step = ("x_velocity", "y_velocity", *self._forward, "reward_ctrl")
        self._tell(("x_position", "y_position", "distance_from_origin"), at_step)
        self.info_aliases = {} if self.version == 4 else {"reward_fwd": "reward_forward"}

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform noise on positions and speeds."""
        return self.noisy_start(rng, self.reset_noise_scale)

    def track(self, d: Sims) -> Array:
        """Its position in the plane."""
        xy: Array = d.qpos[:, :2]
        return xy

    def observe(self, d: Sims) -> Array:
        """Positions and speeds."""
        return np.concatenate((d.qpos[:, self._hidden :], d.qvel), axis=1)

    def reward(self, d: Sims) -> Array:
        """Speed along x, less the cost of the action."""
        speed = (d.after - d.before) / d.dt
        forward = self.forward_reward_weight * speed[:, 0]
        cost = self.ctrl_cost_weight * square_sum(d.action)
        d.info["x_velocity"], d.info["y_velocity"] = speed.T
        d.info.update(dict.fromkeys(self._forward, forward), reward_ctrl=-cost)
        reward: Array = forward - cost
        return reward

    def report(self, d: Sims) -> None:
        """Report its position."""
        if not d.is_reset or self.version == 5:
            xy = d.qpos[:, :2]
            d.info["x_position"], d.info["y_position"] = xy.T
            d.info["distance_from_origin"] = norm(xy)
