"""``MujocoEnv``: a model, and what is observed and rewarded in it, written for all envs at once.

    class Cart(MujocoEnv):
        model = "cart.xml"
        frame_skip = 2
        max_episode_steps = 500

        def start(self, rng):
            return self.qpos0 + rng.uniform(-0.1, 0.1, self.nq), self.qvel0

        def observe(self, d):
            return np.concatenate((d.qpos, d.qvel), axis=1)

        def reward(self, d):
            return 1.0 - d.qpos[:, 1] ** 2

        def terminated(self, d):
            return np.abs(d.qpos[:, 1]) > 0.5

``d`` has the fields of ``MjData`` by name, each as an array with one row per env, and ``action``, ``before`` and
``after``, ``dt``, ``info``: see ``Sims``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from shoal.arguments import check_count
from shoal.envs.mujoco import contact_forces
from shoal.envs.mujoco.models import load_model
from shoal.envs.mujoco.stacking import StackedSim, stacked
from shoal.errors import ArgumentError, SpecError
from shoal.native import NativeEnv
from shoal.spec import EnvSpec, Field, SpaceTree

if TYPE_CHECKING:
    import mujoco
    from gymnasium import Space

    from shoal.envs.mujoco.compiled import RowCode
    from shoal.envs.mujoco.drawing import Camera
    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array, BatchSim

_RENDER_MODES = ("rgb_array", "depth_array")


class MujocoEnv(NativeEnv):
    """One kind of env on a MuJoCo model. Subclasses name the model and write ``observe`` and ``reward``.

    Attributes:
        model: An ``MjModel``, an ``MjSpec``, the text of a model, or the name of a file; ``xml_file`` replaces it.
        frame_skip: Steps of the simulation per step of the env.
        fields: Derived fields of ``MjData`` that the methods use, such as ``"xpos"``. State (``qpos``, ``qvel``,
            ``act``, ``ctrl``, ...) is always available.
        info: Info fields that every row has, ``name -> dtype`` or ``name -> (dtype, shape)``.
        step_info: Info fields that the first row of an episode does not have.
        observation_space: The space of observations; by default, an unbounded one of their shape.
        action_space: The space of actions, a ``Box`` with a number for each control; by default, the range of the
            controls in float32.
        camera: Where the picture is taken from, as a mapping of the fields of ``mjvCamera``.
        depth_in_metres: Whether pictures of depth are in metres; otherwise, depth is 0 at the near plane of the camera
            and 1 at the far one, and not linear in between.

    Args:
        xml_file: A model in place of the class's own.
        frame_skip: A number in place of the class's own.
        frame_stack: How many of the last observations make up one; with more than one, they have an axis of their own.
        post_constraint: Whether contact forces are computed after each step, if ``fields`` has one of them.
        action_dtype: The type of actions.
        render_mode: ``"rgb_array"`` or ``"depth_array"``.
        width: The width of pictures.
        height: The height of pictures.
        camera_id: A camera of the model, in place of ``camera``.
        camera_name: The same, by name.
        default_camera_config: A mapping in place of the class's ``camera``.
        max_geom: How many geoms a picture may have.

    Example:
        >>> class Ball(MujocoEnv):
        ...     model = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
        ...
        ...     def observe(self, d):
        ...         return d.qpos
        ...
        ...     def reward(self, d):
        ...         return -d.qvel[:, 2]
        >>> import shoal
        >>> with shoal.make_pool(Ball, 3) as pool:
        ...     batch = pool.reset(seed=1)
        >>> batch.obs.shape
        (3, 7)
    """

    model: ClassVar[Any] = None
    frame_skip: int = 1
    fields: tuple[str, ...] = ()
    info: Mapping[str, Any] = {}
    step_info: Mapping[str, Any] = {}
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    camera: ClassVar[Mapping[str, Any]] = {}
    depth_in_metres: ClassVar[bool] = True

    def __init__(
        self,
        *,
        xml_file: Any = None,
        frame_skip: int | None = None,
        frame_stack: int = 1,
        post_constraint: bool = True,
        action_dtype: Any = np.float32,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
        camera_id: int | None = None,
        camera_name: str | None = None,
        default_camera_config: Mapping[str, Any] | None = None,
        max_geom: int = 1000,
    ) -> None:
        name = type(self).__name__
        if render_mode is not None and render_mode not in _RENDER_MODES:
            raise ArgumentError(f"{name}: render_mode: expected one of {_RENDER_MODES}, got {render_mode!r}")
        self.source = type(self).model if xml_file is None else xml_file
        if self.source is None:
            raise ArgumentError(f"{name}: model: there is none")
        self.frame_skip = _count(name, "frame_skip", type(self).frame_skip if frame_skip is None else frame_skip)
        self.frame_stack = _count(name, "frame_stack", frame_stack)
        self.post_constraint = bool(post_constraint)
        self.action_dtype = np.dtype(action_dtype)
        self.render_mode = render_mode
        self._bodies: dict[int | str, int] = {}
        self._view: dict[str, Any] = {
            "width": width,
            "height": height,
            "camera_id": camera_id,
            "camera_name": camera_name,
            "config": self.camera if default_camera_config is None else default_camera_config,
            "max_geom": max_geom,
            "in_metres": self.depth_in_metres,
        }

    # ------------------------------------------------------------------ for the author of an env

    def start(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """``qpos`` and ``qvel`` at the start of an episode of one env, drawn with its own generator."""
        return self.qpos0, self.qvel0

    def observe(self, d: Sims) -> Any:
        """The observations: an array with a row per env, or a dict of them."""
        raise NotImplementedError(f"{type(self).__name__}: write observe(self, d)")

    def reward(self, d: Sims) -> Any:
        """The rewards of a step, one per env or one plain number for all. It may write info fields, like ``report``."""
        raise NotImplementedError(f"{type(self).__name__}: write reward(self, d)")

    def terminated(self, d: Sims) -> Any:
        """Which episodes have terminated, one bool per env or a plain one for all; by default none ever does."""
        return False

    def report(self, d: Sims) -> None:
        """Write the info fields that every row has: ``d.info["height"] = d.qpos[:, 2]``."""

    def track(self, d: Sims) -> Any:
        """Numbers, in one row per env, whose values before a step are needed after it, as ``d.before``."""
        return None

    def prepare(self, batch: Any) -> None:
        """Called once with the ``mujoco.batch.Batch`` of a pool, to give each env its own masses, gains and so on.

        ``batch.expand("body_mass")`` is an array with a row per env, and ``batch.body("pole").mass = masses`` writes to
        it; ``batch.set_const()`` follows.
        """

    def row_code(self) -> RowCode | None:
        """Compiled code that writes the same rows as the methods above; None for most kinds."""
        return None

    # ------------------------------------------------------------------ what follows from the model

    @cached_property
    def compiled(self) -> mujoco.MjModel:
        """The model that is simulated."""
        wants_forces = self.post_constraint and not contact_forces.FIELDS.isdisjoint(self.fields)
        return load_model(self.source, with_contact_forces=wants_forces)

    @cached_property
    def dt(self) -> float:
        """Seconds of simulated time per step."""
        return float(self.compiled.opt.timestep) * self.frame_skip

    @cached_property
    def nq(self) -> int:
        """Numbers in ``qpos``."""
        return int(self.compiled.nq)

    @cached_property
    def nv(self) -> int:
        """Numbers in ``qvel``."""
        return int(self.compiled.nv)

    @cached_property
    def qpos0(self) -> Array:
        """The model's initial ``qpos``."""
        return np.array(self.compiled.qpos0)

    @cached_property
    def qvel0(self) -> Array:
        """A ``qvel`` of zeros."""
        return np.zeros(self.nv)

    def body_id(self, body: int | str) -> int:
        """The number of a body."""
        found = self._bodies.get(body)
        if found is None:
            found = self._bodies[body] = int(self.compiled.body(body).id)
        return found

    # ------------------------------------------------------------------ for whatever runs it

    def describe(self, name: str) -> EnvSpec:
        """The contract of one env.

        Raises:
            SpecError: If the class has an action space with which actions are not controls.
        """
        space = self._observation_space
        if self.frame_stack > 1:
            space = stacked(space, self.frame_stack)
        return EnvSpec(
            SpaceTree(space, "observation"),
            SpaceTree(self._action_space, "action"),
            name,
            metadata={"render_modes": list(_RENDER_MODES), "render_fps": round(1.0 / self.dt)},
            render_mode=self.render_mode,
            info=(*_as_fields(self.info, at_reset=True), *_as_fields(self.step_info, at_reset=False)),
        )

    def simulate(self, num_envs: int, num_threads: int) -> BatchSim:
        """A batch of simulations."""
        sim = self._simulations(SpaceTree(self._observation_space, "observation"), num_envs, num_threads)
        return sim if self.frame_stack == 1 else StackedSim(sim, self.describe("").observation, num_envs)

    def _simulations(self, tree: SpaceTree, num_envs: int, num_threads: int) -> BatchSim:
        from shoal.envs.mujoco.sim import MujocoSim

        return MujocoSim(self, tree, num_envs, num_threads)

    @property
    def view(self) -> Camera:
        """How it is drawn."""
        from shoal.envs.mujoco.drawing import Camera

        return Camera(**self._view)

    @cached_property
    def _observation_space(self) -> Space[Any]:
        if self.observation_space is not None:
            return self.observation_space
        from shoal.envs.mujoco.sim import first_observation

        seen = first_observation(self)
        if isinstance(seen, Mapping):
            # An OrderedDict keeps the author's order; Gymnasium would sort the keys of a plain dict.
            return spaces.Dict(OrderedDict((key, _endless(value)) for key, value in seen.items()))
        return _endless(seen)

    @cached_property
    def _action_space(self) -> Space[Any]:
        model, space = self.compiled, self.action_space
        if space is not None:
            if not isinstance(space, spaces.Box) or space.shape != (model.nu,):
                raise SpecError(
                    f"{type(self).__name__}.action_space: expected a Box of shape ({model.nu},), one number for each "
                    f"control of the model, got {space}"
                )
            return space
        limits = np.where(model.actuator_ctrllimited[:, None] != 0, model.actuator_ctrlrange, (-np.inf, np.inf))
        low, high = limits.T.astype(self.action_dtype)
        return spaces.Box(low, high, dtype=self.action_dtype.type)


def _endless(rows: Array) -> spaces.Box:
    dtype = rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float64)
    return spaces.Box(-np.inf, np.inf, rows.shape[1:], dtype.type)


def _as_fields(declared: Mapping[str, Any], *, at_reset: bool) -> list[Field]:
    pairs = [(name, kind if isinstance(kind, tuple) else (kind, ())) for name, kind in declared.items()]
    return [Field(name, np.dtype(dtype), _shape(shape), at_reset) for name, (dtype, shape) in pairs]


def _count(name: str, option: str, value: Any) -> int:
    check_count(f"{name}: {option}", value, may_be_none=False)
    return int(value)


def _shape(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)
