"""PPO on Atari's Pong, with the network of the Nature paper: an agent in one file, for you to copy and change.

The games run in worker processes, their frames arrive as uint8 and go into torch as they are, and the collector keeps
the books. It needs torch and matplotlib besides ``shoal[atari]``. It prints its learning curve and writes it to
``ppo_pong.csv`` and ``ppo_pong.png``.

Winning at Pong takes a few million steps, which is hours on two cores, most of them spent in the network. The settings
are the usual ones for Atari. With frames of 42 x 42 pixels the same network has a ninth of the work, and sees less. A
run can be split up: with ``--checkpoint`` it begins with the networks of the last one.

    python examples/ppo_pong.py --steps 500_000 --checkpoint pong.pt
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import shoal

NUM_ENVS, HORIZON = 8, 128  # 1024 steps from one update of the policy to the next
PASSES, MINIBATCH = 4, 256
GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.1, 0.01, 2.5e-4
REPORT_EVERY = 10  # updates
EPISODES = 8  # in the final evaluation


def layer(module: nn.Conv2d | nn.Linear, gain: float = 2**0.5) -> nn.Conv2d | nn.Linear:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Agent(nn.Module):
    """A policy and a critic on top of the same convolutions."""

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        convolutions = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
        )
        features = convolutions(torch.zeros(1, 4, size, size)).shape[1]
        self.trunk = nn.Sequential(convolutions, layer(nn.Linear(features, 512)), nn.ReLU())
        self.actor, self.critic = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, frames: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        """What to do, and what it is worth; frames stay bytes until here, since floats are four times as large."""
        features = self.trunk(frames.float() / 255)
        choice = Categorical(logits=self.actor(features), validate_args=False)
        return choice, self.critic(features).squeeze(-1)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        return self(torch.from_numpy(obs))[0].sample().numpy()

    @torch.no_grad()
    def values(self, obs: np.ndarray) -> np.ndarray:
        return np.stack([self(torch.from_numpy(row))[1].numpy() for row in obs])


def advantages(agent: Agent, segment: shoal.collect.Segment) -> tuple[np.ndarray, np.ndarray]:
    """Generalized advantage estimates and the returns they imply, each [T, N].

    A game that is over, at 21 points, has terminated: nothing follows. One that was cut, after 27,000 steps, would have
    gone on: the value of its true last frames counts, and ``next_obs`` has them. Either way the sum over later steps
    stops, because they belong to another game.
    """
    before, after = agent.values(segment.obs[:-1]), agent.values(segment.next_obs)
    error = segment.reward + GAMMA * ~segment.terminated * after - before
    goes_on = ~(segment.terminated | segment.truncated)
    advantage, later = np.empty_like(before), np.zeros(segment.reward.shape[1])
    for t in reversed(range(len(segment))):
        # An action that was not executed is not a step: the env was reset instead (next_step), or failed. The pool
        # below has none of these, but with this factor the function is right for all pools.
        later = segment.executed[t] * (error[t] + GAMMA * LAMBDA * goes_on[t] * later)
        advantage[t] = later
    return advantage, advantage + before


def improve(agent: Agent, optimizer: torch.optim.Optimizer, segment: shoal.collect.Segment) -> None:
    """Some passes over the steps of a segment, each in minibatches."""
    done = segment.executed  # [T, N], so that x[done] is flat and holds real steps only
    obs, action, advantage, target = (
        torch.from_numpy(x[done]) for x in (segment.obs[:-1], segment.action, *advantages(agent, segment))
    )
    with torch.no_grad():  # the policy has not changed since it chose these actions
        parts = zip(obs.split(MINIBATCH), action.split(MINIBATCH), strict=True)
        old_log_prob = torch.cat([agent(frames)[0].log_prob(chosen) for frames, chosen in parts])
    for _ in range(PASSES):
        for rows in torch.randperm(len(obs)).split(MINIBATCH):
            choice, value = agent(obs[rows])
            ratio = torch.exp(choice.log_prob(action[rows]) - old_log_prob[rows])
            gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            actor_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            critic_loss = nn.functional.mse_loss(value, target[rows])
            loss = actor_loss + 0.5 * critic_loss - ENTROPY * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def learn(agent: Agent, optimizer: torch.optim.Optimizer, train: shoal.Collector, steps: int) -> np.ndarray:
    """The learning curve: env steps, seconds, points won and points lost per 1000 steps, one row each."""
    updates = max(1, steps // (NUM_ENVS * HORIZON))
    curve, rewards = [], []
    start = time.perf_counter()
    for update in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - (update - 1) / updates)  # small steps at the end
        segment = train.collect(HORIZON).segment
        improve(agent, optimizer, segment)
        rewards.append(segment.reward)
        if update % REPORT_EVERY == 0 or update == updates:
            won, lost = points(np.array(rewards))
            rewards.clear()
            curve.append((update * NUM_ENVS * HORIZON, time.perf_counter() - start, won, lost))
            print("{:9,} steps {:5.0f} s  per 1000 steps {:4.1f} won {:5.1f} lost".format(*curve[-1]), flush=True)
    return np.array(curve)


def points(reward: np.ndarray) -> tuple[float, float]:
    """Points won and lost per 1000 steps."""
    return 1000 * float((reward > 0).mean()), 1000 * float((reward < 0).mean())


def draw(curve: np.ndarray, seed: int, file: str) -> None:
    fig, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for column, label in ((2, "won"), (3, "lost")):
        axes.plot(curve[:, 0], curve[:, column], label=label)
    axes.set(title=f"PPO on Pong-v5, seed {seed}", xlabel="env steps", ylabel="points per 1000 steps")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False)
    fig.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO on Pong-v5")
    parser.add_argument("--steps", type=int, default=2_000_000, help="env steps to learn from")
    parser.add_argument("--size", type=int, default=84, help="pixels of a frame in each direction, 36 at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of torch; more only pay if the machine is idle")
    parser.add_argument("--checkpoint", type=Path, help="a file to begin with, if it is there, and to write at the end")
    parser.add_argument("--out", default="ppo_pong", help="the curve goes to OUT.csv and OUT.png")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    options = {"img_height": args.size, "img_width": args.size}
    with shoal.make_pool("Pong-v5", NUM_ENVS, autoreset="same_step", env_kwargs=options) as pool:
        print(f"{pool}: {pool.stats().engine_reason}")
        agent = Agent(args.size, actions=6)
        optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
        if args.checkpoint and args.checkpoint.exists():
            saved = torch.load(args.checkpoint, weights_only=True)
            agent.load_state_dict(saved["agent"])
            optimizer.load_state_dict(saved["optimizer"])
            print(f"goes on from {args.checkpoint}")
        curve = learn(agent, optimizer, shoal.Collector(pool, agent.act, seed=args.seed), args.steps)
        if args.checkpoint:
            torch.save({"agent": agent.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)
        result = shoal.Collector(pool, agent.act).evaluate(EPISODES, seed=10_000 + args.seed)

    header = "steps,seconds,won_per_1000_steps,lost_per_1000_steps"
    np.savetxt(f"{args.out}.csv", curve, "%.2f", ",", header=header, comments="")
    draw(curve, args.seed, f"{args.out}.png")
    print(f"mean return {result.mean:.1f} of {EPISODES} games; the curve is in {args.out}.csv and .png")


if __name__ == "__main__":  # a worker process may have to import this file
    main()
