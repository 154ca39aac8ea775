"""EnvMetaData: what can be known about an env without having it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from shoal.faces.torchrl.specs.shapes import varargs_size

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import Composite


@dataclass(eq=False)
class EnvMetaData:
    """A summary of an env that can be pickled.

    Attributes:
        tensordict: An example of its data, all zeros, with the masks of partial resets.
        specs: Its specs: ``input_spec`` and ``output_spec``.
        batch_size: Its batch size.
        env_str: How it prints.
        device: Its device.
        batch_locked: Whether its batch size is fixed.
        device_map: The device of each leaf of the example.
        supports_set_state: Whether it can be reset to a given state.

    Example:
        >>> from shoal.faces.torchrl import GymEnv
        >>> EnvMetaData.metadata_from_env(GymEnv("CartPole-v1")).expand(4).batch_size
        torch.Size([4])
    """

    tensordict: TensorDictBase
    specs: Composite
    batch_size: torch.Size
    env_str: str
    device: torch.device | None
    batch_locked: bool
    device_map: dict[Any, torch.device]
    supports_set_state: bool = False

    @classmethod
    def metadata_from_env(cls, env: Any) -> EnvMetaData:
        """The summary of an env."""
        tensordict, specs = env.fake_tensordict().clone(), env.specs.clone()
        for key in env._recorded_keys:
            # An env puts it into what it was given, of which a batch keeps its own copy.
            tensordict = tensordict.exclude(key)
            del specs["input_spec", "full_state_spec", key]
        for reset_key, done_keys in zip(env.reset_keys, env.done_keys_groups, strict=True):
            tensordict.set(reset_key, torch.zeros_like(tensordict.get(done_keys[0]), dtype=torch.bool))
        return cls(
            tensordict=tensordict,
            specs=specs,
            batch_size=env.batch_size,
            env_str=str(env),
            device=env.device,
            batch_locked=env.batch_locked,
            device_map=_devices(tensordict),
            supports_set_state=bool(getattr(env, "supports_set_state", False)),
        )

    @property
    def has_dynamic_specs(self) -> bool:
        """Whether the shape of some leaf is not fixed."""
        return any(spec is not None and -1 in spec.shape for spec in self.specs.values(True, True))

    def expand(self, *size: Any) -> EnvMetaData:
        """The summary of a batch of such envs."""
        batch_size = varargs_size(size)
        return replace(
            self,
            tensordict=self.tensordict.expand(batch_size),
            specs=self.specs.expand(batch_size),
            batch_size=batch_size,
        )

    def clone(self) -> EnvMetaData:
        """A summary that shares nothing with this one."""
        return replace(
            self, tensordict=self.tensordict.clone(), specs=self.specs.clone(), device_map=dict(self.device_map)
        )

    def to(self, device: torch.device | str | int | None) -> EnvMetaData:
        """The summary of such an env on another device."""
        if device is None:
            return replace(self, device=None)
        tensordict = self.tensordict.to(device)
        moved = torch.device(device)
        return replace(
            self,
            tensordict=tensordict,
            specs=self.specs.to(moved),
            device=moved,
            device_map=_devices(tensordict),
        )

    def __getitem__(self, index: Any) -> EnvMetaData:
        tensordict = self.tensordict[index]
        return replace(self, tensordict=tensordict, specs=self.specs[index], batch_size=tensordict.batch_size)


def _devices(tensordict: TensorDictBase) -> dict[Any, torch.device]:
    leaves = tensordict.items(True, True)
    return {key: value.device for key, value in leaves if isinstance(value, torch.Tensor)}
