"""How transforms declare entries that are new to an env."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.faces.torchrl.env.keys import NestedKey, Path, level_of, path_of
from shoal.faces.torchrl.specs import Composite

if TYPE_CHECKING:
    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import TensorSpec


def declare(spec: Composite, key: NestedKey, leaf: TensorSpec, *known: Composite) -> None:
    """Put a leaf into a spec, and above it the levels that the spec lacks, in the shapes that they have elsewhere.

    Args:
        spec: The spec, changed in place.
        key: Where the leaf goes.
        leaf: The leaf.
        *known: Specs that may have the levels: those of the env below, by `specs_of`.
    """
    path, here = path_of(key), spec
    for end in range(1, len(path)):
        name = path[end - 1]
        if here.get(name, None) is None:
            here[name] = Composite(shape=_shape_of(path[:end], known, here.shape), device=here.device)
        here = here[name]
    spec[key] = leaf


def specs_of(env: EnvBase) -> list[Composite]:
    """All specs of an env."""
    return [*env.output_spec.values(), *env.input_spec.values()]


def _shape_of(path: Path, known: tuple[Composite, ...], default: torch.Size) -> torch.Size:
    """The shape of a level: the longest, as a level that was written leaf by leaf has no dims of its own."""
    levels = [level_of(spec, path) for spec in known]
    return max((torch.Size(level.shape) for level in levels if level is not None), key=len, default=default)
