"""nerveX envs as Gymnasium envs: their timesteps, whatever they are, travel unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.adapters.ding_env import Anything

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class NervexEnv:
    """A nerveX env with Gymnasium's interface.

    An action is the dict of keywords for the env's own ``step``. Whatever that returns is the observation, as a whole,
    and no episode ever ends: such an env may be stepped past its end.
    """

    metadata: Mapping[str, Any] = {}
    render_mode = None
    spec = None

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = Anything()
        self.action_space = Anything()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; ``options`` are the keywords of the env's own ``reset``."""
        return self.env.reset(**(options or {})), {}

    def step(self, action: Mapping[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        return self.env.step(**action), 0.0, False, False, {}

    def read(self, name: str) -> Any:
        """An attribute of the env; None if it has no such attribute."""
        return getattr(self.env, name, None)

    def seed(self, seed: Any) -> Any:
        """Seed the env now."""
        return self.env.seed(seed=seed)

    def close(self) -> None:
        """Close the env."""
        self.env.close()


@dataclass(frozen=True)
class MakeNervexEnv:
    """Builds a nerveX env wherever it will run."""

    env_fn: Callable[[Any], Any]
    cfg: Any

    @property
    def __wrapped__(self) -> Callable[[Any], Any]:
        """What the user gave, so that a search for what cannot be pickled names it as the user would."""
        return self.env_fn

    def __call__(self) -> NervexEnv:
        """Build the env."""
        return NervexEnv(self.env_fn(self.cfg))
