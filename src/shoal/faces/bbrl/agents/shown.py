"""An env as the pool of an env agent is to see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.adapters import adapt
from shoal.errors import SpecError
from shoal.faces.bbrl.agents.making import has_autoreset

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium import Space


@dataclass(frozen=True)
class MakeShown:
    """Makes an env where it will run."""

    make: Callable[..., Any]
    kwargs: dict[str, Any]
    space: Space[Any]
    autoreset: bool | None

    def __call__(self) -> Any:
        """Make it."""
        env = self.make(**self.kwargs)
        check_autoreset(env, self.autoreset, "an env")
        return Shown(env, self.space)


class Shown:
    """An env as the pool is to see it: with the space that its observations really are in, and without infos.

    Nobody reads infos here, and carrying them between processes would cost more than the rest of most steps.

    Attributes:
        early: A seed and the result of a reset that was already made with it, to be returned by the next reset.
        is_handed_over: Whether another ``Shown`` has taken over the env, and will close it.
    """

    def __init__(self, env: Any, space: Space[Any], action_space: Space[Any] | None = None) -> None:
        self.env = env = adapt(env)
        self.observation_space = space
        self.action_space = env.action_space if action_space is None else action_space
        self.early: tuple[int | None, Any] | None = None
        self.is_handed_over = False

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Reset the env, unless it has just been reset with this seed."""
        early, self.early = self.early, None
        result = early[1] if early is not None and early[0] == seed else self.env.reset(seed=seed, options=options)
        return (result[0], {}) if _ends_in_dict(result, 2) else result

    def step(self, action: Any) -> Any:
        """Step the env."""
        result = self.env.step(_plain(action))
        if not _ends_in_dict(result, 5):
            return result
        if torch.Tensor in map(type, result[1:4]):
            result = (result[0], *map(_number, result[1:4]), result[4])
        return (*result[:4], {}) if result[4] else result

    def close(self) -> None:
        """Close the env, unless it was handed over."""
        if not self.is_handed_over:
            self.env.close()


def _plain(action: Any) -> Any:
    """An action with Python's numbers for single integers and bools, which is what envs get in BBRL."""
    if isinstance(action, dict):
        return {key: _plain(part) for key, part in action.items()}
    return action.item() if isinstance(action, (np.integer, np.bool_)) else action


def _number(value: Any) -> Any:
    """A reward or a flag that is a tensor, as a plain number."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _ends_in_dict(result: Any, length: int) -> bool:
    return result.__class__ is tuple and len(result) == length and isinstance(result[-1], dict)


def check_autoreset(env: Any, expected: bool | None, who: str) -> None:
    """Raise ``SpecError`` if an env has an ``Autoreset`` wrapper and is expected to have none, or the reverse."""
    if expected is not None and has_autoreset(env) is not expected:
        has = "has no" if expected else "has an"
        raise SpecError(f"{who} {has} Autoreset wrapper, unlike env 0: all envs of an agent must agree")
