"""Evaluations that count every env alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import WrongSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


class VectorEvalMonitor:
    """Gathers the returns of ``n_episode`` episodes, a fixed share from each env.

    The first episodes of each env count, so which episodes count does not depend on how fast the other envs are.

    Args:
        env_num: How many envs there are.
        n_episode: How many episodes count, at least one per env.

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
        self._films: dict[int, list[list[Any]]] = {i: [[] for _ in range(share)] for i, share in self._share.items()}

    def is_finished(self) -> bool:
        """Whether every env has played its share."""
        return all(len(self._rewards[i]) == share for i, share in self._share.items())

    def update_reward(self, env_id: int | np.ndarray[Any, Any], reward: Any) -> None:
        """Record that an env has finished an episode with this return."""
        for i in np.atleast_1d(np.asarray(env_id)).tolist():
            value = reward.item() if hasattr(reward, "item") and np.asarray(reward).size == 1 else reward
            self._latest[i] = value
            if len(self._rewards[i]) < self._share[i]:
                self._rewards[i].append(value)

    def update_info(self, env_id: int, info: Mapping[str, Any]) -> None:
        """Record what an env reported at the end of an episode."""
        if len(self._infos[env_id]) < self._share[env_id]:
            self._infos[env_id].append(dict(info))

    def update_video(self, images: Mapping[int, Any]) -> None:
        """Add a picture of each of these envs to the film of its episode, unless the env has played its share."""
        for i, image in images.items():
            episode = len(self._rewards[i])
            if episode < self._share[i]:
                self._films[i][episode].append(image)

    def get_video(self) -> np.ndarray[Any, Any]:
        """Films of the worst, the median and the best episode, ``(film, time, channel, height, width)``.

        Of four or more, the two in the middle are shown. A film that is shorter than the longest holds its last
        picture. Episodes that have not ended yet, or of which there are no pictures, do not take part.
        """
        filmed = [
            (float(np.sum(value)), film)
            for i, values in self._rewards.items()
            for value, film in zip(values, self._films[i], strict=False)
            if film
        ]
        if not filmed:
            return np.empty((0, 0, 3, 0, 0), np.uint8)
        ranked = [film for _, film in sorted(filmed, key=lambda pair: pair[0])]
        middle, last = len(ranked) // 2, len(ranked) - 1
        shown = [ranked[place] for place in sorted({0, max(0, middle - 1), middle, last})]
        longest = max(map(len, shown))
        held = [np.stack([*film, *[film[-1]] * (longest - len(film))]) for film in shown]
        return np.stack(held).transpose(0, 1, 4, 2, 3)

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
        """What envs have reported, by its key, and the means of numbers under ``<key>_mean``; None if nothing was."""
        told = [info for infos in self._infos.values() for info in infos]
        if not told:
            return None
        found: dict[str, Any] = {}
        for key in told[0]:
            found[key] = values = [info[key] for info in told if key in info]
            numbers = [number for value in values if (number := _number(value)) is not None]
            if len(numbers) == len(values):
                found[f"{key}_mean"] = float(np.mean(numbers))
        return found


def _number(value: Any) -> float | None:
    """The value of a number, or of an array of one, as returns of episodes are; None for everything else."""
    if isinstance(value, (list, tuple)):
        return None
    array = np.asarray(value)
    return float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else None
