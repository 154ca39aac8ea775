"""Learn CartPole in TorchRL's dialect: 32 envs in one batch, a policy that reads and writes TensorDicts, rollouts.

python examples/torchrl_gym.py
"""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from shoal.faces.torchrl import GymEnv, RewardSum, StepCounter

NUM_ENVS, STEPS, ROUNDS, GAMMA = 32, 128, 15, 0.99

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small
network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
policy = TensorDictSequential(
    TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]),
    TensorDictModule(lambda logits: torch.distributions.Categorical(logits=logits).sample(), ["logits"], ["action"]),
)
optimizer = torch.optim.Adam(network.parameters(), 1e-2)


def returns_of(rewards: Tensor, done: Tensor) -> Tensor:
    """What follows each step, discounted, until its episode ends."""
    total, returns = torch.zeros(len(rewards)), torch.zeros_like(rewards)
    for step in reversed(range(rewards.shape[1])):
        total = rewards[:, step] + GAMMA * total * ~done[:, step]
        returns[:, step] = total
    return returns


env = GymEnv("CartPole-v1", num_envs=NUM_ENVS, categorical_action_encoding=True)
env = env.append_transform(StepCounter()).append_transform(RewardSum())
env.set_seed(0)

lengths = []
for _ in range(ROUNDS):
    with torch.no_grad():
        data = env.rollout(STEPS, policy, break_when_any_done=False)
    done = data["next", "done"].squeeze(-1)
    returns = returns_of(data["next", "reward"].squeeze(-1), done)
    # Rows near the end of the rollout have seen too little of what follows them.
    counted = slice(None, STEPS // 2)
    advantage = returns[:, counted] - returns[:, counted].mean()
    logits = network(data["observation"][:, counted])
    chosen = torch.distributions.Categorical(logits=logits).log_prob(data["action"][:, counted])
    loss = -(chosen * advantage / advantage.std()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lengths.append(data["next", "step_count"].float().max(dim=1).values.mean().item())

print(
    f"longest episode of an env, on average: {lengths[0]:.0f} steps in the first round, {lengths[-1]:.0f} in the last"
)
print(f"{NUM_ENVS * STEPS * ROUNDS} steps on the {env.stats().engine} engine")
env.close()
