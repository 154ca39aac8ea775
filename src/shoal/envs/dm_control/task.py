"""``NativeTask``: a task of the suite written for all envs at once.

Numbers are drawn in the order in which dm_control draws them, from the same kind of generator, and models are those of
the installed dm_control, so that the same seed and actions give the same episode.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import mujoco
import numpy as np

from shoal.adapters.dm_env import TELLS_DISCOUNT
from shoal.envs.dm_control.library import compile_model
from shoal.envs.mujoco.env import MujocoEnv
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.dm_control.sim import SuiteSim
    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array, BatchSim, Errors, Ids
    from shoal.spec import EnvSpec, SpaceTree

_HINGE = mujoco.mjtJoint.mjJNT_HINGE
_ATTEMPTS = 1000


class NativeTask(MujocoEnv):
    """A task of the suite on ``mujoco.batch``. Subclasses say where episodes begin, what is observed and rewarded.

    Args:
        domain_name: The domain, such as ``"cheetah"``.
        task_name: The task, such as ``"run"``.
        width: The width of pictures.
        height: The height of pictures.
        camera_id: The camera, by number or name.
        action_dtype: The type of actions.
        **options: The options of ``MujocoEnv``.

    Attributes:
        tasks: The settings in which the tasks of the domain differ, by task name.
        settings: The settings of this task.
    """

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    step_info: Mapping[str, Any] = {"discount": np.float64}

    def __init__(
        self,
        *,
        domain_name: str,
        task_name: str,
        width: int = 320,
        height: int = 240,
        camera_id: int | str = 0,
        action_dtype: Any = np.float64,
        **options: Any,
    ) -> None:
        if task_name not in self.tasks:
            raise ArgumentError(f"{domain_name}: task_name: expected one of {tuple(self.tasks)}, got {task_name!r}")
        camera: Any = {"camera_name" if isinstance(camera_id, str) else "camera_id": camera_id}
        super().__init__(
            xml_file=domain_name, width=width, height=height, action_dtype=action_dtype, **{**camera, **options}
        )
        self.domain_name = domain_name
        self.task_name = task_name
        self.settings = self.tasks[task_name]
        self._ids: dict[tuple[str, str], int] = {}
        self._sensors: dict[str, slice] = {}

    # ------------------------------------------------------------------ for tasks

    def model_options(self) -> dict[str, Any]:
        """Arguments for dm_control's function that makes the model of the domain."""
        return {}

    def adjust(self, model: mujoco.MjModel) -> None:
        """Make those changes to the model that the task makes in the same way at the start of every episode."""

    def begin(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Begin an episode in some envs: by default at ``start``, drawn with each env's own generator."""
        for i in ids.tolist():
            sim.array("qpos")[i], sim.array("qvel")[i] = self.start(sim.generators[i])
        return {}

    def begin_apart(self, sim: SuiteSim, ids: Ids) -> Errors:
        """Draw starts with ``start`` until nothing touches anything; ``fields`` must have ``"ncon"``."""
        for _ in range(_ATTEMPTS):
            NativeTask.begin(self, sim, ids)
            errors = sim.run(sim.batch.forward, ids)
            if errors:
                return errors
            ids = ids[sim.array("ncon")[ids].reshape(len(ids)) > 0]
            if not len(ids):
                return {}
        return {int(i): RuntimeError(f"found no start without contacts in {_ATTEMPTS} attempts") for i in ids}

    def start(self, rng: Any) -> tuple[Array, Array]:
        """Every joint with limits somewhere within them, every other hinge anywhere; everything at rest."""
        places, low, high = self._free_joints
        qpos = self.qpos0.copy()
        qpos[places] = rng.uniform(low, high)
        return qpos, self.qvel0

    def report(self, d: Sims) -> None:
        """Report the discount, which is 1, since only the time limit ends these episodes."""
        if not d.is_reset:
            d.info["discount"] = 1.0

    def id_of(self, kind: str, name: str) -> int:
        """The number of a ``"geom"``, a ``"site"`` and so on."""
        found = self._ids.get((kind, name))
        if found is None:
            found = self._ids[kind, name] = int(getattr(self.compiled, kind)(name).id)
        return found

    def sensor(self, name: str) -> slice:
        """The slice of ``sensordata`` that a sensor writes to."""
        found = self._sensors.get(name)
        if found is None:
            sensor = self.compiled.sensor(name)
            found = self._sensors[name] = slice(int(sensor.adr[0]), int(sensor.adr[0] + sensor.dim[0]))
        return found

    @cached_property
    def _free_joints(self) -> tuple[Array, Array, Array]:
        model = self.compiled
        limited = model.jnt_limited == 1
        chosen = limited | (model.jnt_type == _HINGE)
        ranges = np.where(limited[:, None], model.jnt_range, (-np.pi, np.pi))[chosen]
        return model.jnt_qposadr[chosen], ranges[:, 0], ranges[:, 1]

    # ------------------------------------------------------------------ for whatever runs it

    @cached_property
    def compiled(self) -> mujoco.MjModel:
        """The model of the domain."""
        model = compile_model(self.domain_name, **self.model_options())
        self.adjust(model)
        return model

    def describe(self, name: str) -> EnvSpec:
        """The contract of one env."""
        spec = super().describe(name)
        spec.metadata[TELLS_DISCOUNT] = True
        return spec

    def _simulations(self, tree: SpaceTree, num_envs: int, num_threads: int) -> BatchSim:
        from shoal.envs.dm_control.sim import SuiteSim

        return SuiteSim(self, tree, num_envs, num_threads)
