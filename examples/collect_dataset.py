"""Collect CartPole under a simple policy into a folder, read it back, and fit values to it in two ways.

python examples/collect_dataset.py
"""

from __future__ import annotations

import tempfile

import numpy as np

import shoal
from shoal.collect import load_dataset, write_dataset


def policy(obs: np.ndarray) -> np.ndarray:
    """Push the cart to the side that the pole leans and turns to; stands in for your network."""
    return (obs[:, 2] + obs[:, 3] > 0).astype(np.int64)


with tempfile.TemporaryDirectory() as folder:
    with shoal.make_pool("CartPole-v1", 16, engine="serial") as pool:
        # Each env plays 500 steps per part. Parts that are complete survive whatever happens to this program.
        written = write_dataset(pool, folder, steps=16_000, part_rows=8_000, policy=policy, seed=1, format="npz")
    print(f"{written.rows:,} rows at {written.rows_per_s:,.0f} steps/s, mean return {written.mean_return:.0f}")

    dataset = load_dataset(folder)
    print(dataset.config.env, list(dataset.columns))
    data = dataset.to_numpy()

cut = data["truncated"] & ~data["terminated"]
print(f"{data['terminated'].sum()} episodes terminated, {cut.sum()} were cut by the time limit")


def value_of_standing(goes_on: np.ndarray, gamma: float = 0.99) -> float:
    """The value of the upright pole in the middle, fitted to target = r + gamma * V(s') * goes_on."""
    features, after = (np.column_stack([obs**2, np.ones(len(obs))]) for obs in (data["obs"], data["next_obs"]))
    weights = np.zeros(features.shape[1])
    for _ in range(500):
        target = data["reward"] + gamma * (after @ weights) * goes_on
        weights = np.linalg.lstsq(features, target, rcond=None)[0]
    return float(weights[-1])


# A pole that never falls is worth 1 / (1 - 0.99) = 100. One that the time limit cut still stood, so V(s') counts.
print(f"bootstrapping where not terminated: {value_of_standing(~data['terminated']):.0f}")
print(f"nor where it was cut:               {value_of_standing(~(data['terminated'] | cut)):.0f}")
