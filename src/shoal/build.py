"""From a name to a running pool: the recipe, the engine, and the pool on top of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.engines.base import EngineConfig, Timeouts
from shoal.engines.choose import build_engine
from shoal.errors import ArgumentError
from shoal.pool import Pool
from shoal.recipes import EnvKwargs, Wrapper, recipe_for
from shoal.seeding import seeds_for
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.seeding import Seed

# Views stay valid for one further call, and the call after that writes to a block nobody looks at.
_VIEW_BLOCKS = 3
_CHECKS = ("always", "first", "off")
_FAULT_POLICIES = ("raise",)


def make_pool(
    env: Any,
    num_envs: int | None = None,
    *,
    engine: str = "auto",
    num_workers: int | None = None,
    threads_per_worker: int = 1,
    batch_size: int | None = None,
    autoreset: Any = "next_step",
    seed: Seed = None,
    env_kwargs: EnvKwargs = None,
    wrappers: Sequence[Wrapper] | None = None,
    max_episode_steps: int | None = None,
    start_method: str | None = None,
    affinity: Sequence[int] | None = None,
    copy: bool = True,
    check: str = "always",
    on_fault: str = "raise",
    allow_pickle: bool = False,
    construct_timeout: float | None = 60.0,
    reset_timeout: float | None = 60.0,
    step_timeout: float | None = 60.0,
    close_timeout: float = 5.0,
    bounded_actions: bool = True,
    implicit_reset: bool = False,
) -> Pool:
    """A pool without a face. ``make_vec`` explains the arguments it shares with it, ``Pool`` the last two."""
    recipe = recipe_for(env, num_envs, env_kwargs, wrappers, max_episode_steps)
    count = len(recipe.factories)
    if batch_size is not None and not 1 <= batch_size <= count:
        raise ArgumentError(f"batch_size: expected 1 to {count} (num_envs), got {batch_size}")
    if check not in _CHECKS:
        raise ArgumentError(f"check: expected one of {_CHECKS}, got {check!r}")
    if on_fault not in _FAULT_POLICIES:
        raise ArgumentError(f"on_fault: expected one of {_FAULT_POLICIES}, got {on_fault!r}")
    for name, value in (("num_workers", num_workers), ("threads_per_worker", threads_per_worker)):
        if value is not None and value < 1:
            raise ArgumentError(f"{name}: expected at least 1, got {value}")
    is_async = batch_size is not None and batch_size < count
    config = EngineConfig(
        factories=recipe.factories,
        name=recipe.name,
        autoreset=Autoreset.parse(autoreset),
        max_episode_steps=recipe.max_episode_steps,
        check=check,
        blocks=1 if copy or is_async else _VIEW_BLOCKS,
        timeouts=Timeouts(construct_timeout, reset_timeout, step_timeout, close_timeout),
        one_by_one=is_async,
        num_workers=num_workers,
        threads_per_worker=threads_per_worker,
        start_method=start_method,
        affinity=None if affinity is None else tuple(affinity),
        allow_pickle=allow_pickle,
        seed=seed if isinstance(seed, int) else None,
    )
    seeds_for(seed, count)  # a seed that makes no sense is refused before anything starts
    running, reason = build_engine(engine, config)
    return Pool(
        running,
        autoreset=config.autoreset,
        batch_size=batch_size,
        seed=seed,
        copy=copy,
        engine_reason=reason,
        bounded_actions=bounded_actions,
        implicit_reset=implicit_reset,
    )
