"""Robots that run in a plane: HalfCheetah, Hopper and Walker2d."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.mujoco.compiled import RowCode
from shoal.envs.mujoco.robot import Robot, clip, interval, square_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array

_SIDE_VIEW = {"trackbodyid": 2, "lookat": np.array((0.0, 0.0, 1.15)), "elevation": -20.0}


class HalfCheetah(Robot):
    """Runs forward; its episodes never terminate.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        forward_reward_weight: What a unit of speed is worth.
        ctrl_cost_weight: What the square of an action costs.
        reset_noise_scale: How far off an episode may start.
        exclude_current_positions_from_observation: Whether the position on the track is hidden.
        **options: The options of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {"distance": 4.0}

    def __init__(
        self,
        *,
        xml_file: Any = "half_cheetah.xml",
        frame_skip: int = 5,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.1,
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.reset_noise_scale = reset_noise_scale
        self._hidden = int(exclude_current_positions_from_observation)
        self._run = "reward_run" if self.version == 4 else "reward_forward"
        self._tell(("x_position",), ("x_velocity", self._run, "reward_ctrl"))
        self.info_aliases = {} if self.version == 4 else {"reward_run": "reward_forward"}

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform noise on positions, normal noise on speeds."""
        return self.noisy_start(rng, self.reset_noise_scale, normal_speeds=True)

    def track(self, d: Sims) -> Array:
        """How far it has come."""
        x: Array = d.qpos[:, 0]
        return x

    def observe(self, d: Sims) -> Array:
        """Positions and speeds."""
        return np.concatenate((d.qpos[:, self._hidden :], d.qvel), axis=1)

    def reward(self, d: Sims) -> Array:
        """Speed, less the cost of the action."""
        speed = (d.after - d.before) / d.dt
        forward = self.forward_reward_weight * speed
        cost = self.ctrl_cost_weight * square_sum(d.action)
        d.info["x_velocity"] = speed
        d.info[self._run] = forward
        d.info["reward_ctrl"] = -cost
        reward: Array = forward - cost
        return reward

    def report(self, d: Sims) -> None:
        """Report its position."""
        if not d.is_reset or self.version == 5:
            d.info["x_position"] = d.qpos[:, 0]

    def row_code(self) -> RowCode:
        """Compiled code for its rows."""
        told = ("x_position", None, "x_velocity", self._run, "reward_ctrl", None)
        return _runner_code(self, told, hidden=self._hidden)


class _Upright(Robot):
    """A runner whose episode ends when it falls. Its speeds are clipped in observations."""

    def __init__(
        self,
        *,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-3,
        healthy_reward: float = 1.0,
        terminate_when_unhealthy: bool = True,
        velocity_range: tuple[float, float] = (-10.0, 10.0),
        reset_noise_scale: float = 5e-3,
        exclude_current_positions_from_observation: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self._velocity = interval("velocity_range", velocity_range)
        self.reset_noise_scale = reset_noise_scale
        self._hidden = int(exclude_current_positions_from_observation)
        if self.version == 4:
            self._tell((), ("x_position", "x_velocity"))
        else:
            rewards = ("reward_forward", "reward_ctrl", "reward_survive")
            self._tell(("x_position", "z_distance_from_origin"), ("x_velocity", *rewards))

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Uniform noise on positions and speeds."""
        return self.noisy_start(rng, self.reset_noise_scale)

    def track(self, d: Sims) -> Array:
        """How far it has come."""
        x: Array = d.qpos[:, 0]
        return x

    def observe(self, d: Sims) -> Array:
        """Positions and clipped speeds."""
        return np.concatenate((d.qpos[:, self._hidden :], clip(d.qvel, *self._velocity)), axis=1)

    def is_healthy(self, d: Sims) -> Array:
        """Whether it stands."""
        raise NotImplementedError

    def reward(self, d: Sims) -> Array:
        """Speed and standing, less the cost of the action."""
        speed = (d.after - d.before) / d.dt
        d.healthy = self.is_healthy(d)
        if self.version == 4:  # if a fall ends the episode, the last step is paid like the others
            survive = np.where(d.healthy | self.terminate_when_unhealthy, self.healthy_reward, 0.0)
        else:
            survive = d.healthy * self.healthy_reward
        forward = self.forward_reward_weight * speed
        cost = self.ctrl_cost_weight * square_sum(d.action)
        d.info["x_velocity"] = speed
        if self.version == 5:
            d.info.update(reward_forward=forward, reward_ctrl=-cost, reward_survive=survive)
        reward: Array = forward + survive - cost
        return reward

    def terminated(self, d: Sims) -> Any:
        """Whether it has fallen."""
        return ~d.healthy if self.terminate_when_unhealthy else False

    def report(self, d: Sims) -> None:
        """Report its position."""
        if self.version == 5:
            d.info["x_position"] = d.qpos[:, 0]
            d.info["z_distance_from_origin"] = d.qpos[:, 1] - self.qpos0[1]
        elif not d.is_reset:
            d.info["x_position"] = d.qpos[:, 0]

    def _row_code(
        self, z: tuple[float, float], angle: tuple[float, float], state: tuple[float, float] | None = None
    ) -> RowCode:
        is_old = self.version == 4
        told = ("x_position", "z_distance_from_origin", "x_velocity", "reward_forward", "reward_ctrl", "reward_survive")
        ends = bool(self.terminate_when_unhealthy)
        return _runner_code(
            self,
            (told[0], None, told[2], None, None, None) if is_old else told,
            hidden=self._hidden,
            velocity=self._velocity,
            survival=(self.healthy_reward, is_old and ends, ends),
            ranges=(z, angle),
            state=state,
        )


class Hopper(_Upright):
    """Hops on one leg.

    Args:
        xml_file: The model.
        frame_skip: Steps of the simulation per step.
        healthy_state_range: The range in which all but the first two numbers of the state are healthy.
        healthy_z_range: The range in which the height is healthy.
        healthy_angle_range: The range in which the angle of the torso is healthy.
        **options: Weights and switches as in ``Walker2d``, and the options of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {**_SIDE_VIEW, "distance": 3.0}

    def __init__(
        self,
        *,
        xml_file: Any = "hopper.xml",
        frame_skip: int = 4,
        healthy_state_range: tuple[float, float] = (-100.0, 100.0),
        healthy_z_range: tuple[float, float] = (0.7, float("inf")),
        healthy_angle_range: tuple[float, float] = (-0.2, 0.2),
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self._state = interval("healthy_state_range", healthy_state_range)
        self._z = interval("healthy_z_range", healthy_z_range)
        self._angle = interval("healthy_angle_range", healthy_angle_range)

    def is_healthy(self, d: Sims) -> Array:
        """Whether height, angle and everything else are in range."""
        low, high = self._state
        state = np.concatenate((d.qpos[:, 2:], d.qvel), axis=1)
        lowest, highest = np.minimum.reduce(state, axis=1), np.maximum.reduce(state, axis=1)
        is_sound = (low < lowest) & (highest < high)
        is_healthy: Array = is_sound & _within(self._z, d.qpos[:, 1]) & _within(self._angle, d.qpos[:, 2])
        return is_healthy

    def row_code(self) -> RowCode:
        """Compiled code for its rows."""
        return self._row_code(self._z, self._angle, self._state)


class Walker2d(_Upright):
    """Walks on two legs.

    Args:
        xml_file: The model; by default the one of the version.
        frame_skip: Steps of the simulation per step.
        healthy_z_range: The range in which the height is healthy.
        healthy_angle_range: The range in which the angle of the torso is healthy.
        **options: ``forward_reward_weight``, ``ctrl_cost_weight``, ``healthy_reward``, ``terminate_when_unhealthy``,
            ``velocity_range`` (to which speeds are clipped in observations), ``reset_noise_scale``,
            ``exclude_current_positions_from_observation``, and the options of ``Robot``.
    """

    camera: ClassVar[Mapping[str, Any]] = {**_SIDE_VIEW, "distance": 4.0}
    models: ClassVar[Mapping[int, str]] = {4: "walker2d.xml", 5: "walker2d_v5.xml"}

    def __init__(
        self,
        *,
        xml_file: Any = None,
        frame_skip: int = 4,
        healthy_z_range: tuple[float, float] = (0.8, 2.0),
        healthy_angle_range: tuple[float, float] = (-1.0, 1.0),
        **options: Any,
    ) -> None:
        super().__init__(xml_file=xml_file, frame_skip=frame_skip, **options)
        self._z = interval("healthy_z_range", healthy_z_range)
        self._angle = interval("healthy_angle_range", healthy_angle_range)

    def is_healthy(self, d: Sims) -> Array:
        """Whether height and angle are in range."""
        return _within(self._z, d.qpos[:, 1]) & _within(self._angle, d.qpos[:, 2])

    def row_code(self) -> RowCode:
        """Compiled code for its rows."""
        return self._row_code(self._z, self._angle)


def _within(bounds: tuple[float, float], values: Array) -> Array:
    inside: Array = (bounds[0] < values) & (values < bounds[1])
    return inside


_ANY = (-float("inf"), float("inf"))


def _runner_code(
    robot: HalfCheetah | _Upright,
    told: tuple[str | None, ...],
    *,
    hidden: int,
    velocity: tuple[float, float] = _ANY,
    survival: tuple[float, bool, bool] = (0.0, False, False),
    ranges: tuple[tuple[float, float], tuple[float, float]] = (_ANY, _ANY),
    state: tuple[float, float] | None = None,
) -> RowCode:
    """Code for a runner, whose state is checked if it has a range."""
    weights = (robot.dt, robot.forward_reward_weight)
    switches = (*survival, state is not None, float(robot.qpos0[1]))
    numbers = (hidden, *velocity, robot.ctrl_cost_weight, *weights, *switches, *ranges[0], *ranges[1], *(state or _ANY))
    return RowCode("runner_rows", numbers, told, robot.nq - hidden + robot.nv)
