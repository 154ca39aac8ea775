"""GymnaxEnv and GymnaxWrapper: gymnax's classic envs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from shoal.errors import BackendUnavailable, SpecError
from shoal.faces.torchrl.gym_making import ClassProperty
from shoal.faces.torchrl.jax_envs.base import JaxEnv, Moment
from shoal.faces.torchrl.jax_envs.tree import unbounded
from shoal.faces.torchrl.specs import Bounded, Categorical, OneHot

if TYPE_CHECKING:
    from shoal.faces.torchrl.env.keys import Path
    from shoal.faces.torchrl.specs import TensorSpec


def _gymnax() -> Any:
    try:
        import gymnax
    except ImportError as error:
        raise BackendUnavailable(f"GymnaxEnv needs gymnax ({error}): pip install 'shoal[gymnax]'") from error
    return gymnax


class GymnaxWrapper(JaxEnv):
    """A gymnax env, whose random key is part of the state: the same data gives the same step.

    Args:
        env: The env.
        params: Its parameters, the defaults when None.
        categorical_action_encoding: Whether a choice is a number; otherwise it is a one-hot vector.
        batch_size: The batch size of the env. Without one, it is that of the data.
        device: Where data is expected and returned.
        seed: The seed of the first states; None for a random one.
    """

    def __init__(
        self,
        env: Any,
        params: Any = None,
        *,
        categorical_action_encoding: bool = False,
        batch_size: Any = None,
        device: Any = None,
        seed: int | None = None,
    ) -> None:
        own = self.__dict__
        own["_env"] = env
        own["_params"] = env.default_params if params is None else params
        own["_categorical"] = categorical_action_encoding
        super().__init__(batch_size=batch_size, device=device, seed=seed)

    def begin(self, key: Any) -> Moment:
        """How an episode begins."""
        following, own = jax.random.split(key)
        observation, state = self._env.reset_env(own, self._params)
        nothing = jnp.zeros((), bool)
        return Moment({"env": state, "key": following}, observation, jnp.zeros(()), nothing, nothing)

    def move(self, state: Any, action: Any) -> Moment:
        """How an episode goes on."""
        following, own = jax.random.split(state["key"])
        observation, new, reward, terminated, _ = self._env.step_env(own, state["env"], action, self._params)
        truncated = self._env.is_truncated(new, self._params)
        moment = Moment({"env": new, "key": following}, observation, reward, terminated, truncated)
        return jax.tree.map(jnp.asarray, moment)  # type: ignore[no-any-return]

    def action_space(self) -> TensorSpec:
        """As the env declares it."""
        space = self._env.action_space(self._params)
        if hasattr(space, "n"):
            return Categorical(int(space.n), shape=()) if self._categorical else OneHot(int(space.n))
        if hasattr(space, "low"):
            return _bounded(space, torch.Size(space.shape))
        raise SpecError(f"{self._env.name}: expected a Discrete or a Box of actions, got {space}")

    def observation_leaf(self, path: Path, leaf: Any) -> TensorSpec:
        """As the env declares it, where it has bounds."""
        space = self._env.observation_space(self._params)
        like = unbounded(path, leaf)
        if like.dtype is torch.float32 and hasattr(space, "low") and tuple(space.shape) == tuple(leaf.shape):
            return _bounded(space, like.shape)
        return like


def _bounded(space: Any, shape: torch.Size) -> TensorSpec:
    low, high = (
        torch.from_numpy(np.array(np.broadcast_to(bound, shape), np.float32)) for bound in (space.low, space.high)
    )
    return Bounded(low, high, shape=shape, dtype=torch.float32)


class GymnaxEnv(GymnaxWrapper):
    """A gymnax env, made from its name.

    Args:
        env_name: One of ``available_envs``.
        categorical_action_encoding: Whether a choice is a number; otherwise it is a one-hot vector.
        batch_size: The batch size of the env. Without one, it is that of the data.
        device: Where data is expected and returned.
        seed: The seed of the first states; None for a random one.
        **kwargs: Given to the env.

    Example:
        ``GymnaxEnv("CartPole-v1", batch_size=[1024]).rollout(100)``
    """

    def __init__(
        self,
        env_name: str,
        *,
        categorical_action_encoding: bool = False,
        batch_size: Any = None,
        device: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        env, params = _gymnax().make(env_name, **kwargs)
        super().__init__(
            env,
            params,
            categorical_action_encoding=categorical_action_encoding,
            batch_size=batch_size,
            device=device,
            seed=seed,
        )
        self.env_name = env_name

    @ClassProperty
    def available_envs(cls) -> list[str]:
        """The names that gymnax knows."""
        return sorted(_gymnax().registered_envs)
