"""An env that plays back what a test wrote down, for property tests that need control of every reward and flag."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

ScriptStep: TypeAlias = "tuple[float, bool, bool, Mapping[str, Any]]"


class ScriptedEnv(gymnasium.Env["NDArray[np.int64]", Any]):
    """An env that plays back given rewards, flags and infos, starting over after the last one.

    Observations are `[steps taken, episode, draw]`: the first two count from 0 since the last seeding, the draw (below
    one million) is made by the env's generator at each reset. The script continues across resets without a seed, and
    starts over with one.

    Args:
        script: A `(reward, terminated, truncated, info)` for each step. Infos are copied on the way out.
        action_space: Actions are ignored. The default is `Discrete(5)`.
    """

    def __init__(self, script: Sequence[ScriptStep], action_space: spaces.Space[Any] | None = None) -> None:
        if not script:
            raise ValueError("the script needs at least one step")
        self.script = tuple(script)
        self.observation_space = spaces.Box(-1, np.iinfo(np.int64).max, (3,), np.int64)
        self.action_space = spaces.Discrete(5) if action_space is None else action_space
        self._position = 0
        self._episode = -1
        self._draw = 0
        self._has_ended = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Start the next episode where the script stands or, with a seed, at its start."""
        super().reset(seed=seed)
        if seed is not None:
            self._position, self._episode = 0, -1
        self._episode += 1
        self._draw = int(self.np_random.integers(1_000_000))
        self._has_ended = False
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Play the next line of the script.

        Raises:
            ResetNeeded: There is no episode under way.
        """
        if self._has_ended:
            raise ResetNeeded("ScriptedEnv: no episode is under way, call reset first")
        reward, terminated, truncated, info = self.script[self._position % len(self.script)]
        self._position += 1
        self._has_ended = terminated or truncated
        return self._observe(), reward, terminated, truncated, copy.deepcopy(dict(info))

    def _observe(self) -> NDArray[np.int64]:
        return np.array((self._position, self._episode, self._draw), dtype=np.int64)
