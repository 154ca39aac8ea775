"""The env that a manager builds to learn its spaces."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("shoal")
_SPACES = ("observation_space", "action_space", "reward_space")


class Reference:
    """One env that is never stepped, and its spaces.

    Some envs have no spaces before their simulator is up: then the env is reset once, and closed again.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self.env = env_fn()
        self._is_closed = False
        try:
            found = self._look()
        except Exception:
            self.env.reset()
            found = self._look()
            self.close()
        self.observation_space, self.action_space, self.reward_space = found

    def _look(self) -> list[Any]:
        return [getattr(self.env, name) for name in _SPACES]

    def has(self, name: str) -> bool:
        """Whether envs have this attribute. One that raises in an env that was never reset counts, too."""
        try:
            return hasattr(self.env, name)
        except Exception:
            return True

    def has_method(self, name: str) -> bool:
        """Whether envs have a method of this name."""
        try:
            return inspect.ismethod(getattr(self.env, name, None))
        except Exception:
            return False

    def close(self) -> None:
        """Close the env, once; a failure is only logged."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.env.close()
        except Exception:
            _log.warning("close failed in the env that was built to look at", exc_info=True)
