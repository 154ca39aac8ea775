"""The inverted pendulums: a cart with one pole, and a cart with two on top of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.mujoco.robot import Robot, all_finite, clip, interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array


class InvertedPendulum(Robot):
    """Keeps a pole upright.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        healthy_reward: What each step is worth.
        healthy_z_range: The range of angles in which the pole counts as upright.
        reset_noise_scale: How far off an episode may start.
        **options: The options of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {"trackbodyid": 0, "distance": 2.04}

    def __init__(
        self,
        *,
        xml_file: Any = "inverted_pendulum.xml",
        frame_skip: int = 2,
        healthy_reward: float = 1.0,
        healthy_z_range: tuple[float, float] = (-0.2, 0.2),
        reset_noise_scale: float = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.healthy_reward = healthy_reward
        self._angle = interval("healthy_z_range", healthy_z_range)
        self.reset_noise_scale = reset_noise_scale
        self._tell((), () if self.version == 4 else ("reward_survive",))

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform noise on positions and speeds."""
        return self.noisy_start(rng, self.reset_noise_scale)

    def observe(self, d: Sims) -> Array:
        """Positions and speeds."""
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def reward(self, d: Sims) -> Any:
        """The same for each step; in version 5 nothing for the step in which the pole falls."""
        low, high = self._angle
        angle = d.qpos[:, 1]
        d.fallen = ~all_finite(d.qpos, d.qvel) | (angle < low) | (angle > high)
        if self.version == 4:
            return self.healthy_reward
        d.info["reward_survive"] = reward = ~d.fallen * float(self.healthy_reward)
        return reward

    def terminated(self, d: Sims) -> Any:
        """Whether the pole has fallen."""
        return d.fallen


class InvertedDoublePendulum(Robot):
    """Keeps two poles upright.

    Version 5 pays nothing for health in the step in which they fall, and observes only one of the constraint forces.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        healthy_reward: What each step is worth.
        healthy_z_max: The height that the tip must not sink to.
        observation_range: The range that speeds and forces are clipped to in observations.
        reset_noise_scale: How far off an episode may start.
        **options: The options of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {"trackbodyid": 0, "distance": 4.1225, "lookat": np.array((0.0, 0.0, 0.1225))}
    fields: tuple[str, ...] = ("site_xpos", "qfrc_constraint")

    def __init__(
        self,
        *,
        xml_file: Any = "inverted_double_pendulum.xml",
        frame_skip: int = 5,
        healthy_reward: float = 10.0,
        healthy_z_max: float = 1.0,
        observation_range: tuple[float, float] = (-10.0, 10.0),
        reset_noise_scale: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.healthy_reward = healthy_reward
        self.healthy_z_max = healthy_z_max
        self._seen = interval("observation_range", observation_range)
        self.reset_noise_scale = reset_noise_scale
        rewards = ("reward_survive", "distance_penalty", "velocity_penalty")
        self._tell((), () if self.version == 4 else rewards)
        self._forces = None if self.version == 4 else 1

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform noise on positions, normal noise on speeds."""
        return self.noisy_start(rng, self.reset_noise_scale, normal_speeds=True)

    def observe(self, d: Sims) -> Array:
        """The cart, the angles as sines and cosines, and clipped speeds and constraint forces."""
        angles = d.qpos[:, 1:]
        forces, speeds = clip(d.qfrc_constraint[:, : self._forces], *self._seen), clip(d.qvel, *self._seen)
        return np.concatenate((d.qpos[:, :1], np.sin(angles), np.cos(angles), speeds, forces), axis=1)

    def reward(self, d: Sims) -> Array:
        """Health, less penalties for the distance of the tip from its place and for the speed of the poles."""
        x, y = d.site_xpos[:, 0, 0], d.site_xpos[:, 0, 2]
        first, second = d.qvel[:, 1], d.qvel[:, 2]
        d.fallen = y <= self.healthy_z_max
        distance = 0.01 * x**2 + (y - 2) ** 2
        velocity = 1e-3 * first**2 + 5e-3 * second**2
        alive: Any = 10.0
        if self.version == 5:
            alive = self.healthy_reward * ~d.fallen
            d.info.update(reward_survive=alive, distance_penalty=-distance, velocity_penalty=-velocity)
        elif self.healthy_reward != alive:
            alive = self.healthy_reward
        reward: Array = alive - distance - velocity
        return reward

    def terminated(self, d: Sims) -> Any:
        """Whether the tip is too low."""
        return d.fallen
