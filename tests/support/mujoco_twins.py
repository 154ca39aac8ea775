"""Gymnasium's robots as the measure: the same seeds and actions, row by row, over episodes and their resets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest

import shoal

NUM_ENVS = 2
TOLERANCE = 1e-9
OWN_KEYS = {"env_id", "elapsed_step", "first"}


def make_twin(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Gymnasium's env. Pusher-v4 is refused there for what a later MuJoCo makes of it, not because it would not run."""
    with pytest.MonkeyPatch.context() as patch:
        if env_id == "Pusher-v4":
            patch.setattr(mujoco, "__version__", "2.3.7")
        return gym.make(env_id, disable_env_checker=True, **kwargs)


def compare(env_id: str, steps: int, seed: int = 5, limit: int | None = None, **kwargs: Any) -> int:
    """Run both side by side; how many episodes have ended.

    Raises:
        AssertionError: At the first difference.
    """
    twins = [
        make_twin(env_id, **kwargs, **({} if limit is None else {"max_episode_steps": limit})) for _ in range(NUM_ENVS)
    ]
    envs = shoal.make_vec(env_id, NUM_ENVS, env_kwargs=kwargs, max_episode_steps=limit)
    assert envs.stats().engine == "native"
    assert envs.single_observation_space == twins[0].observation_space
    assert envs.single_action_space == twins[0].action_space
    space = envs.single_action_space
    rng = np.random.default_rng(seed)
    is_over, ended = [False] * NUM_ENVS, 0
    try:
        obs, infos = envs.reset(seed=seed)
        for k, twin in enumerate(twins):
            first, info = twin.reset(seed=seed + k)
            _assert_close(obs[k], first, f"obs of env {k} after the reset")
            _assert_infos(infos, k, info, f"env {k} after the reset")
        for step in range(steps):
            actions = rng.uniform(space.low, space.high, (NUM_ENVS, *space.shape)).astype(np.float32)
            obs, reward, terminated, truncated, infos = envs.step(actions)
            for k, twin in enumerate(twins):
                where = f"env {k}, step {step}"
                row = (*twin.reset(), 0.0, False, False) if is_over[k] else _in_order(twin.step(actions[k]))
                _assert_close(obs[k], row[0], f"obs of {where}")
                _assert_infos(infos, k, row[1], where)
                _assert_close(reward[k], row[2], f"reward of {where}")
                assert (terminated[k], truncated[k]) == row[3:], f"flags of {where}"
                is_over[k] = bool(row[3] or row[4])
                ended += is_over[k]
    finally:
        envs.close()
        for twin in twins:
            twin.close()
    return ended


def _in_order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    obs, reward, terminated, truncated, info = row
    return obs, info, reward, terminated, truncated


def _assert_infos(infos: dict[str, Any], row: int, expected: dict[str, Any], where: str) -> None:
    told = {key for key in infos if not key.startswith("_") and key not in OWN_KEYS and infos[f"_{key}"][row]}
    assert told == expected.keys(), f"infos of {where}"
    for key, value in expected.items():
        _assert_close(infos[key][row], value, f"info {key} of {where}")


def _assert_close(own: Any, twin: Any, what: str) -> None:
    np.testing.assert_allclose(own, twin, rtol=0, atol=TOLERANCE, err_msg=what)
