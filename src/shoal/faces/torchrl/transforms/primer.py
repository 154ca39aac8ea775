"""TensorDictPrimer: entries that an env lacks, but a policy expects at the start of an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorData, is_non_tensor
from torch import nn

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.keys import NestedKey, leaf_keys
from shoal.faces.torchrl.env.masks import select
from shoal.faces.torchrl.specs import Composite
from shoal.faces.torchrl.transforms.base import Transform, WrongArgument
from shoal.faces.torchrl.transforms.declaring import declare, specs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import TensorSpec

    Default = float | Callable[[], Any] | dict[NestedKey, Any] | None


class TensorDictPrimer(Transform):
    """Writes entries at every reset, such as the first hidden state of a recurrent policy.

    Args:
        primers: Specs of the entries.
        random: Whether their values are drawn from their specs.
        default_value: Their value otherwise, 0 if None: a number, a callable, or a dict with one of these per key.
            A number is for tensors only: objects keep the example of their spec. So do entries that a dict leaves out;
            other tensors are 0 then.
        reset_key: Where the mask of partial resets is, ``"_reset"`` by default.
        expand_specs: Whether the env's batch dims are added to the specs (the default). A Composite that has them as
            its shape is taken as it is.
        single_default_value: Whether a callable returns a TensorDict of all entries, rather than one value for each.
        call_before_env_reset: Whether the entries are written before the env is reset, so that it can read them.
        **kwargs: The specs by name, in place of ``primers``.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, TensorDictPrimer, Unbounded
        >>> env = GymEnv("CartPole-v1").append_transform(TensorDictPrimer(hidden=Unbounded((3,))))
        >>> env.reset()["hidden"]
        tensor([0., 0., 0.])
    """

    def __init__(
        self,
        primers: dict[str, TensorSpec] | Composite | None = None,
        random: bool | None = None,
        default_value: Default = None,
        reset_key: NestedKey | None = None,
        expand_specs: bool | None = None,
        single_default_value: bool = False,
        call_before_env_reset: bool = False,
        **kwargs: TensorSpec,
    ) -> None:
        super().__init__()
        if primers is not None and kwargs:
            raise WrongArgument(f"TensorDictPrimer: give primers or specs by name ({', '.join(kwargs)}), not both")
        given = primers if isinstance(primers, Composite) else Composite(kwargs if primers is None else primers)
        self.primers = given.clone()
        if random and default_value is not None:
            raise ArgumentError("TensorDictPrimer: give random or default_value, not both")
        self._check_defaults(default_value)
        self.random = bool(random)
        self.default_value: Any = default_value
        self.reset_key = reset_key
        self.expand_specs = expand_specs is not False
        self.single_default_value = single_default_value
        self.call_before_env_reset = call_before_env_reset

    def _check_defaults(self, default_value: Default) -> None:
        unknown = [key for key in default_value if key not in self.primers] if isinstance(default_value, dict) else []
        if unknown:
            raise ArgumentError(f"TensorDictPrimer: default_value has {unknown}, for which there are no specs")

    def _specs(self) -> Composite:
        """The specs with the batch dims of the env."""
        parent = self._lower
        if parent is None:
            return self.primers
        size = parent.batch_size
        if not self.expand_specs or self.primers.shape[: len(size)] == size:
            return self.primers
        expanded: Composite = self.primers.expand((*size, *self.primers.shape))
        return expanded

    def _make(self, lead: torch.Size) -> TensorDictBase:
        """The entries for the start of an episode."""
        specs = self._specs()
        if self.single_default_value and callable(self.default_value):
            made: TensorDictBase = self.default_value()
            return made.expand((*lead, *specs.shape)) if made.batch_size != (*lead, *specs.shape) else made
        entries: TensorDictBase = specs.rand(lead) if self.random else specs.zero(lead)
        if not self.random and self.default_value is not None:
            for key in leaf_keys(specs):
                self._fill(entries, key)
        return entries

    def _fill(self, entries: TensorDictBase, key: NestedKey) -> None:
        is_dict, zeros = isinstance(self.default_value, dict), entries.get(key)
        value = self.default_value.get(key, 0) if is_dict else self.default_value
        value = value() if callable(value) else value
        if not isinstance(zeros, torch.Tensor):
            if not isinstance(value, (int, float)):
                data = value.data if is_non_tensor(value) else value
                entries.set(key, NonTensorData(data, batch_size=zeros.batch_size, device=zeros.device))
            return
        entries.set(key, torch.as_tensor(value, dtype=zeros.dtype, device=zeros.device).expand_as(zeros).clone())

    def _lead(self, td: TensorDictBase) -> torch.Size:
        return torch.Size() if self._lower is None else self._lower._plan().lead(td)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        parent = self._lower
        if not self.call_before_env_reset or parent is None:
            return tensordict
        if tensordict is None:
            return self._make(torch.Size())
        made = self._make(self._lead(tensordict))
        mask = tensordict.get(self.reset_key or "_reset", None)
        return tensordict.update(made if mask is None else select(mask, made, tensordict))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self.call_before_env_reset:
            return tensordict_reset
        return tensordict_reset.update(self._make(self._lead(tensordict_reset)))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Carry over what the policy has not written for the next step."""
        for key in leaf_keys(self.primers):
            if next_tensordict.get(key, None) is None:
                value = tensordict.get(("next", *((key,) if isinstance(key, str) else key)), tensordict.get(key, None))
                if value is not None:
                    next_tensordict.set(key, value)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the entries into data outside an env."""
        return tensordict.update(self._make(tensordict.batch_size))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with what the transform adds."""
        return self._declare(observation_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with what the transform adds."""
        return self._declare(state_spec)

    def _declare(self, spec: Composite) -> Composite:
        parent, primers = self._lower, self._specs()
        known = [] if parent is None else specs_of(parent)
        for key in leaf_keys(primers):
            declare(spec, key, primers[key].clone(), primers, *known)
        return spec


def primers_of(policy: Any) -> Iterator[Transform]:
    """The primers that the modules of a policy ask for, through a method ``make_tensordict_primer``."""
    if not isinstance(policy, nn.Module):
        return
    for module in policy.modules():
        make = getattr(module, "make_tensordict_primer", None)
        if callable(make):
            yield make()
