"""Stateless envs with a generator of their own, and those whose parameters travel in their data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from shoal.faces.torchrl.composites import make_composite_from_td
from shoal.faces.torchrl.env_base import EnvBase
from shoal.faces.torchrl.fast_td import build, entries_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import Composite


class RandomEnv(EnvBase):
    """An env that keeps nothing but a random number generator: its state is in the data it is given.

    Args:
        seed: The seed of the generator; None for a random one.
        device: Where data is expected and returned.
        batch_size: The batch size of the env, when it has a fixed one.
    """

    batch_locked = False

    def __init__(
        self,
        seed: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Any = None,
    ) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self._generator = torch.Generator(device="cpu" if self.device is None else self.device)
        self.set_seed(seed)

    @property
    def rng(self) -> torch.Generator:
        """The generator behind everything random in the env."""
        generator: torch.Generator = self._generator
        return generator

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def to(self, device: Any, *args: Any, **kwargs: Any) -> Any:
        """Move the env; on a new device, its generator starts from a seed that the old one draws."""
        target = torch.device(device)
        if target != self._generator.device:
            seed = int(torch.randint(2**62, (), generator=self._generator, device=self._generator.device))
            self._generator = torch.Generator(device=target)
            self._generator.manual_seed(seed)
        return super().to(device, *args, **kwargs)

    def _batch_of(self, td: TensorDictBase | None) -> torch.Size:
        return self.batch_size if td is None else td.batch_size


class ParametricEnv(RandomEnv):
    """An env whose parameters are in its data, under ``"params"``: each row may have its own.

    Args:
        td_params: A TensorDict with the parameters for resets that are given none. Its batch size is that of the env.
        seed: The seed of the generator; None for a random one.
        device: Where data is expected and returned.
    """

    def __init__(
        self,
        td_params: TensorDictBase,
        seed: int | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(seed=seed, device=device, batch_size=td_params.batch_size)
        params = td_params.get("params")
        self._default_params = params if self.device is None else params.to(self.device)

    def _params_spec(self) -> Composite:
        return make_composite_from_td(self._default_params, unsqueeze_null_shapes=False)

    def _params_of(self, td: TensorDictBase | None) -> TensorDictBase:
        """The parameters of a new episode: those in the data, and the env's own for any that are missing."""
        lead = self._batch_of(td)
        own: TensorDictBase = self._default_params
        if own.batch_size != lead:
            own = own.expand(lead).contiguous()
        given = None if td is None else td.get("params", None)
        return own.copy() if given is None else own.copy().update(given)

    def to(self, device: Any, *args: Any, **kwargs: Any) -> Any:
        """Move the env and its parameters."""
        self._default_params = self._default_params.to(device)
        return super().to(device, *args, **kwargs)


def entries(td: TensorDictBase) -> Mapping[str, Any]:
    """The entries of a TensorDict, for reading."""
    inside = entries_of(td)
    return dict(td.items()) if inside is None else inside


def twin(td: TensorDictBase) -> TensorDict:
    """A TensorDict of the same tensors, whose entries can be replaced independently."""
    return build(dict(entries(td)), td.batch_size, td.device)


def params_td(values: Mapping[str, float], batch_size: Any, device: Any = None) -> TensorDict:
    """A TensorDict with the same parameters in every row, under ``"params"``."""
    size = torch.Size(() if batch_size is None else (batch_size,) if isinstance(batch_size, int) else batch_size)
    rows = {name: torch.full(size, value, device=device) for name, value in values.items()}
    return TensorDict({"params": TensorDict(rows, size, device=device)}, size, device=device)
