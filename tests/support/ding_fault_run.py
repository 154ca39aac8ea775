"""A manager whose envs are killed, hang and raise at random, checked timestep by timestep.

PYTHONPATH=src:tests/support python tests/support/ding_fault_run.py --steps 100000 --faults 200
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ding_envs import Tally

from shoal import testing
from shoal.faces.ding import SyncSubprocessEnvManager

KINDS = ("raise", "kill", "hang")


@dataclass
class Outcome:
    """What was done, and what came of it."""

    steps: int = 0
    done_to: Counter[str] = field(default_factory=Counter)
    abnormal: Counter[str] = field(default_factory=Counter)
    episodes: int = 0
    seconds: float = 0.0


def run(steps: int, faults: int, num_envs: int = 8, seed: int = 0, step_timeout: float = 1.0) -> Outcome:
    """Step envs until ``steps`` timesteps have come; ``faults`` of them, at random, are told to fail."""
    rng = random.Random(seed)
    due = set(rng.sample(range(num_envs, steps - num_envs), faults))
    cfg = SyncSubprocessEnvManager.default_config()
    cfg.update(retry_type="renew", max_retry=3, step_timeout=step_timeout, retry_waiting_time=0.01)
    manager = SyncSubprocessEnvManager([partial(Tally, i, 20 + 7 * i) for i in range(num_envs)], cfg)
    found, start = Outcome(), time.monotonic()
    manager.seed(seed)
    manager.launch()
    try:
        drive(manager, rng, due, steps, found)
    finally:
        manager.close()
    found.seconds = time.monotonic() - start
    return found


def drive(manager: Any, rng: random.Random, due: set[int], steps: int, found: Outcome) -> None:
    at = dict.fromkeys(range(manager.env_num), 0)  # the step that each env has taken last
    while found.steps < steps:
        ready = manager.ready_obs
        assert ready, "nobody is ready"
        for i, obs in ready.items():
            assert obs[0] == i, (i, obs)
            assert obs[2] == at[i], (i, obs, at[i])
        actions: dict[int, Any] = {}
        for number, i in enumerate(ready, found.steps):
            actions[i] = rng.choice(KINDS) if number in due else rng.randrange(4)
        timesteps = manager.step(actions)
        assert list(timesteps) == list(actions)
        for i, action in actions.items():
            check(i, action, timesteps[i], at, found)
        found.steps += len(actions)


def check(env_id: int, action: Any, timestep: Any, at: dict[int, int], found: Outcome) -> None:
    if isinstance(action, str):
        found.done_to[action] += 1
    if timestep.info.get("abnormal"):
        assert isinstance(action, str), f"env {env_id} was told nothing: {timestep.info['err']}"
        assert timestep.done
        assert timestep.truncated
        assert timestep.obs[2] == at[env_id], "the last good observation"
        assert timestep.reward == 0
        found.abnormal[timestep.info["fault"]["kind"]] += 1
        at[env_id] = 0
        return
    assert not isinstance(action, str), f"env {env_id} was told to {action}, and did not"
    at[env_id] += 1
    assert timestep.obs[0] == env_id
    assert timestep.obs[2] == timestep.reward[0] == at[env_id], (env_id, timestep, at[env_id])
    assert timestep.done == (at[env_id] == 20 + 7 * env_id)
    if timestep.done:
        found.episodes += 1
        at[env_id] = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with testing.no_leftovers():
        found = run(given.steps, given.faults, seed=given.seed)
    print(found)  # noqa: T201
    assert found.done_to.total() == found.abnormal.total() == given.faults


if __name__ == "__main__":
    main()
