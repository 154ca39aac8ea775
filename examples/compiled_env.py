"""An env that no library ships, written in Python and compiled: thousands of ferries cross a river as one batch.

``Ferry`` is all there is to write. The first run compiles it, which takes some seconds; later runs find the code in a
cache. numba has to be installed (``pip install 'shoal[kernels]'``).

    python examples/compiled_env.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from gymnasium import spaces

import shoal

Policy = Callable[[np.ndarray], np.ndarray]


class Ferry(shoal.KernelEnv):
    """Cross a river with the rudder, in a current that keeps changing, to a dock at x = 0 on the other bank."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    state = {"x": np.float64, "y": np.float64, "heading": np.float64, "current": np.float64}
    info = {"miss": np.float64}
    constants = {"width": 50.0, "speed": 2.0, "gust": 0.15}
    max_episode_steps = 200

    def reset(env, rng, obs):
        env.x = rng.uniform(-20.0, 20.0)
        env.y = 0.0
        env.heading = 0.0
        env.current = rng.normal(0.0, 0.5)
        env.miss = abs(env.x)
        observe(env, obs)

    def step(env, action, rng, obs):
        env.heading += 0.2 * float(action[0])
        env.current += rng.normal(0.0, env.gust) - 0.05 * env.current
        # The current is strongest in midstream.
        env.x += env.speed * math.sin(env.heading) + env.current * math.sin(math.pi * env.y / env.width)
        env.y = max(env.y + env.speed * math.cos(env.heading), 0.0)
        env.miss = abs(env.x)
        observe(env, obs)
        if env.y < env.width:
            return -0.1, False
        return max(20.0 - env.miss, 0.0), True


def observe(env, obs):
    obs[0] = env.x
    obs[1] = env.y
    obs[2] = env.heading
    obs[3] = env.current


def steer(obs: np.ndarray) -> np.ndarray:
    """Turn the bow to the dock, and against the current."""
    x, y, heading, current = obs.T
    wanted = np.arctan2(-x, 55.0 - y) - 0.4 * current
    return np.clip((wanted - heading) / 0.2, -1.0, 1.0)[:, None]


def drift(obs: np.ndarray) -> np.ndarray:
    """Turn the rudder at random."""
    return RANDOM.uniform(-1.0, 1.0, (len(obs), 1)).astype(np.float32)


def crossings(envs: shoal.ShoalVectorEnv, policy: Policy, num_batches: int = 300) -> str:
    """What the episodes of some batches returned, and how fast that went, policy included."""
    obs, _ = envs.reset(seed=1)
    steps, sums, returns = 0, np.zeros(envs.num_envs), []
    start = time.perf_counter()
    for _ in range(num_batches):
        obs, rewards, terminated, truncated, infos = envs.step(policy(obs))
        steps += np.count_nonzero(infos["elapsed_step"])  # rows that only reset an env are not steps
        sums += rewards
        over = terminated | truncated
        returns.extend(sums[over])
        sums[over] = 0.0
    rate = steps / (time.perf_counter() - start)
    return f"{len(returns)} crossings, mean return {np.mean(returns):5.2f}, {rate:,.0f} env-steps/s"


def misses(envs: shoal.ShoalVectorEnv, obs: np.ndarray, policy: Policy) -> np.ndarray:
    """How far from the dock each ferry ends this crossing, as its info says."""
    result = np.full(envs.num_envs, np.nan)
    while np.isnan(result).any():
        obs, _, terminated, truncated, infos = envs.step(policy(obs))
        arrived = (terminated | truncated) & np.isnan(result)
        result[arrived] = infos["miss"][arrived]
    return result


NUM_ENVS = 4096
RANDOM = np.random.default_rng(1)

start = time.perf_counter()
with shoal.make_vec(Ferry, num_envs=NUM_ENVS) as envs:
    print(f"{envs}, made in {time.perf_counter() - start:.1f} s")
    print("at random:", crossings(envs, drift))
    print("steered:  ", crossings(envs, steer))

# A constant may differ from env to env: here the first river is calm, the last one wild, and the rest in between.
gusts = [{"gust": gust} for gust in np.linspace(0.0, 0.5, NUM_ENVS)]
with shoal.make_vec(Ferry, NUM_ENVS, env_kwargs=gusts) as envs:
    obs, _ = envs.reset(seed=1)
    quarters = misses(envs, obs, steer).reshape(4, -1).mean(axis=1)
    print("metres off the dock, from calm to wild rivers:", quarters.round(2))


# The same class runs as plain Python, where a debugger can stop in it, and gives the same rows.
def rows(engine: str) -> np.ndarray:
    with shoal.make_vec(Ferry, num_envs=4, engine=engine) as envs:
        obs, _ = envs.reset(seed=7)
        return np.stack([obs := envs.step(steer(obs))[0] for _ in range(100)])


assert (rows("kernel") == rows("serial")).all()
print("400 rows are the same, compiled and uncompiled")

# Look ahead: 64 copies of one ferry, each with a different trim of the rudder. All have the same luck to come.
with shoal.make_vec(Ferry, num_envs=64) as envs:
    obs, _ = envs.reset(seed=5)
    here = envs.pool.snapshot([0])
    alone = misses(envs, obs, steer)[0]
    envs.pool.restore(here)  # one env in the snapshot, so all 64 become this one
    trims = np.linspace(-0.5, 0.5, 64, dtype=np.float32)[:, None]
    tried = misses(envs, np.repeat(obs[:1], 64, axis=0), lambda obs: np.clip(steer(obs) + trims, -1.0, 1.0))
    print(f"one ferry lands {alone:.2f} m off the dock; the best of 64 futures {tried.min():.2f} m off")
