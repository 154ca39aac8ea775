"""JumanjiEnv and JumanjiWrapper: Jumanji's games and planning problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch

from shoal.errors import BackendUnavailable, SpecError
from shoal.faces.torchrl.gym_making import ClassProperty
from shoal.faces.torchrl.jax_envs.base import JaxEnv, Moment
from shoal.faces.torchrl.jax_envs.tree import unbounded
from shoal.faces.torchrl.specs import Bounded, Categorical, MultiCategorical, OneHot

if TYPE_CHECKING:
    from shoal.faces.torchrl.env.keys import Path
    from shoal.faces.torchrl.specs import TensorSpec

_LAST = 2  # the last of dm_env's three types of steps


def _jumanji() -> Any:
    try:
        import jumanji
    except ImportError as error:
        raise BackendUnavailable(f"JumanjiEnv needs jumanji ({error}): pip install 'shoal[jumanji]'") from error
    return jumanji


class JumanjiWrapper(JaxEnv):
    """A Jumanji env, with each part of what it observes at the root, under its name.

    Args:
        env: The env, which must not reset itself.
        categorical_action_encoding: Whether a choice is a number; otherwise it is a one-hot vector.
        batch_size: The batch size of the env. Without one, it is that of the data.
        device: Where data is expected and returned.
        seed: The seed of the first states; None for a random one.
    """

    def __init__(
        self,
        env: Any,
        *,
        categorical_action_encoding: bool = True,
        batch_size: Any = None,
        device: Any = None,
        seed: int | None = None,
    ) -> None:
        self.__dict__["_env"] = env
        self.__dict__["_categorical"] = categorical_action_encoding
        super().__init__(batch_size=batch_size, device=device, seed=seed)

    def begin(self, key: Any) -> Moment:
        """How an episode begins."""
        return self._moment(*self._env.reset(key))

    def move(self, state: Any, action: Any) -> Moment:
        """How an episode goes on."""
        return self._moment(*self._env.step(state, action))

    def _moment(self, state: Any, step: Any) -> Moment:
        ended = step.step_type == _LAST
        goes_on = jnp.any(step.discount != 0)
        return Moment(state, step.observation, step.reward, ended & ~goes_on, ended & goes_on)

    def action_space(self) -> TensorSpec:
        """As the env declares it."""
        spec = self._env.action_spec
        if hasattr(spec, "num_values"):
            counts = np.asarray(spec.num_values)
            if counts.ndim:
                return MultiCategorical(torch.from_numpy(counts.astype(np.int64)))
            return Categorical(int(counts), shape=()) if self._categorical else OneHot(int(counts))
        if hasattr(spec, "minimum"):
            return _bounded(spec, torch.float32)
        raise SpecError(f"{type(self._env).__name__}.action_spec: expected choices or bounds, got {spec}")

    def observation_leaf(self, path: Path, leaf: Any) -> TensorSpec:
        """As the env declares it, where it has bounds."""
        like = unbounded(path, leaf)
        if like.dtype is torch.bool:
            return Categorical(2, shape=like.shape, dtype=torch.bool)
        spec = self._env.observation_spec
        if not hasattr(spec, "minimum"):  # one of several parts
            for name in path:
                spec = getattr(spec, name, None)
        return _bounded(spec, like.dtype, like.shape) if hasattr(spec, "minimum") else like


def _bounded(spec: Any, dtype: Any, shape: Any = None) -> TensorSpec:
    size = torch.Size(spec.shape) if shape is None else shape
    low, high = (torch.from_numpy(np.array(np.broadcast_to(bound, size))) for bound in (spec.minimum, spec.maximum))
    return Bounded(low.to(dtype), high.to(dtype), shape=size, dtype=dtype)


class JumanjiEnv(JumanjiWrapper):
    """A Jumanji env, made from its name.

    Args:
        env_name: One of ``available_envs``.
        categorical_action_encoding: Whether a choice is a number; otherwise it is a one-hot vector.
        batch_size: The batch size of the env. Without one, it is that of the data.
        device: Where data is expected and returned.
        seed: The seed of the first states; None for a random one.
        **kwargs: Given to the env.

    Example:
        ``JumanjiEnv("Snake-v1", batch_size=[256]).rollout(100)``
    """

    def __init__(
        self,
        env_name: str,
        *,
        categorical_action_encoding: bool = True,
        batch_size: Any = None,
        device: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        env = _jumanji().make(env_name, **kwargs)
        super().__init__(
            env,
            categorical_action_encoding=categorical_action_encoding,
            batch_size=batch_size,
            device=device,
            seed=seed,
        )
        self.env_name = env_name

    @ClassProperty
    def available_envs(cls) -> list[str]:
        """The names that Jumanji knows."""
        return sorted(_jumanji().registered_environments())
