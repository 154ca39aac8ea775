"""The humanoids: one walks, the other gets up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.mujoco.robot import FLOAT, Robot, clip, interval, norm, square_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array

_FRONT_VIEW = {"trackbodyid": 1, "distance": 4.0, "elevation": -20.0}
_FREE_JOINT = 6  # the speeds of the root joint, on which no actuator acts


class _Humanoid(Robot):
    """What both observe: positions, speeds, and what ``mj_step`` has computed for the bodies.

    In version 4 that includes the world, which is all zeros, and the root joint, on which no actuator acts.
    """

    def __init__(
        self,
        *,
        ctrl_cost_weight: float = 0.1,
        reset_noise_scale: float = 1e-2,
        exclude_current_positions_from_observation: bool = True,
        include_cinert_in_observation: bool = True,
        include_cvel_in_observation: bool = True,
        include_qfrc_actuator_in_observation: bool = True,
        include_cfrc_ext_in_observation: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.ctrl_cost_weight = ctrl_cost_weight
        self.reset_noise_scale = reset_noise_scale
        self._hidden = 2 * int(exclude_current_positions_from_observation)
        is_new = self.version == 5
        seen = {
            "cinert": (include_cinert_in_observation, int(is_new)),
            "cvel": (include_cvel_in_observation, int(is_new)),
            "qfrc_actuator": (include_qfrc_actuator_in_observation, _FREE_JOINT * is_new),
            "cfrc_ext": (include_cfrc_ext_in_observation, int(is_new)),
        }
        self._seen = [(name, first) for name, (is_seen, first) in seen.items() if is_seen or not is_new]
        self.fields = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "xipos", "ten_length", "ten_velocity")

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform noise on positions and speeds."""
        return self.noisy_start(rng, self.reset_noise_scale)

    def observe(self, d: Sims) -> Array:
        """Positions, speeds, and the derived fields, each from the first row that counts."""
        parts = [d.qpos[:, self._hidden :], d.qvel]
        count = len(d.qpos)
        parts += [getattr(d, name)[:, first:].reshape(count, -1) for name, first in self._seen]
        return np.concatenate(parts, axis=1)

    def contact_cost(self, d: Sims, weight: float, bounds: tuple[float, float]) -> Array:
        """The cost of contact forces."""
        return clip(weight * square_sum(d.cfrc_ext.reshape(len(d.cfrc_ext), -1)), *bounds)

    def _tell_tendons(self) -> None:
        """Declare what version 5 reports about tendons: one number for each tendon, in every row."""
        shape = (FLOAT, (int(self.compiled.ntendon),))
        self.info = {**self.info, "tendon_length": shape, "tendon_velocity": shape}

    def _report_body(self, d: Sims) -> None:
        d.info["x_position"], d.info["y_position"] = d.qpos[:, 0], d.qpos[:, 1]
        d.info["tendon_length"], d.info["tendon_velocity"] = d.ten_length, d.ten_velocity


class Humanoid(_Humanoid):
    """Walks, and is healthy as long as it stands.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        forward_reward_weight: What a unit of speed is worth.
        contact_cost_weight: What the square of contact forces costs.
        contact_cost_range: The range that this cost is clipped to.
        use_contact_force: Whether contact forces cost anything; None for the default of the version.
        healthy_reward: What each healthy step is worth.
        terminate_when_unhealthy: Whether an unhealthy state ends the episode.
        healthy_z_range: The range in which the height is healthy.
        **options: ``ctrl_cost_weight``, ``reset_noise_scale``, ``exclude_current_positions_from_observation``, in
            version 5 ``include_cinert_in_observation`` and the same for ``cvel``, ``qfrc_actuator`` and ``cfrc_ext``,
            and the options of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {**_FRONT_VIEW, "lookat": np.array((0.0, 0.0, 2.0))}

    def __init__(
        self,
        *,
        xml_file: Any = "humanoid.xml",
        frame_skip: int = 5,
        forward_reward_weight: float = 1.25,
        contact_cost_weight: float = 5e-7,
        contact_cost_range: tuple[float, float] = (-np.inf, 10.0),
        use_contact_force: bool | None = None,
        healthy_reward: float = 5.0,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (1.0, 2.0),
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.forward_reward_weight = forward_reward_weight
        self.contact_cost_weight = contact_cost_weight
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self._contact_range = interval("contact_cost_range", contact_cost_range)
        self._pays_for_contact = self.version == 5 if use_contact_force is None else use_contact_force
        self._z = interval("healthy_z_range", healthy_z_range)
        places = ("x_position", "y_position", "distance_from_origin")
        speeds = ("x_velocity", "y_velocity")
        if self.version == 4:
            impact = ("reward_impact",) if self._pays_for_contact else ()
            self._tell(places, (*speeds, "reward_linvel", "reward_quadctrl", "reward_alive", "forward_reward", *impact))
            self.info_aliases = {} if impact else {"reward_impact": 0.0}
        else:
            self._tell(places, (*speeds, "reward_survive", "reward_forward", "reward_ctrl", "reward_contact"))
            self._tell_tendons()
            self.info_aliases = {
                "reward_linvel": "reward_forward",
                "reward_quadctrl": "reward_ctrl",
                "reward_alive": "reward_survive",
                "reward_impact": "reward_contact",
            }

    def track(self, d: Sims) -> Array:
        """The position of its centre of mass in the plane."""
        mass = self.compiled.body_mass
        centre: Array = (np.einsum("b,nbj->nj", mass, d.xipos) / mass.sum())[:, :2]
        return centre

    def reward(self, d: Sims) -> Array:
        """Speed along x and health, less the cost of action and contact."""
        speed = (d.after - d.before) / d.dt
        low, high = self._z
        z = d.qpos[:, 2]
        d.healthy = (low < z) & (z < high)
        forward = self.forward_reward_weight * speed[:, 0]
        cost = ctrl_cost = self.ctrl_cost_weight * square_sum(d.ctrl)
        contact_cost = np.zeros_like(cost)
        if self._pays_for_contact:
            contact_cost = self.contact_cost(d, self.contact_cost_weight, self._contact_range)
            cost = ctrl_cost + contact_cost
        d.info["x_velocity"], d.info["y_velocity"] = speed.T
        if self.version == 4:
            survive = (d.healthy | self.terminate_when_unhealthy) * self.healthy_reward
            d.info.update(reward_linvel=forward, reward_quadctrl=-ctrl_cost, reward_alive=survive)
            d.info["forward_reward"] = forward
            if self._pays_for_contact:
                d.info["reward_impact"] = -contact_cost
        else:
            survive = d.healthy * self.healthy_reward
            d.info.update(reward_survive=survive, reward_forward=forward)
            d.info.update(reward_ctrl=-ctrl_cost, reward_contact=-contact_cost)
        reward: Array = forward + survive - cost
        return reward

    def terminated(self, d: Sims) -> Any:
        """Whether it has fallen."""
        return ~d.healthy if self.terminate_when_unhealthy else False

    def report(self, d: Sims) -> None:
        """Report its position: that of its centre of mass in version 4, of its root in version 5."""
        if self.version == 5:
            self._report_body(d)
            d.info["distance_from_origin"] = norm(d.qpos[:, :2])
        elif not d.is_reset:
            d.info["x_position"], d.info["y_position"] = d.after.T
            d.info["distance_from_origin"] = norm(d.after)


class HumanoidStandup(_Humanoid):
    """Gets up from the ground.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        uph_cost_weight: Accepted for compatibility with Gymnasium, where it has no effect either.
        impact_cost_weight: What the square of contact forces costs.
        impact_cost_range: The range that this cost is clipped to.
        healthy_reward: What each step is worth.
        **options: As for ``Humanoid``.
    """

    camera: ClassVar[Mapping[str, Any]] = {**_FRONT_VIEW, "lookat": np.array((0.0, 0.0, 0.8925))}
    option_aliases: ClassVar[Mapping[str, str]] = {
        "forward_reward_weight": "uph_cost_weight",
        "contact_cost_weight": "impact_cost_weight",
        "contact_cost_max": "impact_cost_max",
    }

    def __init__(
        self,
        *,
        xml_file: Any = "humanoidstandup.xml",
        frame_skip: int = 5,
        uph_cost_weight: float = 1.0,
        impact_cost_weight: float = 5e-7,
        impact_cost_range: tuple[float, float] = (-np.inf, 10.0),
        healthy_reward: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.impact_cost_weight = impact_cost_weight
        self._impact_range = interval("impact_cost_range", impact_cost_range)
        self.healthy_reward = healthy_reward
        rewards = ("reward_linup", "reward_quadctrl", "reward_impact")
        if self.version == 4:
            self._tell((), rewards)
        else:
            self._tell(("x_position", "y_position", "z_distance_from_origin"), rewards)
            self._tell_tendons()
        self.info_aliases = {"reward_alive": healthy_reward}

    def reward(self, d: Sims) -> Array:
        """Height, less the cost of action and impact, and the same for each step."""
        height = (d.qpos[:, 2] - 0) / self.compiled.opt.timestep
        ctrl_cost = self.ctrl_cost_weight * square_sum(d.ctrl)
        impact_cost = self.contact_cost(d, self.impact_cost_weight, self._impact_range)
        d.info.update(reward_linup=height, reward_quadctrl=-ctrl_cost, reward_impact=-impact_cost)
        reward: Array = height - ctrl_cost - impact_cost + self.healthy_reward
        return reward

    def report(self, d: Sims) -> None:
        """Report its position, in version 5."""
        if self.version == 5:
            self._report_body(d)
            d.info["z_distance_from_origin"] = d.qpos[:, 2] - self.qpos0[2]
