"""``SuiteEnv``: an env of dm_control's suite with Gymnasium's interface."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from mujoco import FatalError

from shoal.adapters.dm_env import DmEnvAdapter, random_state
from shoal.envs.dm_control.library import load_env
from shoal.errors import ArgumentError, BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

_RENDER_MODES = ("rgb_array", "depth_array")
# Domains with random numbers in their models, not only in their episodes: a seed has to reach the model too.
_DRAWN = frozenset({"lqr"})
# Steps of the simulation per step: the control timestep of a domain in timesteps of its model.
_SUBSTEPS = {
    "acrobot": 1,
    "ball_in_cup": 10,
    "cartpole": 1,
    "cheetah": 1,
    "dog": 3,
    "finger": 2,
    "fish": 10,
    "hopper": 4,
    "humanoid": 5,
    "humanoid_CMU": 10,
    "lqr": 1,
    "manipulator": 10,
    "pendulum": 1,
    "point_mass": 1,
    "quadruped": 4,
    "reacher": 1,
    "stacker": 10,
    "swimmer": 15,
    "walker": 10,
}


class SuiteEnv(DmEnvAdapter):
    """An env of the suite. Its time limit is left to whatever runs it, unless ``task_kwargs`` has a ``time_limit``.

    Args:
        domain_name: The domain, such as ``"cheetah"``.
        task_name: The task, such as ``"run"``.
        frame_skip: Steps of the simulation per step; by default as many as the task has.
        task_kwargs: Keyword arguments of the task, as for ``dm_control.suite.load``.
        environment_kwargs: Keyword arguments of its ``Environment``, such as ``{"flat_observation": True}``.
        visualize_reward: Whether colours show the reward.
        render_mode: ``"rgb_array"`` or ``"depth_array"``.
        width: The width of pictures.
        height: The height of pictures.
        camera_id: The camera, by number or name.

    Example:
        >>> env = SuiteEnv(domain_name="cartpole", task_name="balance")
        >>> obs, info = env.reset(seed=1)
    """

    def __init__(
        self,
        *,
        domain_name: str,
        task_name: str,
        frame_skip: int | None = None,
        task_kwargs: Mapping[str, Any] | None = None,
        environment_kwargs: Mapping[str, Any] | None = None,
        visualize_reward: bool = False,
        render_mode: str | None = None,
        width: int = 320,
        height: int = 240,
        camera_id: int | str = 0,
    ) -> None:
        name = f"{domain_name}-{task_name}"
        if render_mode is not None and render_mode not in _RENDER_MODES:
            raise ArgumentError(f"{name}: render_mode: expected one of {_RENDER_MODES}, got {render_mode!r}")
        if frame_skip is not None and frame_skip < 1:
            raise ArgumentError(f"{name}: frame_skip: expected at least 1, got {frame_skip!r}")
        self._name = name
        self._frame_skip = frame_skip
        self._recipe = (domain_name, task_name, {"time_limit": inf, **(task_kwargs or {})})
        self._looks = dict(environment_kwargs or {}) or None, visualize_reward
        self._is_drawn = domain_name in _DRAWN and "random" not in (task_kwargs or {})
        super().__init__(self._load({}))
        self.metadata = {
            **self.metadata,
            "render_modes": list(_RENDER_MODES),
            "render_fps": round(1.0 / self.env.control_timestep()),
        }
        self.render_mode = render_mode
        self._picture = {"width": width, "height": height, "camera_id": camera_id}

    @staticmethod
    def settled_options(options: Mapping[str, Any]) -> dict[str, Any]:
        """The steps of the simulation per step, unless ``environment_kwargs`` may have a say in it."""
        return {} if options["environment_kwargs"] else {"frame_skip": _SUBSTEPS.get(options["domain_name"])}

    def _load(self, extra: Mapping[str, Any]) -> Any:
        domain, task, kwargs = self._recipe
        env = load_env(domain, task, {**kwargs, **extra}, *self._looks)
        if self._frame_skip is not None:
            # Most tasks name a control timestep, and dm_control takes one or the other, not both.
            env._n_sub_steps = int(self._frame_skip)
        return env

    def _seed(self, seed: int) -> None:
        if self._is_drawn:
            self.env.close()
            self.env = self._load({"random": random_state(seed)})
        else:
            super()._seed(seed)

    def render(self) -> Any:
        """A picture."""
        if self.render_mode is None:
            raise ArgumentError(f"{self._name}: to render, make it with render_mode='rgb_array'")
        try:
            return self.env.physics.render(**self._picture, depth=self.render_mode == "depth_array")
        except (FatalError, RuntimeError, AttributeError) as error:  # which one depends on what is missing
            raise BackendUnavailable(
                f"render: dm_control cannot draw here ({error}); without a screen it needs EGL or OSMesa: "
                "set MUJOCO_GL=egl or MUJOCO_GL=osmesa before it is imported, and install libegl1 or libosmesa6"
            ) from error
