"""ShoalEnv: an env of TorchRL's class whose steps are made by an env of this library's. It imports TorchRL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchrl.envs import EnvBase as TorchRLEnvBase

from shoal.faces.torchrl.bridge_specs import to_torchrl_spec

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env_base import EnvBase


class ShoalEnv(TorchRLEnvBase):
    """A ``torchrl.envs.EnvBase`` over an env of this dialect; see `to_torchrl`.

    Attributes:
        shoal_env: The env behind it. What this one does not have, it is asked for.
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
        # A copy: the step writes "next" into what it is given, which is TorchRL's to do.
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
