"""This library's specs as TorchRL specs; only the modules of the bridge, such as this one, import TorchRL."""

from __future__ import annotations

from typing import Any

import torch
from torchrl import data

from shoal.errors import SpecError
from shoal.faces.torchrl import specs


def to_torchrl_spec(spec: Any) -> Any:
    """The same spec as a TorchRL spec.

    Raises:
        SpecError: TorchRL has no such spec.
    """
    if spec is None:
        return None
    if isinstance(spec, (specs.StackedComposite, specs.Stacked)):
        return _stacked(spec)
    if isinstance(spec, specs.Composite):
        entries = {name: to_torchrl_spec(child) for name, child in spec.items()}
        return data.Composite(entries, shape=spec.shape, device=spec.device)
    form = {"shape": spec.shape, "device": spec.device, "dtype": spec.dtype}
    # Binary is a subclass of Categorical, so it is checked first.
    if isinstance(spec, specs.Binary):
        return data.Binary(**form)
    if isinstance(spec, specs.Categorical):
        return data.Categorical(spec._n, mask=spec.mask, **form)
    if isinstance(spec, specs.OneHot):
        return data.OneHot(spec.n, mask=spec.mask, **form)
    if isinstance(spec, specs.MultiCategorical):
        single = spec.remove_singleton
        return data.MultiCategorical(spec.nvec, mask=spec.mask, remove_singleton=single, **form)
    if isinstance(spec, specs.MultiOneHot):
        return data.MultiOneHot(spec.nvec, mask=spec.mask, **form)
    if isinstance(spec, specs.Bounded):
        return data.Bounded(spec.low, spec.high, domain=spec.domain, **form)
    if isinstance(spec, specs.Unbounded):
        return data.Unbounded(**form)
    if isinstance(spec, specs.NonTensor):
        return data.NonTensor(spec.shape, spec.device, example_data=spec.example_data, batched=spec.batched)
    raise SpecError(f"TorchRL has no spec like {spec!r}")


def _stacked(spec: Any) -> Any:
    members = [to_torchrl_spec(member) for member in spec.unbind(spec.stack_dim)]
    try:
        stacked = torch.stack(members, spec.stack_dim)
        if isinstance(spec, specs.StackedComposite):
            list(stacked.keys(True))  # TorchRL stacks the entries only when they are accessed
        return stacked
    except RuntimeError as error:
        raise SpecError(f"TorchRL cannot stack specs of different kinds: {spec!r}") from error
