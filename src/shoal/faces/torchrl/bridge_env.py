"""ShoalEnv: a TorchRL env whose steps are made by one of this library's envs; this module imports TorchRL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchrl.envs import EnvBase as TorchRLEnvBase

from shoal.faces.torchrl.bridge_specs import to_torchrl_spec
from shoal.faces.torchrl.env_base import EnvBase
from shoal.faces.torchrl.transforms.transformed_env import TransformedEnv

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class ShoalEnv(TorchRLEnvBase):
    """A ``torchrl.envs.EnvBase`` over an env of this dialect; see `to_torchrl`.

    Attributes:
        shoal_env: The env behind it, which supplies the public attributes that are missing here.
    """

    def __init__(self, env: EnvBase) -> None:
        super().__init__(device=env.device, batch_size=env.batch_size, allow_done_after_reset=True)
        # Not as a submodule: it has no parameters, and TorchRL would copy and move it with its own.
        self.__dict__["shoal_env"] = env
        self.__dict__["_batch_locked"] = env.batch_locked
        self.full_action_spec = to_torchrl_spec(env.full_action_spec)
        self.full_state_spec = to_torchrl_spec(env.full_state_spec)
        self.full_observation_spec = to_torchrl_spec(env.full_observation_spec)
        self.full_reward_spec = to_torchrl_spec(env.full_reward_spec)
        self.full_done_spec = to_torchrl_spec(env.full_done_spec)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        env = self.shoal_env
        # A copy: our step writes "next" into what it is given, but here that is TorchRL's job.
        stepped = env.step(self._there(tensordict.copy()))
        return self._here(stepped.get("next"))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        env = self.shoal_env
        given = None if tensordict is None else self._there(tensordict.copy())
        reset = env.reset(given, **kwargs)
        return self._here(reset.select(*env.observation_keys, *env.done_keys, *env.state_keys, strict=False))

    def _there(self, tensordict: TensorDictBase) -> TensorDictBase:
        device = self.shoal_env.device
        return tensordict if device is None or device == tensordict.device else tensordict.to(device)

    def _here(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict if self.device is None or self.device == tensordict.device else tensordict.to(self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.shoal_env.set_seed(seed)

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the envs, each with its own seed, and return the seed after the last."""
        if seed is not None:
            torch.manual_seed(seed)
        following: int | None = self.shoal_env.set_seed(seed, static_seed=static_seed)
        return following

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the env behind this one, and with it its pool."""
        self.shoal_env.close(raise_if_closed=False)
        super().close(raise_if_closed=raise_if_closed)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "shoal_env" not in self.__dict__:
                raise
            return getattr(self.__dict__["shoal_env"], name)


class ChoosingShoalEnv(ShoalEnv):
    """A `ShoalEnv` over an env that draws random actions in its own way: it knows which are legal.

    It is a class of its own because TorchRL lets transforms change actions only where ``rand_action`` is its own.
    """

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random action of the env behind this one, which knows what is legal, into ``tensordict``."""
        given = None if tensordict is None else self._there(tensordict.copy())
        drawn = self._here(self.shoal_env.rand_action(given).select(*self.action_keys))
        return drawn if tensordict is None else tensordict.update(drawn)


def bridged(env: EnvBase) -> ShoalEnv:
    """A genuine TorchRL env over an env of this dialect."""
    inside = env
    while isinstance(inside, TransformedEnv):
        inside = inside.base_env
    is_choosing = type(inside).rand_action is not EnvBase.rand_action
    return ChoosingShoalEnv(env) if is_choosing else ShoalEnv(env)
