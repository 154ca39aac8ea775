"""The envs of an async pool before they are built: functions that make them, and envs that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError
from shoal.faces.torchrl.batched.creator import is_env
from shoal.faces.torchrl.batched.members import Members
from shoal.faces.torchrl.metadata import EnvMetaData

if TYPE_CHECKING:
    from collections.abc import Sequence


def members_of(given: Sequence[Any], kwargs: Any) -> Members:
    """Makers of envs, from functions and existing envs."""
    if not given:
        raise ArgumentError("env_makers: expected at least one")
    if isinstance(kwargs, (list, tuple)) and len(kwargs) != len(given):
        raise ArgumentError(f"create_env_kwargs: expected {len(given)} dicts, one per env, got {len(kwargs)}")
    return Members(len(given), [Existing(env) if is_env(env) else env for env in given], kwargs)


class Existing:
    """A maker that hands out an env that exists."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @property
    def meta_data(self) -> EnvMetaData:
        """What the env is."""
        return EnvMetaData.metadata_from_env(self.env)

    def __call__(self, **kwargs: Any) -> Any:
        """The env."""
        if kwargs:
            raise ArgumentError("create_env_kwargs: an env that exists takes none")
        return self.env
