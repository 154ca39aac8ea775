"""Step 16 envs together, with a policy that looks at a batch of observations, and read what it cost.

python examples/quickstart_sync.py
"""

from __future__ import annotations

import numpy as np

import shoal


def policy(obs: np.ndarray) -> np.ndarray:
    """Push the cart to the side that the pole leans and turns to; stands in for your network."""
    return (obs[:, 2] + obs[:, 3] > 0).astype(np.int64)


NUM_ENVS, NUM_STEPS = 16, 2000
returns, finished = np.zeros(NUM_ENVS), []

with shoal.make_vec("CartPole-v1", num_envs=NUM_ENVS) as envs:
    obs, infos = envs.reset(seed=1)
    for _ in range(NUM_STEPS):
        obs, rewards, terminated, truncated, infos = envs.step(policy(obs))
        returns += rewards
        over = terminated | truncated
        finished.extend(returns[over])
        returns[over] = 0.0
    stats = envs.stats()

print(f"engine: {stats.engine} ({stats.engine_reason})")
print(f"{len(finished)} episodes, mean return {np.mean(finished):.1f}")
print(
    f"waiting for envs {stats.waiting_s:.2f} s, pool {stats.handling_s:.2f} s, everything else {stats.outside_s:.2f} s"
)
