"""One simulation of many as an object: what a pool's ``call``, ``get_attr``, ``set_attr`` and ``render`` work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from shoal.envs.mujoco.drawing import Drawer
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from gymnasium import Space

    from shoal.envs.mujoco.sim import MujocoSim

_OWN = frozenset({"_sim", "_env_id", "np_random"})


class MujocoView:
    """One env of a simulator.

    The state and the ``fields`` of the env are attributes. State can be set; fields that follow from it are those of
    the last step or reset. Only ``data`` computes them anew, and has all of them.
    """

    def __init__(self, sim: MujocoSim, env_id: int) -> None:
        self._sim = sim
        self._env_id = env_id

    @property
    def unwrapped(self) -> MujocoView:
        """The view itself: nothing is wrapped around it."""
        return self

    @property
    def observation_space(self) -> Space[Any]:
        """The space of the observations, stacked if the pool's are."""
        return self._sim.kind.describe("").observation.space

    @property
    def action_space(self) -> Space[Any]:
        """The space of the actions."""
        return self._sim.kind.describe("").action.space

    @property
    def metadata(self) -> dict[str, Any]:
        """The ways to render and the frames per second."""
        return self._sim.kind.describe("").metadata

    @property
    def spec(self) -> None:
        """None, as for an env that Gymnasium's registry has not made."""

    @property
    def np_random(self) -> np.random.Generator:
        """The env's own generator."""
        generator: np.random.Generator = self._sim.generators[self._env_id]
        return generator

    @np_random.setter
    def np_random(self, generator: np.random.Generator) -> None:
        self._sim.generators[self._env_id] = generator

    @property
    def np_random_seed(self) -> int:
        """The last seed that the env was given, or -1."""
        return self._sim.seeds.get(self._env_id, -1)

    @property
    def model(self) -> mujoco.MjModel:
        """A copy of the model, with what this env has of its own."""
        return self._sim.batch.get_model(self._env_id)

    @property
    def data(self) -> mujoco.MjData:
        """A copy of the simulation, with derived fields computed from its current state."""
        data = self._sim.batch.get_data(self._env_id)
        mujoco.mj_forward(self.model, data)
        return data

    def set_state(self, qpos: Any, qvel: Any) -> None:
        """Put the simulation into this state."""
        self._sim.arrays["qpos"][self._env_id] = qpos
        self._sim.arrays["qvel"][self._env_id] = qvel
        self._sim.note_move(self._env_id)

    def render(self, camera_id: int | None = None) -> Any:
        """A picture of the env, from the camera that it was made with or another one."""
        kind = self._sim.kind
        if kind.render_mode is None:
            raise ArgumentError(f"{type(kind).__name__}: to render, make it with render_mode='rgb_array'")
        drawer = self._sim.__dict__.get("drawer")
        if drawer is None:
            drawer = self._sim.__dict__["drawer"] = Drawer(kind.compiled, kind.view)
        return drawer.draw(self.model, self.data, kind.render_mode, camera_id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        array = self._sim.arrays.get(name)
        if array is not None:
            return np.copy(array[self._env_id])[()]
        kind = self._sim.kind
        if hasattr(kind, name):
            return getattr(kind, name)
        raise AttributeError(f"{type(kind).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
            return
        array = self._sim.arrays.get(name)
        if array is None or not array.flags.writeable:
            raise AttributeError(f"{type(self._sim.kind).__name__}: {name!r} is not part of the state of an env")
        array[self._env_id] = value
        self._sim.note_move(self._env_id)
