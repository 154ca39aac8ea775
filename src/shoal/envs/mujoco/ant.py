"""Ant: four legs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.mujoco.compiled import RowCode
from shoal.envs.mujoco.robot import Robot, all_finite, clip, interval, norm, square_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array


class Ant(Robot):
    """Walks along x, and is healthy as long as its torso is at the right height.

    Contact forces are observed and paid for; in version 4 only with ``use_contact_forces``.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        forward_reward_weight: What a unit of speed is worth.
        ctrl_cost_weight: What the square of an action costs.
        contact_cost_weight: What the square of the contact forces costs.
        healthy_reward: What each healthy step is worth.
        main_body: The body whose speed counts, in version 5; its number or its name.
        terminate_when_unhealthy: Whether an unhealthy state ends the episode.
        healthy_z_range: The range in which the height is healthy.
        contact_force_range: The range that forces are clipped to.
        reset_noise_scale: How far off an episode may start.
        exclude_current_positions_from_observation: Whether the position in the plane is hidden.
        include_cfrc_ext_in_observation: Whether contact forces are observed, in version 5.
        use_contact_forces: Whether they are observed and paid for; None for the default of the version.
        **options: The options of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {"distance": 4.0}
    option_aliases: ClassVar[Mapping[str, str]] = {"use_contact_force": "use_contact_forces"}

    def __init__(
        self,
        *,
        xml_file: Any = "ant.xml",
        frame_skip: int = 5,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.5,
        contact_cost_weight: float = 5e-4,
        healthy_reward: float = 1.0,
        main_body: int | str = 1,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (0.2, 1.0),
        contact_force_range: tuple[float, float] = (-1.0, 1.0),
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
        include_cfrc_ext_in_observation: bool = True,
        use_contact_forces: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.contact_cost_weight = contact_cost_weight
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.reset_noise_scale = reset_noise_scale
        self._z = interval("healthy_z_range", healthy_z_range)
        self._forces = interval("contact_force_range", contact_force_range)
        self._hidden = 2 * int(exclude_current_positions_from_observation)
        is_old = self.version == 4
        self._main_body = "torso" if is_old else main_body
        self._pays_for_contact = not is_old if use_contact_forces is None else use_contact_forces
        self._sees_contact = self._pays_for_contact and (is_old or include_cfrc_ext_in_observation)
        # The world has forces too; in version 5 they are not observed, but paid for all the same.
        self._first_body = 0 if is_old else 1
        self.fields = ("xpos", "cfrc_ext") if self._pays_for_contact else ("xpos",)
        at_step = ("x_velocity", "y_velocity", "reward_forward", "reward_ctrl", "reward_survive")
        own = ("forward_reward",) if is_old else ("reward_contact",)
        self._tell(("x_position", "y_position", "distance_from_origin"), (*at_step, *own))
        # Version 4 reports the cost of contact under the name of the cost of the action, which is nowhere to be found.
        if is_old:
            pays = self._pays_for_contact
            self.info_aliases = (
                {"reward_contact": "reward_ctrl", "reward_ctrl": self._ctrl} if pays else {"reward_contact": 0.0}
            )

    @staticmethod
    def _ctrl(info: Mapping[str, Array], reward: Array) -> Array:
        """The cost of the action: what remains of the reward without its other parts."""
        ctrl: Array = reward - info["reward_forward"] - info["reward_survive"] - info["reward_contact"]
        return ctrl

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform noise on positions, normal noise on speeds."""
        return self.noisy_start(rng, self.reset_noise_scale, normal_speeds=True)

    def track(self, d: Sims) -> Array:
        """The position of its main body in the plane."""
        xy: Array = d.xpos[:, self.body_id(self._main_body), :2]
        return xy

    def _contact(self, d: Sims) -> Array:
        """The clipped forces on every body, for both observation and reward."""
        forces: Array = clip(d.cfrc_ext, *self._forces).reshape(len(d.cfrc_ext), -1)
        d.contact = forces
        return forces

    def observe(self, d: Sims) -> Array:
        """Positions, speeds, contact forces."""
        parts = [d.qpos[:, self._hidden :], d.qvel]
        if self._sees_contact:
            contact = self._contact(d) if d.is_reset else d.contact
            parts.append(contact[:, 6 * self._first_body :])
        return np.concatenate(parts, axis=1)

    def reward(self, d: Sims) -> Array:
        """Speed along x and health, less the cost of action and contact."""
        speed = (d.after - d.before) / d.dt
        low, high = self._z
        z = d.qpos[:, 2]
        d.healthy = all_finite(d.qpos, d.qvel) & (low <= z) & (z <= high)
        is_old = self.version == 4
        forward = speed[:, 0] * self.forward_reward_weight
        survive = (d.healthy | self.terminate_when_unhealthy if is_old else d.healthy) * self.healthy_reward
        cost = ctrl_cost = self.ctrl_cost_weight * square_sum(d.action)
        d.info["x_velocity"], d.info["y_velocity"] = speed.T
        d.info.update(reward_forward=forward, reward_ctrl=-ctrl_cost, reward_survive=survive)
        if self._pays_for_contact:
            contact_cost = self.contact_cost_weight * square_sum(self._contact(d))
            cost = ctrl_cost + contact_cost
            d.info["reward_ctrl" if is_old else "reward_contact"] = -contact_cost
        elif not is_old:
            d.info["reward_contact"] = np.zeros_like(ctrl_cost)
        if is_old:
            d.info["forward_reward"] = forward
        reward: Array = forward + survive - cost
        return reward

    def terminated(self, d: Sims) -> Any:
        """Whether it is no longer healthy."""
        return ~d.healthy if self.terminate_when_unhealthy else False

    def report(self, d: Sims) -> None:
        """Report its position: that of its torso in version 4, of its root joint in version 5."""
        if self.version == 5:
            xy = d.qpos[:, :2]
        elif d.is_reset:
            return
        else:
            xy = d.after
        d.info["x_position"], d.info["y_position"] = xy.T
        d.info["distance_from_origin"] = norm(xy)

    def row_code(self) -> RowCode:
        """Compiled code for its rows."""
        is_old, pays, ends = self.version == 4, self._pays_for_contact, bool(self.terminate_when_unhealthy)
        num_bodies, first_seen = int(self.compiled.nbody), 6 * self._first_body
        weights = (self.dt, self.forward_reward_weight, self.healthy_reward)
        body = (num_bodies, self.body_id(self._main_body), is_old)
        forces = (self.contact_cost_weight, *self._forces, first_seen)
        speeds = (self._hidden, -np.inf, np.inf, self.ctrl_cost_weight)
        told = (
            *("x_position", "y_position", "distance_from_origin", "x_velocity", "y_velocity"),
            *("reward_forward", "forward_reward" if is_old else None),
            None if is_old and pays else "reward_ctrl",
            "reward_survive",
            "reward_contact" if not is_old else "reward_ctrl" if pays else None,
        )
        seen = 6 * num_bodies - first_seen if self._sees_contact else 0
        numbers = (*speeds, *weights, is_old and ends, ends, *self._z, *body, *forces)
        fields = ("xpos", "cfrc_ext") if pays else ("xpos",)
        return RowCode("ant_rows", numbers, told, self.nq - self._hidden + self.nv + seen, fields)
