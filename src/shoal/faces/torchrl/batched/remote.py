"""What is done with one env where it lives: these functions travel there, so they are short and capture no objects."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

CALLABLE, VALUE = "callable", "value"


def seed_env(env: Any, seed: int | None, static_seed: bool) -> int | None:
    """Seed an env, and in a worker process torch's own generator too: nothing else there uses it.

    Returns:
        The seed after the env's own.
    """
    if seed is not None and multiprocessing.parent_process() is not None:
        torch.manual_seed(seed)
    following: int | None = env.set_seed(seed, static_seed=static_seed)
    return following


def itself(env: Any) -> Any:
    """The env."""
    return env


def state_of(env: Any) -> dict[str, Any]:
    """The state of an env."""
    return dict(env.state_dict())


def load_state_of(env: Any, state: Mapping[str, Any], strict: bool) -> None:
    """Give an env its state."""
    env.load_state_dict(state, strict=strict)


def kind_of(env: Any, path: tuple[str, ...]) -> str:
    """Whether an attribute is something to call; raises if there is none."""
    return CALLABLE if callable(attribute_of(env, path)) else VALUE


def attribute_of(env: Any, path: tuple[str, ...]) -> Any:
    """An attribute of an env, or of that attribute, and so on along the path."""
    found = env
    for name in path:
        found = getattr(found, name)
    return found


def call_attribute_of(env: Any, path: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a method of an env, or of one of its attributes, returns."""
    return attribute_of(env, path)(*args, **kwargs)
