"""Things that swing: cartpole with up to three poles, pendulum, acrobot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.envs.dm_control import rewards
from shoal.envs.dm_control.task import NativeTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.envs.mujoco.sim import Sims
    from shoal.native import Array

_XZ, _ZZ = 2, 8  # indices in a rotation matrix
_UP = float(np.cos(np.deg2rad(8)))  # upright enough for the pendulum


class Cartpole(NativeTask):
    """Keeps poles upright on a cart, or swings them up first."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "balance": {"swings": False, "sparse": False, "poles": 1},
        "balance_sparse": {"swings": False, "sparse": True, "poles": 1},
        "swingup": {"swings": True, "sparse": False, "poles": 1},
        "swingup_sparse": {"swings": True, "sparse": True, "poles": 1},
        "two_poles": {"swings": True, "sparse": False, "poles": 2},
        "three_poles": {"swings": True, "sparse": False, "poles": 3},
    }
    fields: tuple[str, ...] = ("xmat",)

    def model_options(self) -> dict[str, Any]:
        """The number of poles in the task."""
        return {"num_poles": self.settings["poles"]}

    def start(self, rng: Any) -> tuple[Array, Array]:
        """Hanging or standing, with a little noise."""
        qpos = self.qpos0.copy()
        if self.settings["swings"]:
            qpos[0] = 0.01 * rng.randn()
            qpos[1] = np.pi + 0.01 * rng.randn()
            qpos[2:] = 0.1 * rng.randn(self.nv - 2)
        else:
            qpos[0] = rng.uniform(-0.1, 0.1)
            qpos[1:] = rng.uniform(-0.034, 0.034, self.nv - 1)
        return qpos, 0.01 * rng.randn(self.nv)

    def observe(self, d: Sims) -> dict[str, Array]:
        """The cart, the poles as cosines and sines, and speeds."""
        turned = d.xmat[:, 2:, (_ZZ, _XZ)]
        position = np.concatenate((d.qpos[:, :1], turned.reshape(len(turned), -1)), axis=1)
        return {"position": position, "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """Being upright in the middle, calmly and with little effort; in sparse tasks only whether it is there."""
        cart, cosines = d.qpos[:, 0], d.xmat[:, 2:, _ZZ]
        if self.settings["sparse"]:
            sparse: Array = rewards.within(cart, -0.25, 0.25) * rewards.within(cosines, 0.995, 1.0).prod(axis=1)
            return sparse
        upright = ((cosines + 1) / 2).mean(axis=1)
        centered = (1 + rewards.bell(cart, margin=2.0)) / 2
        easy = (4 + rewards.small(d.ctrl[:, 0])) / 5
        calm = (1 + rewards.bell(d.qvel[:, 1:], margin=5.0).min(axis=1)) / 2
        reward: Array = upright * easy * calm * centered
        return reward


class Pendulum(NativeTask):
    """Swings up a pole that is too heavy to be lifted directly."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {"swingup": {}}
    fields: tuple[str, ...] = ("xmat",)

    def observe(self, d: Sims) -> dict[str, Array]:
        """The pole as cosine and sine, and its speed."""
        return {"orientation": d.xmat[:, self.body_id("pole")][:, (_ZZ, _XZ)], "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """Whether the pole is upright."""
        return rewards.within(d.xmat[:, self.body_id("pole"), _ZZ], _UP, 1.0)


class Acrobot(NativeTask):
    """Swings up two poles with a motor in between."""

    tasks: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "swingup": {"sparse": False},
        "swingup_sparse": {"sparse": True},
    }
    fields: tuple[str, ...] = ("xmat", "site_xpos")

    def observe(self, d: Sims) -> dict[str, Array]:
        """The poles as sines, then as cosines, and their speeds."""
        arms = d.xmat[:, (self.body_id("upper_arm"), self.body_id("lower_arm"))]
        return {"orientations": np.concatenate((arms[:, :, _XZ], arms[:, :, _ZZ]), axis=1), "velocity": d.qvel}

    def reward(self, d: Sims) -> Array:
        """How close the tip is to the target."""
        target, tip = (self.id_of("site", name) for name in ("target", "tip"))
        distance = np.linalg.norm(d.site_xpos[:, target] - d.site_xpos[:, tip], axis=1)
        radius = float(self.compiled.site_size[target, 0])
        return rewards.within(distance, 0.0, radius) if self.settings["sparse"] else rewards.bell(distance, 0.0, radius)
