"""DI-engine's collector loop on shoal's managers: the same loop in one process and in many, through faults.

python examples/ding_managers.py
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gymnasium
import numpy as np

from shoal.faces.ding import (
    BaseEnvManager,
    DingEnvWrapper,
    SyncSubprocessEnvManager,
    VectorEvalMonitor,
    create_env_manager,
)

NUM_ENVS, NUM_STEPS = 4, 200


class Slippery(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Now and then a step fails."""

    def step(self, action: Any) -> Any:
        if self.unwrapped.np_random.random() < 0.005:
            raise RuntimeError("the simulator has lost its way")
        return self.env.step(action)


def make() -> DingEnvWrapper:
    return DingEnvWrapper(Slippery(gymnasium.make("CartPole-v1")))


def policy(observations: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Push to the side that the pole leans to, which keeps it up for some 40 steps."""
    return {i: np.array([int(obs[2] > 0)]) for i, obs in observations.items()}


def collect(manager: Any) -> tuple[int, list[float], int]:
    """How many transitions there were, the returns of whole episodes, and how often an env had to be rebuilt."""
    episode: dict[int, list[Any]] = defaultdict(list)
    transitions, returns, faults = 0, [], 0
    for _ in range(NUM_STEPS):
        observations = manager.ready_obs
        actions = policy(observations)
        for i, timestep in manager.step(actions).items():
            if timestep.info.get("abnormal"):
                faults += 1
                episode.pop(i, None)  # the env has lost its thread, and begins a new episode
                continue
            # timestep.obs is what the action led to, even at the end of an episode: ready_obs has the next start.
            episode[i].append((observations[i], actions[i], timestep.reward, timestep.obs, timestep.terminated))
            transitions += 1
            if timestep.done:
                episode.pop(i)  # give it to the learner here
                returns.append(timestep.info["eval_episode_return"].item())
    return transitions, returns, faults


def evaluate() -> float:
    """The mean return of ten episodes, each env's share fixed in advance, from static seeds."""
    cfg = {**BaseEnvManager.default_config(), "type": "base"}
    manager = create_env_manager(cfg, [lambda: DingEnvWrapper(gymnasium.make("CartPole-v1"))] * NUM_ENVS)
    monitor = VectorEvalMonitor(NUM_ENVS, 10)
    manager.seed(100, dynamic_seed=False)
    manager.launch()
    while not monitor.is_finished():
        for i, timestep in manager.step(policy(manager.ready_obs)).items():
            if timestep.done:
                monitor.update_reward(i, timestep.info["eval_episode_return"])
    manager.close()
    return float(np.mean(monitor.get_episode_return()))


if __name__ == "__main__":
    for form in (BaseEnvManager, SyncSubprocessEnvManager):
        cfg = form.default_config()
        cfg.retry_type = "renew"
        manager = form([make] * NUM_ENVS, cfg)
        manager.seed(0)
        manager.launch()
        transitions, returns, faults = collect(manager)
        manager.close()
        told = f"{transitions} transitions, {len(returns)} episodes of {np.mean(returns):.1f} steps on average"
        print(f"{form.__name__}: {told}, {faults} envs built anew")
    print(f"mean return of ten episodes: {evaluate():.1f}")
