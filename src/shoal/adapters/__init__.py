"""Foreign envs made to look like Gymnasium's, and the spec read off an env.

A slot speaks Gymnasium's language: ``reset(seed=, options=) -> (obs, info)`` and ``step(action) -> 5-tuple``.
``adapt`` gives it that for whatever a factory returns.
"""

from __future__ import annotations

import sys
from typing import Any

from gymnasium import Space

from shoal.errors import SpecError
from shoal.kernel import KernelEnv
from shoal.native import NativeEnv
from shoal.spec import EnvSpec, Field, SpaceTree

__all__ = ["adapt", "describe"]


def adapt(env: Any) -> Any:
    """The env itself if it speaks Gymnasium's language, else an adapter around it."""
    if isinstance(env, KernelEnv):
        from shoal.adapters.kernel_env import PlainKernelEnv

        return PlainKernelEnv(env)
    if isinstance(env, NativeEnv):
        from shoal.adapters.native_env import PlainNativeEnv

        return PlainNativeEnv(env)
    if is_pettingzoo(env):
        from shoal.adapters.pettingzoo import ParallelEnvAdapter

        return ParallelEnvAdapter(env)
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return _with_plain_results(env) if getattr(getattr(env, "unwrapped", env), "returns_tensors", False) else env
    # Only an env whose author imported dm_env can be a dm_env environment.
    dm_env = sys.modules.get("dm_env")
    if (dm_env is not None and isinstance(env, dm_env.Environment)) or hasattr(env, "observation_spec"):
        from shoal.adapters.dm_env import DmEnvAdapter

        return DmEnvAdapter(env)
    raise SpecError(
        f"{type(env).__name__} is no env: it has neither observation_space and action_space (Gymnasium, PettingZoo) "
        "nor observation_spec and action_spec (dm_env)"
    )


def _with_plain_results(env: Any) -> Any:
    from shoal.adapters.tensor_results import PlainResults

    return PlainResults(env)


def is_pettingzoo(env: Any) -> bool:
    """Whether an env is one of PettingZoo's: its spaces are methods, which take the name of an agent."""
    library = sys.modules.get("pettingzoo")
    if library is not None and isinstance(env, (library.ParallelEnv, library.AECEnv)):
        return True
    return hasattr(env, "possible_agents") and all(
        callable(getattr(env, name, None)) for name in ("observation_space", "action_space")
    )


def describe(env: Any, name: str) -> EnvSpec:
    """The contract of an adapted env."""
    # Only the adapter's own word counts: a Gymnasium env may call anything its players.
    adapter = sys.modules.get("shoal.adapters.pettingzoo")
    has_players = adapter is not None and isinstance(env, adapter.ParallelEnvAdapter)
    return EnvSpec(
        observation=SpaceTree(_space(env, "observation_space"), "observation"),
        action=SpaceTree(_space(env, "action_space"), "action"),
        id=name,
        metadata=dict(getattr(env, "metadata", None) or {}),
        render_mode=getattr(env, "render_mode", None),
        registered=getattr(env, "spec", None),
        info=_info_columns(env),
        players=env.players if has_players else (),
        player=env.player if has_players else None,
    )


def _space(env: Any, name: str) -> Space[Any]:
    """A space of an env.

    Raises:
        SpecError: If there is none.
    """
    space = getattr(env, name, None)
    if not isinstance(space, Space):
        raise SpecError(f"{name}: expected a space of Gymnasium's, got {space!r}")
    return space


def _info_columns(env: Any) -> tuple[Field, ...]:
    """Info fields that an env declares in ``info_columns``, which then need no side channel."""
    declared = getattr(env, "info_columns", ())
    is_ours = isinstance(declared, tuple) and all(isinstance(field, Field) for field in declared)
    return declared if is_ours else ()
