"""Evaluations that count every env alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import WrongSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


class VectorEvalMonitor:
    """Gathers the returns of ``n_episode`` episodes, a fixed share from each env.

    What counts are the first episodes of each env: which those are does not depend on how fast the others are.

    Args:
        env_num: How many envs there are.
        n_episode: How many episodes count, at least one of each env.

    Example:
        >>> monitor = VectorEvalMonitor(2, 3)
        >>> for env_id, value in [(0, 1.0), (1, 2.0), (0, 3.0), (0, 99.0)]:
        ...     monitor.update_reward(env_id, value)
        >>> monitor.get_episode_return(), monitor.is_finished()
        ([1.0, 3.0, 2.0], True)
    """

    def __init__(self, env_num: int, n_episode: int) -> None:
        if n_episode < env_num:
            raise WrongSetting(f"n_episode: {n_episode} episodes are too few for {env_num} envs, one of each is needed")
        each, more = divmod(n_episode, env_num)
        self._share = {i: each + (i < more) for i in range(env_num)}
        self._rewards: dict[int, list[Any]] = {i: [] for i in range(env_num)}
        self._infos: dict[int, list[Mapping[str, Any]]] = {i: [] for i in range(env_num)}
        self._latest: dict[int, Any] = {}
        self._frames: dict[int, list[Any]] = {i: [] for i in range(env_num)}

    def is_finished(self) -> bool:
        """Whether every env has played its share."""
        return all(len(self._rewards[i]) == share for i, share in self._share.items())

    def update_reward(self, env_id: int | np.ndarray[Any, Any], reward: Any) -> None:
        """An env has finished an episode with this return."""
        for i in np.atleast_1d(np.asarray(env_id)).tolist():
            value = reward.item() if hasattr(reward, "item") and np.asarray(reward).size == 1 else reward
            self._latest[i] = value
            if len(self._rewards[i]) < self._share[i]:
                self._rewards[i].append(value)

    def update_info(self, env_id: int, info: Mapping[str, Any]) -> None:
        """What an env has told at the end of an episode."""
        if len(self._infos[env_id]) < self._share[env_id]:
            self._infos[env_id].append(dict(info))

    def update_video(self, images: Mapping[int, Any]) -> None:
        """One more picture of each of these envs; an env whose first episode is over has had its video."""
        for i, image in images.items():
            if not self._rewards[i]:
                self._frames[i].append(image)

    def get_video(self) -> np.ndarray[Any, Any]:
        """The first episode of up to eight envs, ``(env, time, channel, height, width)``; the last picture stays."""
        kept = [frames for frames in self._frames.values() if frames][:8]
        if not kept:
            return np.empty((0, 0, 3, 0, 0), np.uint8)
        longest = max(map(len, kept))
        films = [np.stack([*frames, *[frames[-1]] * (longest - len(frames))]) for frames in kept]
        return np.stack(films).transpose(0, 1, 4, 2, 3)

    def get_episode_return(self) -> list[Any]:
        """The returns that count, env by env."""
        return [value for values in self._rewards.values() for value in values]

    def get_latest_reward(self, env_id: int) -> Any:
        """The return of the last episode of an env, whether or not it counts."""
        return self._latest[env_id]

    def get_current_episode(self) -> int:
        """How many episodes have been counted."""
        return sum(map(len, self._rewards.values()))

    def get_episode_info(self) -> dict[str, Any] | None:
        """The numbers that envs have told, each with its mean under ``<key>_mean``; None if they told nothing."""
        told = [info for infos in self._infos.values() for info in infos]
        if not told:
            return None
        found: dict[str, Any] = {}
        for key in told[0]:
            values = [np.asarray(info[key]) for info in told if key in info]
            if all(value.size == 1 and value.dtype.kind in "biuf" for value in values):
                numbers = [float(value.reshape(-1)[0]) for value in values]
                found[key] = numbers
                found[f"{key}_mean"] = float(np.mean(numbers))
        return found
