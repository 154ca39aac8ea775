"""JaxEnv: what envs written in JAX have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import torch
from tensordict import TensorDict

from shoal.faces.torchrl.env_base import EnvBase
from shoal.faces.torchrl.jax_envs.tree import Tree, array_of, tensor_of
from shoal.faces.torchrl.specs import Categorical, Composite, OneHot, Unbounded

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import Path
    from shoal.faces.torchrl.specs import TensorSpec


class Moment(NamedTuple):
    """What a JAX env returns after a reset or a step.

    Attributes:
        state: All that the next step needs.
        observation: What is seen, nested or not.
        reward: The reward of the step.
        terminated: Whether the episode has come to its end.
        truncated: Whether it was cut off.
    """

    state: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any


class JaxEnv(EnvBase):
    """An env written in JAX, which keeps nothing but a random key: the state is in the data, under ``"state"``.

    A subclass says how one env begins and moves, in `begin` and `move`, which JAX compiles for batches, and what its
    actions are.

    Args:
        batch_size: The batch size of the env. Without one, it is that of the data.
        device: Where data is expected and returned.
        seed: The seed of the first states; None for a random one.
    """

    batch_locked = False

    def __init__(
        self, *, batch_size: Any = None, device: torch.device | str | int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(batch_size=batch_size, device=device)
        own = self.__dict__
        self._set_seed(seed)
        own["_begin_all"] = jax.jit(lambda key, count: _begin_all(self.begin, key, count), static_argnums=1)
        own["_move_all"] = jax.jit(jax.vmap(self.move))
        first = jax.eval_shape(self.begin, jax.random.PRNGKey(0))
        own["_state"] = Tree(first.state, "state")
        own["_seen"] = Tree(first.observation, "observation")
        own["_reward_shape"] = first.reward.shape or (1,)
        self._set_specs()

    # -- what a subclass defines --------------------------------------------------------------------------------------

    def begin(self, key: Any) -> Moment:
        """How an episode begins."""
        raise NotImplementedError

    def move(self, state: Any, action: Any) -> Moment:
        """How an episode goes on."""
        raise NotImplementedError

    def action_space(self) -> TensorSpec:
        """The spec of an action of a single env."""
        raise NotImplementedError

    def observation_leaf(self, path: Path, leaf: Any) -> TensorSpec:
        """The spec of a part of an observation."""
        raise NotImplementedError

    # -- specs --------------------------------------------------------------------------------------------------------

    def _set_specs(self) -> None:
        state = Composite(state=self._state.spec())
        observed = self._seen.spec(self.observation_leaf)
        observed.update(state.clone())
        self.full_observation_spec_unbatched = observed
        self.full_state_spec_unbatched = state
        self.full_action_spec_unbatched = Composite(action=self.action_space())
        self.full_reward_spec_unbatched = Composite(reward=Unbounded(self._reward_shape))
        flags = {name: Categorical(2, shape=(1,), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.full_done_spec_unbatched = Composite(flags)

    # -- reset and step -----------------------------------------------------------------------------------------------

    def _set_seed(self, seed: int | None) -> None:
        fresh = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self.__dict__["_key"] = jax.random.PRNGKey(fresh)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        size = self.batch_size if tensordict is None else tensordict.batch_size
        self.__dict__["_key"], moment = self._begin_all(self._key, size.numel())
        return self._told(moment, size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        size = tensordict.batch_size
        state = self._state.data(lambda path: tensordict.get(("state", *path)))
        moment = self._move_all(state, self._action(tensordict.get("action"), size))
        following = self._told(moment, size)
        following.set("reward", tensor_of(moment.reward, self.device).float().reshape(*size, *self._reward_shape))
        for name in ("terminated", "truncated"):
            flag = tensor_of(getattr(moment, name), self.device).bool()
            following.set(name, flag.reshape(*size, 1))
        return following.set("done", following.get("terminated") | following.get("truncated"))

    def _action(self, action: torch.Tensor, size: torch.Size) -> Any:
        spec = self.full_action_spec_unbatched["action"]
        if isinstance(spec, OneHot):
            return array_of(action.long().argmax(-1).int().reshape(-1))
        dtype = {torch.int64: torch.int32, torch.float64: torch.float32}.get(action.dtype, action.dtype)
        return array_of(action.to(dtype).reshape(-1, *action.shape[len(size) :]))

    def _told(self, moment: Moment, size: torch.Size) -> TensorDictBase:
        told = TensorDict({}, size, device=self.device)
        for path, value in self._seen.tensors(moment.observation, size, self.device):
            told.set(path, value)
        for path, value in self._state.tensors(moment.state, size, self.device):
            told.set(("state", *path), value)
        return told


def _begin_all(begin: Any, key: Any, count: int) -> tuple[Any, Moment]:
    """The first moments of some envs, and the key for the next ones."""
    following, own = jax.random.split(key)
    return following, jax.vmap(begin)(jax.random.split(own, count))
