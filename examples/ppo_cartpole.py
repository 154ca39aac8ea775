"""PPO on CartPole-v1, to a mean return of 475 or more: an agent in one file, for you to copy and change.

The envs run compiled, the collector keeps the books, and what is left is the algorithm. It needs torch, numba and
matplotlib, takes about a minute on one core, prints its learning curve and draws it to ``ppo_cartpole.png``.

    python examples/ppo_cartpole.py --seed 1
"""

from __future__ import annotations

import argparse
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import shoal

parser = argparse.ArgumentParser(description="PPO on CartPole-v1")
parser.add_argument("--steps", type=int, default=100_000, help="env steps to learn from")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
args = parser.parse_args()

NUM_ENVS, HORIZON = 32, 64  # 2048 steps from one update of the policy to the next
PASSES, MINIBATCH = 10, 256
GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.2, 0.005, 1e-3
UPDATES = 4 if args.quick else args.steps // (NUM_ENVS * HORIZON)
EVALUATE_EVERY = 2  # updates
EPISODES = 20 if args.quick else 100  # per evaluation

torch.set_num_threads(1)  # with networks as small as these, more threads only cost time
torch.manual_seed(args.seed)


def mlp(outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers; with a small gain in the last layer, all actions are equally likely at first."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in zip(net[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return net


actor, critic = mlp(2, gain=0.01), mlp(1, gain=1.0)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, LEARNING_RATE, eps=1e-5)


@torch.no_grad()
def sample(obs: np.ndarray) -> np.ndarray:
    return Categorical(logits=actor(torch.from_numpy(obs))).sample().numpy()


@torch.no_grad()
def best(obs: np.ndarray) -> np.ndarray:
    return actor(torch.from_numpy(obs)).argmax(-1).numpy()


@torch.no_grad()
def values(obs: np.ndarray) -> np.ndarray:
    return critic(torch.from_numpy(obs)).squeeze(-1).numpy()


def advantages(segment: shoal.collect.Segment) -> tuple[np.ndarray, np.ndarray]:
    """Generalized advantage estimates and the returns they imply, each [T, N].

    An episode can end in two ways, and they are not alike:

    * terminated: the pole fell. No reward follows, so the value of what comes next is zero.
    * truncated: the time was up. Rewards would have followed, so the value of where the episode was cut counts. That
      is not ``obs[t + 1]``, where the next episode has already begun: ``next_obs`` has the true last observation.

    Either way the sum over later steps stops, because they belong to another episode. The last step of the segment
    needs no special care: ``next_obs`` is known for it as well.
    """
    before, after = values(segment.obs[:-1]), values(segment.next_obs)
    error = segment.reward + GAMMA * ~segment.terminated * after - before
    goes_on = ~(segment.terminated | segment.truncated)
    advantage, later = np.empty_like(before), np.zeros(segment.reward.shape[1])
    for t in reversed(range(len(segment))):
        # An action that was not executed is not a step: the env was reset instead (next_step), or failed. The pool
        # below has none of these, but with this factor the function is right for all pools.
        later = segment.executed[t] * (error[t] + GAMMA * LAMBDA * goes_on[t] * later)
        advantage[t] = later
    return advantage, advantage + before


def improve(segment: shoal.collect.Segment) -> None:
    """Some passes over the steps of a segment, each in minibatches."""
    done = segment.executed  # [T, N], so that x[done] is flat and holds real steps only
    obs, action, advantage, target = (
        torch.from_numpy(x[done]) for x in (segment.obs[:-1], segment.action, *advantages(segment))
    )
    with torch.no_grad():  # the actor has not changed since it chose these actions
        old_log_prob = Categorical(logits=actor(obs)).log_prob(action)
    for _ in range(PASSES):
        for rows in torch.randperm(len(obs)).split(MINIBATCH):
            choice = Categorical(logits=actor(obs[rows]))
            ratio = torch.exp(choice.log_prob(action[rows]) - old_log_prob[rows])
            gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            actor_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            critic_loss = nn.functional.mse_loss(critic(obs[rows]).squeeze(-1), target[rows])
            loss = actor_loss + 0.5 * critic_loss - ENTROPY * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()


# Evaluation has a pool of its own: it resets its envs, which should not happen to those in the midst of training.
curve = []
start = time.perf_counter()
with (
    shoal.make_pool("CartPole-v1", NUM_ENVS, autoreset="same_step", seed=args.seed) as pool,
    shoal.make_pool("CartPole-v1", EPISODES, autoreset="same_step") as test_pool,
):
    print(f"{pool}: {pool.stats().engine_reason}")
    train, test = shoal.Collector(pool, sample), shoal.Collector(test_pool, best)
    steps = 0
    for update in range(UPDATES + 1):
        if update % EVALUATE_EVERY == 0 or update == UPDATES:
            returns = test.evaluate(EPISODES, seed=10_000 + args.seed).returns
            curve.append((steps, *np.percentile(returns, [10, 90]), returns.mean()))
            seconds = time.perf_counter() - start
            print(f"{steps:7,} steps {seconds:5.1f} s  {returns.mean():5.1f} {'▪' * round(returns.mean() / 10)}")
        if update < UPDATES:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / UPDATES)  # small steps at the end
            epoch = train.collect(HORIZON)
            steps += epoch.num_steps
            improve(epoch.segment)

x, low, high, mean = np.array(curve).T
fig, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.fill_between(x, low, high, alpha=0.2, linewidth=0, label=f"80 % of {EPISODES} episodes")
axes.plot(x, mean, marker=".", label="mean")
axes.axhline(475, color="gray", linestyle="--", linewidth=1, label="solved")
axes.set(title=f"PPO on CartPole-v1, seed {args.seed}", xlabel="env steps", ylabel="return", ylim=(0, 510))
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.legend(loc="lower right", frameon=False)
fig.savefig("ppo_cartpole.png", dpi=150)
print(f"mean return {mean[-1]:.1f} after {seconds:.0f} s; the curve is in ppo_cartpole.png")
