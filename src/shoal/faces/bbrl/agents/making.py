"""Making envs, and videos of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import Autoreset

from shoal.errors import BackendUnavailable, SpecError
from shoal.faces.bbrl.agents.frames import columns_of
from shoal.faces.bbrl.agents.utils import TemporalAgent
from shoal.faces.bbrl.workspace import Workspace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from shoal.faces.bbrl.agents.agent import Agent


def make_env(
    env_name: str, autoreset: bool = False, wrappers: Sequence[Callable[[Any], Any]] = (), **kwargs: Any
) -> Any:
    """A Gymnasium env.

    Args:
        env_name: Its id.
        autoreset: Whether the agent is to reset the env when an episode has ended.
        wrappers: Wrappers to put around the env, innermost first.
        **kwargs: Other arguments of ``gymnasium.make``.

    Example:
        >>> make_env("CartPole-v1", autoreset=True)
        <Autoreset<TimeLimit<OrderEnforcing<PassiveEnvChecker<CartPoleEnv<CartPole-v1>>>>>>
    """
    env = gym.make(env_name, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return Autoreset(env) if autoreset else env


def has_autoreset(env: Any) -> bool:
    """Whether Gymnasium's ``Autoreset``, or a copy of it under that name, is among the wrappers of an env."""
    while env is not None:
        if isinstance(env, Autoreset) or type(env).__name__ == "Autoreset":
            return True
        env = vars(env).get("env") if hasattr(env, "__dict__") else None
    return False


def record_video(env: Any, policy: Agent, path: str | os.PathLike[str]) -> None:
    """Write a video of one episode.

    Args:
        env: An env that was made with ``render_mode="rgb_array"``.
        policy: An agent that reads ``env/env_obs`` and writes ``action``, or a ``TemporalAgent`` around one.
        path: The file, for example ``"episode.mp4"``; its folder is created if it does not exist.

    Raises:
        BackendUnavailable: If moviepy is not installed.
    """
    try:
        clips: Any = importlib.import_module("moviepy")
    except ImportError as error:
        raise BackendUnavailable("record_video() needs moviepy: pip install moviepy") from error
    agent = policy.agent if isinstance(policy, TemporalAgent) else policy
    workspace, frames, t, is_over = Workspace(), [], 0, False
    with torch.no_grad():
        obs, _ = env.reset()
        while True:
            frames.append(_picture(env))
            for name, column in columns_of(_batch_of_one(obs), "env/env_obs").items():
                workspace.set(name, t, torch.from_numpy(column))
            if is_over:
                break
            agent(workspace, t=t)
            obs, _, terminated, truncated, _ = env.step(_action_of(workspace.get("action", t)[0]))
            is_over, t = terminated or truncated, t + 1
    Path(path).parent.mkdir(exist_ok=True, parents=True)
    clip = clips.ImageSequenceClip(frames, fps=env.metadata.get("render_fps", 30))
    clip.write_videofile(str(path), logger=None)


def _picture(env: Any) -> Any:
    picture = env.render()
    if not isinstance(picture, np.ndarray):
        raise SpecError('record_video: the env draws no pictures; make it with render_mode="rgb_array"')
    return picture


def _batch_of_one(obs: Any) -> Any:
    return {key: _batch_of_one(part) for key, part in obs.items()} if isinstance(obs, dict) else np.asarray(obs)[None]


def _action_of(action: torch.Tensor) -> Any:
    return action.item() if not action.ndim else action.cpu().numpy()
