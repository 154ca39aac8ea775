"""Transforms and native envs of TorchRL's dialect, shoal's and TorchRL's own in turns: steps in a second.

    python benchmarks/torchrl_transforms.py --peer .venv-torchrl/bin/python
    python benchmarks/torchrl_transforms.py --peer ... --rounds 3 --seconds 1 --only chess

Both interpreters need ``chess``. See ``torchrl_turns`` for how the two are measured.

    transforms 8     StepCounter, RewardSum, ObservationNorm and DoubleToFloat around a SerialEnv of 8 CartPoles
    chess            rollouts of random legal moves, of at most 100 steps
    pendulum 1024    1024 pendulums in one TensorDict, step by step and as rollouts of 50 steps
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torchrl_turns import Goal, compare, library, rate, steps_per_second

GOALS = {
    "transforms 8": Goal(4.0),
    "chess": Goal(1.5),
    "pendulum 1024": Goal(2.0),
    "pendulum 1024, rollouts": Goal(2.0),
}
PENDULUMS = 1024


def measure(name: str, load: str, seconds: float) -> float:
    """Steps per second of one load."""
    face = library(name)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if load == "transforms 8":
        return transforms(face, seconds)
    if load == "chess":
        return rollouts(face.ChessEnv(), 100, seconds)
    env = face.PendulumEnv()
    root = env.reset(env.gen_params(batch_size=[PENDULUMS]))
    if load.endswith("rollouts"):
        return rollouts(env, 50, seconds, tensordict=root, auto_reset=False)
    return steps_per_second(env, PENDULUMS, seconds, root=root)


def transforms(face: Any, seconds: float) -> float:
    chain = face.Compose(
        face.StepCounter(),
        face.RewardSum(),
        face.ObservationNorm(loc=0.0, scale=1.0, in_keys=["observation"]),
        face.DoubleToFloat(),
    )
    env = face.TransformedEnv(face.SerialEnv(8, partial(face.GymEnv, "CartPole-v1")), chain)
    try:
        return steps_per_second(env, 8, seconds)
    finally:
        env.close()


def rollouts(env: Any, length: int, seconds: float, **options: Any) -> float:
    return rate(lambda: int(env.rollout(length, **options).numel()), seconds)


if __name__ == "__main__":
    compare(__file__, __doc__.splitlines()[0] if __doc__ else "", GOALS, measure)
