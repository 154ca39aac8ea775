"""PPO on HalfCheetah-v5, on the native MuJoCo engine: an agent in one file, for you to copy and change.

All envs are simulated in one call, on as many threads as there are cores, and the collector keeps the books. What is
left is the algorithm, with what continuous control needs: observations and rewards are brought to a common scale, the
policy is a Gaussian, and time limits are told apart from true ends. It needs torch and matplotlib besides
``shoal[mujoco]``. It prints its learning curve and writes it to ``ppo_halfcheetah.csv`` and ``ppo_halfcheetah.png``.

    python examples/ppo_halfcheetah.py --steps 1_000_000 --seed 1
"""

from __future__ import annotations

import argparse
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

import shoal

OBS, ACTIONS = 17, 6
BATCH = 2048  # steps from one update of the policy to the next, of all envs together
PASSES, MINIBATCH = 10, 256
GAMMA, LAMBDA, CLIP, LEARNING_RATE = 0.98, 0.92, 0.2, 1e-3
FIRST_LOG_STD = -1.0  # of actions in [-1, 1], so that few are cut off at the limits at first
EVALUATE_EVERY, EPISODES = 24, 16  # updates (about 50,000 steps), and episodes in each evaluation
RANDOM = -281  # mean return of random actions, for the picture


def mlp(outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers; with a small gain in the last layer, all states are treated alike at first."""
    net = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in zip(net[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return net


class Moments:
    """Mean and variance of all rows seen so far."""

    def __init__(self, *shape: int) -> None:
        self.count, self.mean, self.var = 1e-4, np.zeros(shape), np.ones(shape)

    def see(self, rows: np.ndarray) -> None:
        new, total = len(rows), self.count + len(rows)
        gap = rows.mean(0) - self.mean
        spread = self.var * self.count + rows.var(0) * new + gap**2 * self.count * new / total
        self.mean, self.var, self.count = self.mean + gap * new / total, spread / total, total


class Agent:
    """Networks, and the scales of what goes into them.

    Scales only change between updates: within one, whatever is computed from an observation is computed from the same
    numbers as when the action was chosen.
    """

    def __init__(self, num_envs: int) -> None:
        self.actor, self.critic = mlp(ACTIONS, gain=0.01), mlp(1, gain=1.0)
        self.log_std = nn.Parameter(torch.full((ACTIONS,), FIRST_LOG_STD))
        self.parameters = [*self.actor.parameters(), *self.critic.parameters(), self.log_std]
        self.obs_moments, self.return_moments = Moments(OBS), Moments()
        self.running_return = np.zeros(num_envs)
        self.drawn: list[torch.Tensor] = []

    def scaled(self, obs: np.ndarray) -> torch.Tensor:
        scaled = (obs - self.obs_moments.mean) / np.sqrt(self.obs_moments.var + 1e-8)
        return torch.from_numpy(scaled.clip(-10, 10).astype(np.float32))

    def choice(self, scaled_obs: torch.Tensor) -> Normal:
        return Normal(self.actor(scaled_obs), self.log_std.exp(), validate_args=False)

    @torch.no_grad()
    def explore(self, obs: np.ndarray) -> np.ndarray:
        """Random actions, drawn from the policy.

        A Gaussian knows no limits, but motors do. The env gets actions clipped to them, and ``drawn`` keeps what the
        policy really drew, since that is what it has a probability for.
        """
        self.drawn.append(self.choice(self.scaled(obs)).sample())
        return self.drawn[-1].clamp(-1, 1).numpy()

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        """The likeliest actions."""
        return self.actor(self.scaled(obs)).clamp(-1, 1).numpy()

    def rescale(self, segment: shoal.collect.Segment) -> np.ndarray:
        """Rewards scaled so that discounted returns have a variance of about 1."""
        over = segment.terminated | segment.truncated
        returns = np.empty_like(segment.reward)
        for t, reward in enumerate(segment.reward):
            returns[t] = self.running_return = GAMMA * self.running_return + reward
            self.running_return = self.running_return * ~over[t]
        self.return_moments.see(returns[segment.executed])
        return segment.reward / np.sqrt(self.return_moments.var + 1e-8)


@torch.no_grad()
def advantages(agent: Agent, segment: shoal.collect.Segment, reward: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalized advantage estimates and the returns they imply, each [T, N].

    A cheetah never terminates: all its episodes are cut by the time limit, after 1000 steps. It would have run on, so
    the value of where it was cut counts. That is not ``obs[t + 1]``, where the next episode has already begun, at rest:
    ``next_obs`` has the true last observation. Only ``terminated``, in other envs, means that nothing follows.

    Either way the sum over later steps stops, because they belong to another episode.
    """
    before, after = (agent.critic(agent.scaled(obs)).squeeze(-1) for obs in (segment.obs[:-1], segment.next_obs))
    executed, terminated, truncated = map(torch.from_numpy, (segment.executed, segment.terminated, segment.truncated))
    error = torch.from_numpy(reward.astype(np.float32)) + GAMMA * ~terminated * after - before
    goes_on = ~(terminated | truncated)
    advantage, later = torch.empty_like(error), torch.zeros_like(error[0])
    for t in reversed(range(len(segment))):
        # An action that was not executed is not a step: the env was reset instead (next_step), or failed. The pool
        # below has none of these, but with this factor the function is right for all pools.
        later = executed[t] * (error[t] + GAMMA * LAMBDA * goes_on[t] * later)
        advantage[t] = later
    return advantage, advantage + before


def improve(agent: Agent, optimizer: torch.optim.Optimizer, segment: shoal.collect.Segment) -> None:
    """Some passes over the steps of a segment, each in minibatches."""
    done = torch.from_numpy(segment.executed)  # [T, N], so that x[done] is flat and holds real steps only
    advantage, target = (x[done] for x in advantages(agent, segment, agent.rescale(segment)))
    obs, action = agent.scaled(segment.obs[:-1])[done], torch.stack(agent.drawn)[done]
    agent.drawn.clear()
    with torch.no_grad():  # the actor has not changed since it chose these actions
        old_log_prob = agent.choice(obs).log_prob(action).sum(-1)
    for _ in range(PASSES):
        for rows in torch.randperm(len(obs)).split(MINIBATCH):
            ratio = torch.exp(agent.choice(obs[rows]).log_prob(action[rows]).sum(-1) - old_log_prob[rows])
            gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            actor_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            critic_loss = nn.functional.mse_loss(agent.critic(obs[rows]).squeeze(-1), target[rows])
            optimizer.zero_grad()
            (actor_loss + 0.5 * critic_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters, 0.5)
            optimizer.step()
    agent.obs_moments.see(segment.obs[:-1][segment.executed])


def learn(steps: int, num_envs: int, seed: int) -> np.ndarray:
    """The learning curve: env steps, seconds, and the returns of an evaluation, one row each."""
    horizon = max(1, BATCH // num_envs)
    updates = max(1, steps // (horizon * num_envs))
    agent = Agent(num_envs)
    optimizer = torch.optim.Adam(agent.parameters, LEARNING_RATE, eps=1e-5, fused=True)
    curve = []
    start = time.perf_counter()
    # Evaluation has a pool of its own: it resets its envs, which should not happen to those in the midst of training.
    with (
        shoal.make_pool("HalfCheetah-v5", num_envs, autoreset="same_step") as pool,
        shoal.make_pool("HalfCheetah-v5", EPISODES, autoreset="same_step") as test_pool,
    ):
        print(f"{pool}: {pool.stats().engine_reason}")
        train, test = shoal.Collector(pool, agent.explore, seed=seed), shoal.Collector(test_pool, agent.act)
        for update in range(updates + 1):
            if update % EVALUATE_EVERY == 0 or update == updates:
                returns = test.evaluate(EPISODES, seed=10_000 + seed).returns
                curve.append((update * horizon * num_envs, time.perf_counter() - start, *returns))
                bar = "▪" * round(max(0, returns.mean()) / 100)
                print(f"{curve[-1][0]:9,} steps {curve[-1][1]:5.0f} s {returns.mean():7.0f} {bar}", flush=True)
            if update < updates:
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / updates)  # small steps at the end
                improve(agent, optimizer, train.collect(horizon).segment)
    return np.array(curve)


def draw(curve: np.ndarray, seed: int, file: str) -> None:
    """The mean return of each evaluation, and the range of its episodes."""
    x, returns = curve[:, 0], curve[:, 2:]
    fig, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.fill_between(x, returns.min(1), returns.max(1), alpha=0.2, linewidth=0, label=f"range of {EPISODES} episodes")
    axes.plot(x, returns.mean(1), marker=".", label="mean")
    axes.axhline(RANDOM, color="gray", linestyle="--", linewidth=1, label="actions at random")
    axes.set(title=f"PPO on HalfCheetah-v5, seed {seed}", xlabel="env steps", ylabel="return")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left", frameon=False)
    fig.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO on HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps to learn from")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="ppo_halfcheetah", help="the curve goes to OUT.csv and OUT.png")
    args = parser.parse_args()
    torch.set_num_threads(1)  # with networks as small as these, more threads only cost time
    torch.manual_seed(args.seed)
    curve = learn(args.steps, args.num_envs, args.seed)
    header = ",".join(("steps", "seconds", *(f"return_{i}" for i in range(EPISODES))))
    np.savetxt(f"{args.out}.csv", curve, "%.2f", ",", header=header, comments="")
    draw(curve, args.seed, f"{args.out}.png")
    final = curve[-1, 2:]
    print(
        f"mean return {final.mean():.1f} after {curve[-1, 1]:.0f} s; the curve is in {args.out}.csv and {args.out}.png"
    )


if __name__ == "__main__":
    main()
