"""PPO on CartPole-v1 in TorchRL's dialect, to a mean return of 475 or more: a file for you to copy and change.

The envs run in worker processes with transforms around them, the policy is a module from ``tensordict.nn``, and all
that they exchange are ``TensorDict``s. TorchRL itself is not needed, only torch, tensordict and matplotlib. It takes
half a minute on two cores, prints its learning curve and draws it to ``torchrl_style_ppo.png``.

Worker processes are for envs whose steps take long. Those of CartPole do not, as the pool says at the end: with
``make(num_envs=NUM_ENVS)`` in place of the ``ParallelEnv`` the envs run compiled, and nothing else changes.

    python examples/torchrl_style_ppo.py --seed 1
"""

import argparse
import time
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    set_interaction_type,
)
from torch import nn
from torch.distributions import Categorical

from shoal.faces.torchrl import (
    Compose,
    EnvBase,
    GymEnv,
    ObservationNorm,
    ParallelEnv,
    RewardSum,
    StepCounter,
    TransformedEnv,
)

NUM_ENVS, HORIZON = 32, 64  # 2048 steps from one update of the policy to the next
PASSES, MINIBATCH = 10, 256
GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.2, 0.005, 1e-3
EVALUATE_EVERY = 3  # updates
CUT = 250  # steps of an episode while learning; tests go on for the 500 that the env itself allows
SOLVED = 475


def mlp(outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers; with a small gain in the last layer, all actions are equally likely at first."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in zip(net[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return net


def make_policy() -> ProbabilisticTensorDictSequential:
    """Reads ``"observation"``, and writes ``"logits"``, ``"action"`` and ``"sample_log_prob"``."""
    return ProbabilisticTensorDictSequential(
        TensorDictModule(mlp(2, gain=0.01), in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=Categorical,
            default_interaction_type=InteractionType.RANDOM,
            return_log_prob=True,
            log_prob_key="sample_log_prob",
        ),
    )


def make_envs(seed: int, episodes: int) -> tuple[TransformedEnv, TransformedEnv]:
    """The envs to learn in, and those to test in, which scale observations in the same way.

    The transforms are around the batch, so that they work on all rows at once. Episodes to learn from are cut by a
    ``StepCounter``: starts come more often, and what happens later is learned from the critic.
    """
    make = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
    norm = ObservationNorm(in_keys=["observation"], standard_normal=True)
    train = TransformedEnv(ParallelEnv(NUM_ENVS, make), Compose(norm, RewardSum(), StepCounter(CUT)))
    train.set_seed(seed)
    norm.init_stats(100, reduce_dim=(0, 1))  # from random steps; dims are those of a rollout, [N, T]

    # Tests run on the same env in its compiled form, where this many episodes take only a moment.
    same_norm = ObservationNorm(norm.loc, norm.scale, in_keys=["observation"], standard_normal=True)
    test = TransformedEnv(make(num_envs=episodes), Compose(same_norm, RewardSum()))
    test.set_seed(10_000 + seed)
    return train, test


@torch.no_grad()
def collect(env: EnvBase, policy: nn.Module, root: TensorDict) -> tuple[TensorDict, TensorDict]:
    """The next steps, [N, T], and the root from which to go on.

    ``env.rollout`` would start with a reset each time. Here episodes go on from one call to the next, and each env that
    is done is reset before its next step.
    """
    steps = []
    for _ in range(HORIZON):
        stepped, root = env.step_and_maybe_reset(policy(root))
        steps.append(stepped)
    return torch.stack(steps, 1), root


@torch.no_grad()
def add_advantages(data: TensorDict, critic: TensorDictModule) -> None:
    """Writes generalized advantage estimates and the returns they imply, as ``"advantage"`` and ``"value_target"``.

    An episode can end in two ways, and they are not alike:

    * terminated: the pole fell. No reward follows, so the value of what comes next is zero.
    * truncated: the time was up. Rewards would have followed, so the value of where the episode was cut counts. It is
      in ``"next"``, which has the true last observation; the root of the step after it belongs to the next episode.

    Either way the sum over later steps stops, because they belong to another episode.
    """
    before, after = critic(data)["state_value"], critic(data["next"])["state_value"]
    done, terminated, reward = (data["next", key] for key in ("done", "terminated", "reward"))
    error = reward + GAMMA * ~terminated * after - before
    advantage, later = torch.empty_like(error), torch.zeros_like(error[:, 0])
    for t in reversed(range(HORIZON)):
        later = error[:, t] + GAMMA * LAMBDA * ~done[:, t] * later
        advantage[:, t] = later
    data["advantage"], data["value_target"] = advantage, advantage + before


def ppo_loss(rows: TensorDict, policy: ProbabilisticTensorDictSequential, critic: TensorDictModule) -> torch.Tensor:
    """The clipped loss of the policy, the error of the critic, and a bonus for being undecided."""
    choice = policy.get_dist(rows)
    ratio = torch.exp(choice.log_prob(rows["action"]) - rows["sample_log_prob"])
    gain = rows["advantage"].squeeze(-1)
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
    critic_loss = nn.functional.mse_loss(critic(rows)["state_value"], rows["value_target"])
    return policy_loss + 0.5 * critic_loss - ENTROPY * choice.entropy().mean()


def evaluate(env: EnvBase, policy: nn.Module) -> np.ndarray:
    """The return of one episode in each env, from starts that were not seen before; the likeliest action is taken."""
    with torch.no_grad(), set_interaction_type(InteractionType.MODE):
        # An env that is done repeats its last step until the others are done too.
        episodes = env.rollout(500, policy, break_when_any_done=False, break_when_all_done=True)
    return episodes["next", "episode_reward"][:, -1].flatten().numpy()


def draw(curve: np.ndarray, learning: np.ndarray, seed: int, episodes: int) -> None:
    """The mean of each evaluation and how much it varies, above the returns of the episodes that were learned from."""
    x, low, high, mean = curve.T
    fig, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.fill_between(x, low, high, alpha=0.2, linewidth=0, label=f"80 % of {episodes} episodes")
    axes.plot(x, mean, marker=".", label="mean")
    axes.plot(*learning.T, linewidth=1, label=f"while learning, {CUT} at most")
    axes.axhline(SOLVED, color="gray", linestyle="--", linewidth=1, label="solved")
    axes.set(title=f"PPO on CartPole-v1, seed {seed}", xlabel="env steps", ylabel="return", ylim=(0, 510))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower right", frameon=False)
    fig.savefig("torchrl_style_ppo.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO on CartPole-v1, with TensorDicts")
    parser.add_argument("--steps", type=int, default=50_000, help="env steps to learn from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    updates = 3 if args.quick else args.steps // (NUM_ENVS * HORIZON)
    episodes = 20 if args.quick else 100  # per evaluation

    torch.set_num_threads(1)  # with networks as small as these, more threads only cost time
    torch.manual_seed(args.seed)
    start = time.perf_counter()
    env, test_env = make_envs(args.seed, episodes)
    policy = make_policy()
    critic = TensorDictModule(mlp(1, gain=1.0), in_keys=["observation"], out_keys=["state_value"])
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE, eps=1e-5)

    root = env.reset()
    curve: list[tuple[float, ...]] = []
    learning: list[tuple[float, float]] = []
    for update in range(updates + 1):
        steps = update * NUM_ENVS * HORIZON
        if update % EVALUATE_EVERY == 0 or update == updates:
            returns = evaluate(test_env, policy)
            curve.append((steps, *np.percentile(returns, [10, 90]), returns.mean()))
            seconds = time.perf_counter() - start
            print(f"{steps:7,} steps {seconds:5.1f} s  {returns.mean():5.1f} {'▪' * round(returns.mean() / 10)}")
        if update == updates:
            break
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - update / updates)  # small steps at the end
        data, root = collect(env, policy, root)
        ended = data["next", "done"]
        if ended.any():
            learning.append((steps, data["next", "episode_reward"][ended].mean().item()))
        add_advantages(data, critic)
        flat = data.select("observation", "action", "sample_log_prob", "advantage", "value_target").reshape(-1)
        for _ in range(PASSES):
            for rows in torch.randperm(len(flat)).split(MINIBATCH):
                loss = ppo_loss(flat[rows], policy, critic)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
    print(f"{type(env.base_env).__name__}: {env.stats().engine_reason}")
    env.close()
    test_env.close()

    draw(np.array(curve), np.array(learning), args.seed, episodes)
    print(f"mean return {curve[-1][-1]:.1f} after {seconds:.0f} s; the curve is in torchrl_style_ppo.png")


if __name__ == "__main__":  # a worker process may have to import this file
    main()
