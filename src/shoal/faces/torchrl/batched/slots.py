"""What is sent to a pool so that it can make its envs."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import shoal.faces.torchrl as face
from shoal.build import preload_if_loaded
from shoal.errors import ArgumentError
from shoal.faces.torchrl.batched.presets import PresetEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.adapters.tensordict_env import Crossing

_DEFAULT_TIMEOUT_S = 10_000.0

# These take seconds to load, torch included, and a process that imports this module has envs that need them.
preload_if_loaded("shoal.adapters.tensordict_env", "shoal.faces.torchrl.batched", "shoal.faces.torchrl.gym")


@dataclass(frozen=True)
class MakeSlot:
    """Makes an env of a pool, in whichever process the env will live.

    Attributes:
        maker: Makes the env.
        kwargs: Keyword arguments for it.
        crossing: How its data crosses.
        threads: How many threads torch may use there; None leaves that alone.
        is_silent: Whether warnings are suppressed there.
    """

    maker: Callable[..., Any]
    kwargs: dict[str, Any]
    crossing: Crossing
    threads: int | None = None
    is_silent: bool = field(default=False)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """What the user gave, so that a search for what cannot be pickled names it as the user would."""
        return self.maker

    def __call__(self) -> PresetEnv:
        """Make the env."""
        if self.is_silent:
            warnings.filterwarnings("ignore")
        if self.threads is not None and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        return PresetEnv(self.maker(**self.kwargs), self.crossing)


def filters_warnings() -> bool:
    """Whether workers suppress warnings, as ``shoal.faces.torchrl.filter_warnings_subprocess`` says."""
    return bool(face.filter_warnings_subprocess)


def patience_s() -> float:
    """Seconds that an env may take for a step or a reset: ``BATCHED_PIPE_TIMEOUT`` from the environment."""
    told = os.environ.get("BATCHED_PIPE_TIMEOUT")
    if told is None:
        return _DEFAULT_TIMEOUT_S
    try:
        return float(told)
    except ValueError:
        raise ArgumentError(f"BATCHED_PIPE_TIMEOUT: expected seconds, got {told!r}") from None


def start_method_of(name: str | None) -> str | None:
    """The start method of a pool, from its name in this dialect.

    Unless another one is asked for, workers are forks of this process where that does no harm: no other thread runs
    here, and no GPU is in use. Otherwise they come from a fork server, which takes seconds to load torch.
    """
    return "fork?" if name in (None, "fork") else name
