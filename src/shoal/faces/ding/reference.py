"""The env that a manager builds to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SPACES = ("observation_space", "action_space", "reward_space")


class Reference:
    """One env that is never stepped, and its spaces.

    Envs may have no spaces before their simulator is up: then it is reset once, and closed again.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self.env = env_fn()
        try:
            found = self._look()
        except Exception:
            self.env.reset()
            found = self._look()
            self.env.close()
        self.observation_space, self.action_space, self.reward_space = found

    def _look(self) -> list[Any]:
        return [getattr(self.env, name) for name in _SPACES]

    def close(self) -> None:
        """Let go of whatever the env holds."""
        self.env.close()
