"""Envs whose rewards and flags are tensors or arrays of one number."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class PlainResults(gym.Wrapper[Any, Any, Any, Any]):
    """An env with rewards and flags as Python's own numbers, which slots insist on."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step."""
        stepped: Any = self.env.step(action)
        obs, reward, terminated, truncated, info = stepped
        return obs, float(reward.sum()), bool(terminated), bool(truncated), info
