"""Rows of a pool that speaks EnvPool's dialect, beside those of single envs under the same seeds and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = dict[str, Any]


def pool_rows(envs: Any, actions: Any) -> Iterator[list[Row]]:
    """A row per env, first of the reset, then of every step; closes the pool."""
    num_envs = len(envs)

    def split(obs: Any, reward: Any, terminated: Any, truncated: Any) -> list[Row]:
        parts = [({k: v[i] for k, v in obs.items()} if isinstance(obs, dict) else obs[i]) for i in range(num_envs)]
        keys = ("obs", "reward", "terminated", "truncated")
        return [dict(zip(keys, row, strict=True)) for row in zip(parts, reward, terminated, truncated, strict=True)]

    with envs:
        no = np.zeros(num_envs, bool)
        yield split(envs.reset()[0], np.zeros(num_envs, np.float32), no, no)
        for batch in actions:
            yield split(*envs.step(batch)[:4])


def single_rows(make: Callable[[], Any], num_envs: int, seed: int, actions: Any, autoreset: str) -> Iterator[list[Row]]:
    """The same of single envs, played one by one under the rule that a pool keeps."""
    singles = [make() for _ in range(num_envs)]
    nothing = {"reward": np.float32(0), "terminated": False, "truncated": False}
    yield [{"obs": env.reset(seed=seed + i)[0], **nothing} for i, env in enumerate(singles)]
    ended = [False] * num_envs
    for batch in actions:
        rows = []
        for i, (env, action) in enumerate(zip(singles, batch, strict=True)):
            if ended[i]:
                rows.append({"obs": env.reset()[0], **nothing})
                ended[i] = False
                continue
            obs, reward, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
            if is_over and autoreset == "same_step":
                obs = env.reset()[0]
            ended[i] = is_over and autoreset == "next_step"
            rows.append({"obs": obs, "reward": np.float32(reward), "terminated": terminated, "truncated": truncated})
        yield rows
    for env in singles:
        env.close()
