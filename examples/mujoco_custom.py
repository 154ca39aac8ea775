"""A model of your own as a pool: a hundred cranes that have to hold their loads still, each of a different weight.

``Crane`` is all there is to write: what is observed and what is rewarded, for all envs at once, in numpy. MuJoCo 4 has
to be installed (``pip install 'shoal[mujoco]'``).

    python examples/mujoco_custom.py
"""

from __future__ import annotations

import time

import numpy as np

import shoal

MODEL = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <body name="trolley" pos="0 0 3">
      <joint name="rail" type="slide" axis="1 0 0" damping="5"/>
      <geom type="box" size="0.2 0.1 0.1" mass="20"/>
      <body name="load">
        <joint name="rope" type="hinge" axis="0 1 0" damping="0.2"/>
        <geom type="capsule" fromto="0 0 0 0 0 -1.5" size="0.02" mass="0.5"/>
        <body name="weight" pos="0 0 -1.5">
          <geom type="sphere" size="0.15" mass="10"/>
          <site name="hook"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="rail" ctrlrange="-1 1" gear="200"/>
  </actuator>
</mujoco>
"""


class Crane(shoal.MujocoEnv):
    """Bring the load to x = 0 and keep it there; every env has a load of its own."""

    model = MODEL
    frame_skip = 4
    fields = ("site_xpos",)
    info = {"load_x": np.float64}
    max_episode_steps = 300

    def __init__(self, *, lightest: float = 10.0, heaviest: float = 10.0, **options: object) -> None:
        super().__init__(**options)
        self.lightest, self.heaviest = lightest, heaviest

    def prepare(self, batch):
        """Called once, with the simulations of all envs: here each gets its own mass."""
        if self.lightest < self.heaviest:
            batch.body("weight").mass = np.linspace(self.lightest, self.heaviest, batch.nsim)[:, None]
            batch.set_const()

    def start(self, rng):
        """Positions and speeds of one env at the start of an episode."""
        return np.array([rng.uniform(-2.0, 2.0), rng.uniform(-0.3, 0.3)]), self.qvel0

    def observe(self, d):
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def reward(self, d):
        return 1.0 - np.abs(d.site_xpos[:, 0, 0]) - 0.1 * d.action[:, 0] ** 2

    def terminated(self, d):
        return np.abs(d.qpos[:, 0]) > 4.0

    def report(self, d):
        d.info["load_x"] = d.site_xpos[:, 0, 0]


def drive(obs: np.ndarray) -> np.ndarray:
    """A controller that was tuned for a load of 10 kg."""
    x, angle, speed, turn = obs.T
    return np.clip(-1.1 * x - 0.75 * speed - 1.1 * angle + 0.5 * turn, -1.0, 1.0)[:, None].astype(np.float32)


def episode(envs: shoal.ShoalVectorEnv) -> np.ndarray:
    """The return of one episode of every env."""
    obs, _ = envs.reset(seed=1)
    returns, is_over = np.zeros(envs.num_envs), np.zeros(envs.num_envs, bool)
    while not is_over.all():
        obs, rewards, terminated, truncated, _ = envs.step(drive(obs))
        returns += np.where(is_over, 0.0, rewards)
        is_over |= terminated | truncated
    return returns


NUM_ENVS = 100

with shoal.make_vec(Crane, NUM_ENVS) as envs:
    start = time.perf_counter()
    returns = episode(envs)
    print(f"{envs}: mean return {returns.mean():.1f}, {time.perf_counter() - start:.2f} s")

with shoal.make_vec(Crane, NUM_ENVS, env_kwargs={"lightest": 1.0, "heaviest": 100.0}) as envs:
    returns = episode(envs).reshape(4, -1).mean(axis=1)
    print("from light loads to heavy ones:", returns.round(1))

    # Simulations can be saved and restored: what happens after that depends on the actions alone.
    obs, _ = envs.reset(seed=2)
    here = envs.pool.snapshot()
    once = np.stack([envs.step(drive(obs))[0] for _ in range(20)])
    envs.pool.restore(here)
    again = np.stack([envs.step(drive(obs))[0] for _ in range(20)])
    assert (once == again).all()
    print("gone back, and the same again")
