"""Envs that are elsewhere, as objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

from shoal.errors import FaultError, StateError

if TYPE_CHECKING:
    from shoal.pool import Pool

_OWN = ("_pool", "_env_id")


class EnvView(gym.Env[Any, Any]):
    """One env of a pool: whatever is read, set or called here is read, set or called there.

    Only the agent resets and steps the env. A compiled env has its fields as attributes.

    Args:
        pool: The pool.
        env_id: Which of its envs.
    """

    def __init__(self, pool: Pool, env_id: int) -> None:
        self._pool, self._env_id = pool, env_id

    @property
    def observation_space(self) -> gym.Space[Any]:  # type: ignore[override]
        """The observation space of the env."""
        return self._pool.spec.observation.space

    @property
    def action_space(self) -> gym.Space[Any]:  # type: ignore[override]
        """The action space of the env."""
        return self._pool.spec.action.space

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """What Gymnasium's registry knows about the env, if anything."""
        return self._pool.spec.registered

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        """The env's metadata."""
        return dict(self._ask("metadata"))

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """How the env renders."""
        mode: str | None = self._ask("render_mode")
        return mode

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """A copy of the env's generator."""
        return self._ask("np_random")

    def _ask(self, name: str) -> Any:
        try:
            return self._pool.get_attr(name, [self._env_id])[0]
        except FaultError as error:
            if isinstance(error.__cause__, AttributeError):
                hint = 'with engine="serial", agent.envs are the envs themselves'
                raise AttributeError(f"{error.__cause__}; {hint}") from None
            raise

    def __getattr__(self, name: str) -> Any:
        # Such names are asked for when an object is copied or printed, and they mean the view.
        if name.startswith("__") or name in _OWN:
            raise AttributeError(name)
        value = self._ask(name)
        if callable(value):
            return lambda *args, **kwargs: self._pool.ask(name, args, kwargs, [self._env_id])[0]
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            self._pool.set_attr(name, [value], [self._env_id])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Refused: the agent does it."""
        raise StateError("reset: the agent resets this env, at t=0")

    def step(self, action: Any) -> Any:
        """Refused: the agent does it."""
        raise StateError("step: the agent steps this env, with the action in the workspace")

    def render(self) -> Any:
        """A frame of the env."""
        return self._pool.render([self._env_id])[0]

    def close(self) -> None:
        """Do nothing: the agent closes the env."""

    def __repr__(self) -> str:
        return f"<EnvView of env {self._env_id} of {self._pool.spec.id}>"

    __str__ = __repr__
