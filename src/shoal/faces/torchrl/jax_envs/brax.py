"""BraxEnv and BraxWrapper: Brax's simulated bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from shoal.errors import BackendUnavailable
from shoal.faces.torchrl.gym_making import ClassProperty
from shoal.faces.torchrl.jax_envs.base import JaxEnv, Moment
from shoal.faces.torchrl.jax_envs.tree import unbounded
from shoal.faces.torchrl.specs import Bounded

if TYPE_CHECKING:
    from shoal.faces.torchrl.env.keys import Path
    from shoal.faces.torchrl.specs import TensorSpec


def _brax() -> Any:
    try:
        import brax.envs
    except ImportError as error:
        raise BackendUnavailable(f"BraxEnv needs brax ({error}): pip install 'shoal[brax]'") from error
    return brax.envs


class BraxWrapper(JaxEnv):
    """A Brax env.

    Args:
        env: The env, which must not reset itself.
        batch_size: The batch size of the env. Without one, it is that of the data.
        device: Where data is expected and returned.
        seed: The seed of the first states; None for a random one.
    """

    def __init__(self, env: Any, *, batch_size: Any = None, device: Any = None, seed: int | None = None) -> None:
        self.__dict__["_env"] = env
        super().__init__(batch_size=batch_size, device=device, seed=seed)

    def begin(self, key: Any) -> Moment:
        """How an episode begins."""
        return self._moment(self._env.reset(key))

    def move(self, state: Any, action: Any) -> Moment:
        """How an episode goes on."""
        return self._moment(self._env.step(state, action))

    def _moment(self, state: Any) -> Moment:
        ended = state.done > 0
        cut = state.info.get("truncation", jnp.zeros_like(state.done)) > 0
        return Moment(state, state.obs, state.reward, ended & ~cut, cut)

    def action_space(self) -> TensorSpec:
        """Torques between -1 and 1."""
        return Bounded(-1.0, 1.0, shape=(self._env.action_size,))

    def observation_leaf(self, path: Path, leaf: Any) -> TensorSpec:
        """Any numbers."""
        return unbounded(path, leaf)


class BraxEnv(BraxWrapper):
    """A Brax env, made from its name.

    Args:
        env_name: One of ``available_envs``.
        batch_size: The batch size of the env. Without one, it is that of the data.
        device: Where data is expected and returned.
        seed: The seed of the first states; None for a random one.
        **kwargs: Given to the env, such as ``backend``.

    Example:
        ``BraxEnv("inverted_pendulum", batch_size=[1024]).rollout(100)``
    """

    def __init__(
        self, env_name: str, *, batch_size: Any = None, device: Any = None, seed: int | None = None, **kwargs: Any
    ) -> None:
        env = _brax().get_environment(env_name, **kwargs)
        super().__init__(env, batch_size=batch_size, device=device, seed=seed)
        self.env_name = env_name

    @ClassProperty
    def available_envs(cls) -> list[str]:
        """The names that Brax knows."""
        return sorted(_brax()._envs)
