"""A small torch policy, to measure a runner inside a loop that also needs the cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_FEATURES = 128
HIDDEN = 256
NUM_ACTIONS = 2


def make_policy(obs: Any) -> Callable[[Any], npt.NDArray[np.int64]]:
    """Observations of a batch -> sampled actions, as a PPO agent with an actor and a critic does it."""
    import torch
    from torch import nn

    # One thread: the default pool would compete with the workers on few cores, and threads do not survive a fork.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = _features(obs).shape[1]
    trunk = nn.Sequential(nn.Linear(size, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
    actor, critic = nn.Linear(HIDDEN, NUM_ACTIONS), nn.Linear(HIDDEN, 1)

    def act(obs: Any) -> npt.NDArray[np.int64]:
        with torch.no_grad():
            hidden = trunk(torch.from_numpy(_features(obs)))
            choice = torch.distributions.Categorical(logits=actor(hidden))
            actions = choice.sample()
            # A training loop keeps these two; here only their cost counts.
            choice.log_prob(actions)
            critic(hidden)
            sampled: npt.NDArray[np.int64] = actions.numpy()
        return sampled

    return act


def _features(obs: Any) -> npt.NDArray[np.float32]:
    """The first values of each row: an image must not turn the load into a test of matrix products."""
    rows = np.asarray(obs)
    return rows.reshape(len(rows), -1)[:, :NUM_FEATURES].astype(np.float32)
