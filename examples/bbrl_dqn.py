"""Double DQN on CartPole-v1 in BBRL's dialect, to a mean return of 475 or more: a file for you to copy and change.

Everything is an agent that reads and writes a workspace: the envs, which run compiled, the actor, and the networks that
learn. It needs torch, numba and matplotlib, takes about a minute on one core, prints its learning curve and draws it to
``bbrl_dqn.png``.

    python examples/bbrl_dqn.py --seed 1
"""

from __future__ import annotations

import argparse
import copy
import time
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from shoal.faces.bbrl import (
    Agent,
    Agents,
    ParallelGymAgent,
    ReplayBuffer,
    TemporalAgent,
    Workspace,
    doubleqlearning_temporal_difference,
    make_env,
    soft_param_update,
)

parser = argparse.ArgumentParser(description="Double DQN on CartPole-v1, with agents and a workspace")
parser.add_argument("--steps", type=int, default=60_000, help="env steps to learn from, at most")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
args = parser.parse_args()

NUM_ENVS, HORIZON = 16, 16  # 256 steps from one round of updates to the next
UPDATES, BATCH = 128, 128  # gradient steps per round, and pairs in each
BUFFER = 50_000  # pairs
GAMMA, TARGET_RATE, LEARNING_RATE = 0.99, 0.05, 1e-3
EPSILON_FROM, EPSILON_TO, EXPLORE = 1.0, 0.05, 10_000  # the share of random actions, and over how many steps it falls
STEPS = 2_000 if args.quick else args.steps
EVALUATE_EVERY = 4  # rounds
EPISODES = 20 if args.quick else 100  # per evaluation
SOLVED = 475

torch.set_num_threads(1)  # with networks as small as these, more threads only cost time
torch.manual_seed(args.seed)


class Critic(Agent):
    """Writes the value of every action, at all times of a workspace at once."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self.output = output
        self.net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, **kwargs: Any) -> None:
        self.set(self.output, self.net(self.get("env/env_obs")))


class Actor(Agent):
    """Takes the action that is worth most; with probability ``epsilon``, one at random."""

    def __init__(self, critic: Critic) -> None:
        super().__init__()
        self.critic = critic

    @torch.no_grad()
    def forward(self, t: int, epsilon: float = 0.0, **kwargs: Any) -> None:
        best = self.critic.net(self.get(("env/env_obs", t))).argmax(-1)
        if epsilon:
            best = torch.where(torch.rand(best.shape) < epsilon, torch.randint(2, best.shape), best)
        self.set(("action", t), best)


critic, target = Critic("q"), Critic("q_target")
target.load_state_dict(critic.state_dict())
optimizer = torch.optim.Adam(critic.parameters(), LEARNING_RATE)

# With autoreset for training, where episodes follow each other; without it for evaluation, where each env plays one.
train_envs = ParallelGymAgent(partial(make_env, "CartPole-v1", autoreset=True), NUM_ENVS)
test_envs = ParallelGymAgent(partial(make_env, "CartPole-v1"), EPISODES)
train_envs.seed(args.seed)
test_envs.seed(10_000 + args.seed)
collect = TemporalAgent(Agents(train_envs, Actor(critic)))
test = TemporalAgent(Agents(test_envs, Actor(critic)))


def improve(pairs: Workspace) -> None:
    """One gradient step; in each pair, [0] is before a step and [1] after it.

    The next state has a value unless the episode was *terminated* there: the pole fell, and no reward follows. Where it
    was only *truncated* the time was up, and the target counts what would have followed.
    """
    critic(pairs)
    with torch.no_grad():
        target(pairs)
    q, q_target, action, reward, terminated = pairs["q", "q_target", "action", "env/reward", "env/terminated"]
    error = doubleqlearning_temporal_difference(q, action, q_target, reward, ~terminated[1:], GAMMA)[0]
    loss = error.square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
    optimizer.step()
    soft_param_update(target, critic, TARGET_RATE)


def evaluate() -> np.ndarray:
    """The return of one episode in each env; at t=0 they are reset, to starts that were not seen before."""
    episodes = Workspace()
    test(episodes, t=0, stop_variable="env/done")
    return episodes["env/cumulated_reward"][-1].numpy()


workspace, buffer = Workspace(), ReplayBuffer(BUFFER)
curve: list[tuple[float, ...]] = []
best_mean, best_weights = -1.0, critic.state_dict()
start, steps, rounds = time.perf_counter(), 0, 0
while True:
    if rounds % EVALUATE_EVERY == 0 or steps >= STEPS:
        returns = evaluate()
        curve.append((steps, *np.percentile(returns, [10, 90]), returns.mean()))
        seconds = time.perf_counter() - start
        print(f"{steps:7,} steps {seconds:5.1f} s  {returns.mean():5.1f} {'▪' * round(returns.mean() / 10)}")
        if returns.mean() > best_mean:
            best_mean, best_weights = returns.mean(), copy.deepcopy(critic.state_dict())
        # Once may be luck: among many evaluations, one has to be the best.
        if steps >= STEPS or (returns.mean() >= SOLVED and evaluate().mean() >= SOLVED):
            break

    epsilon = max(EPSILON_TO, EPSILON_FROM + (EPSILON_TO - EPSILON_FROM) * steps / EXPLORE)
    if rounds == 0:
        collect(workspace, t=0, n_steps=HORIZON + 1, epsilon=epsilon)
        print(f"{train_envs.pool}: {train_envs.pool.stats().engine_reason}")
    else:  # each round goes on where the last one ended
        workspace.zero_grad()
        workspace.copy_n_last_steps(1)
        collect(workspace, t=1, n_steps=HORIZON, epsilon=epsilon)
    pairs = workspace.get_transitions()
    buffer.put(pairs)
    steps, rounds = steps + pairs.batch_size(), rounds + 1

    optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.05, 1 - steps / STEPS)  # small steps at the end
    for _ in range(UPDATES):
        improve(buffer.get_shuffled(BATCH))

critic.load_state_dict(best_weights)
final = evaluate().mean()
seconds = time.perf_counter() - start
train_envs.close()
test_envs.close()

x, low, high, mean = np.array(curve).T
fig, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.fill_between(x, low, high, alpha=0.2, linewidth=0, label=f"80 % of {EPISODES} episodes")
axes.plot(x, mean, marker=".", label="mean")
axes.axhline(SOLVED, color="gray", linestyle="--", linewidth=1, label="solved")
axes.set(title=f"Double DQN on CartPole-v1, seed {args.seed}", xlabel="env steps", ylabel="return", ylim=(0, 510))
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.legend(loc="lower right", frameon=False)
fig.savefig("bbrl_dqn.png", dpi=150)
print(f"mean return {final:.1f} of the best weights after {seconds:.0f} s; the curve is in bbrl_dqn.png")
