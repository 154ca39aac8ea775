"""Many simulations of one task of the suite.

dm_control updates what is derived from positions and velocities after every step, while forces stay those of the last
substep. A ``Batch`` does the same when it is told to go on to the velocity stage. If a simulation becomes unstable,
MuJoCo restarts it and goes on; for dm_control that is an error, and so it is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mujoco import mjtStage

from shoal.envs.dm_control.generators import RandomStates
from shoal.envs.mujoco.sim import MujocoSim

if TYPE_CHECKING:
    from shoal.envs.dm_control.task import NativeTask
    from shoal.native import Array, Errors, Ids
    from shoal.spec import SpaceTree

_VELOCITY = mjtStage.mjSTAGE_VEL.value
# With more substeps than this, what could be kept from one step to the next is a small part of the work.
_FEW_SUBSTEPS = 2


class SuiteSim(MujocoSim):
    """The envs of a ``NativeTask``."""

    kind: NativeTask

    def __init__(self, kind: NativeTask, tree: SpaceTree, num_envs: int, num_threads: int) -> None:
        super().__init__(kind, tree, num_envs, num_threads)
        self.generators = RandomStates(num_envs)
        self._timestep = float(kind.compiled.opt.timestep)

    @property
    def _is_persistent(self) -> bool:
        return self.kind.frame_skip <= _FEW_SUBSTEPS

    @property
    def own_fields(self) -> tuple[str, ...]:
        """Empty, since nothing depends on how many envs there are: every episode draws its own values."""
        return ()

    def _begin(self, ids: Ids) -> Errors:
        return self.kind.begin(self, ids)

    def _advance(self, ids: Ids | None, count: int) -> Errors:
        which: Any = slice(None) if ids is None else ids
        time = self.arrays["time"].reshape(-1)
        due = time[which] + (count - 0.5) * self._timestep
        errors = self._run(self.batch.step, ids, count, _VELOCITY)
        is_late = time[which] < due  # the clock of an unstable simulation was restarted, too
        if is_late.any():
            unstable = np.arange(len(time))[which][is_late].tolist()
            errors = {
                **{i: RuntimeError("the simulation is unstable: NaN, Inf or a huge value") for i in unstable},
                **errors,
            }
        return errors

    def settle(self, ids: Ids, count: int) -> Errors:
        """Take steps of the simulation before an episode begins."""
        errors = self._advance(ids, count)
        self.array("time")[ids] = 0.0
        return errors

    def array(self, name: str) -> Array:
        """A field of ``MjData``, one row per env."""
        return self.arrays[name]

    def own_model(self, name: str) -> Array:
        """A field of the model that each env has its own copy of, one row per env."""
        return self._own_model[name]

    def run(self, call: Any, ids: Ids, *arguments: Any) -> Errors:
        """Have the batch do something in some simulations."""
        return self._run(call, ids, *arguments)
