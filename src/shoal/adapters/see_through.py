"""Adapters behind which the env can still be seen."""

from __future__ import annotations

from typing import Any


class SeeThrough:
    """An adapter around ``env``: attributes that it lacks are the env's own, and all are set there."""

    env: Any

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the env."""
        setattr(self.env, name, value)
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)
