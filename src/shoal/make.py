"""The front doors: from a name to a running pool behind a face."""

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

    from shoal.faces.gymnasium import ShoalVectorEnv
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
) -> Pool:
    """A pool without a face; ``make_vec`` explains the arguments."""
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
    return Pool(running, autoreset=config.autoreset, batch_size=batch_size, seed=seed, copy=copy, engine_reason=reason)


def make_vec(
    env: Any,
    num_envs: int | None = None,
    *,
    engine: str = "auto",
    num_workers: int | None = None,
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
    construct_timeout: float | None = 60.0,
    reset_timeout: float | None = 60.0,
    step_timeout: float | None = 60.0,
    close_timeout: float = 5.0,
    threads_per_worker: int = 1,
    allow_pickle: bool = False,
) -> ShoalVectorEnv:
    """Many envs as one ``gymnasium.vector.VectorEnv``.

    Args:
        env: A registered id, a Gymnasium ``EnvSpec``, a callable that makes an env (Gymnasium's or dm_env's), or a
            list of such callables, each env its own.
        num_envs: How many envs; for a list, its length.
        engine: ``"serial"``, ``"thread"``, ``"process"``, or ``"auto"``, which measures the env and chooses;
            ``stats().engine_reason`` says why.
        num_workers: Threads or processes; by default one thread per env, or one process per usable core.
        batch_size: Rows per ``recv``. Smaller than ``num_envs``, it makes the pool asynchronous.
        autoreset: ``"next_step"``, ``"same_step"`` or ``"disabled"``, as in Gymnasium.
        seed: Seed for the first reset, unless that is given one: env ``i`` gets ``seed + i``.
        env_kwargs: Keyword arguments for every env, or a list with one mapping per env.
        wrappers: Applied to each env where it runs, innermost first.
        max_episode_steps: A time limit, in place of the registered one.
        start_method: ``"forkserver"`` (default), ``"fork"`` or ``"spawn"``.
        affinity: CPUs to pin worker processes to, given out in turn.
        copy: Whether observations are copies. If False they are views that stay valid for one further call.
        check: When results of envs are checked against their contract: ``"always"``, ``"first"`` step, or ``"off"``.
        on_fault: ``"raise"``: an env that fails raises a ``shoal.errors.FaultError``.
        construct_timeout: Seconds an env may take to be built; None waits for ever.
        reset_timeout: Seconds an env may take to reset.
        step_timeout: Seconds an env may take to step.
        close_timeout: Seconds that ``close`` may take before it ends workers by force.
        threads_per_worker: Envs of one worker process that may run at the same time, for envs that wait.
        allow_pickle: Whether infos and observations that are not plain data may leave a worker as pickles.

    Example:
        >>> import shoal
        >>> envs = shoal.make_vec("CartPole-v1", num_envs=3, engine="serial")
        >>> obs, infos = envs.reset(seed=1)
        >>> obs, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        >>> obs.shape, rewards
        ((3, 4), array([1., 1., 1.]))
        >>> envs.close()
    """
    from shoal.faces.gymnasium import ShoalVectorEnv

    options = dict(locals())
    options.pop("ShoalVectorEnv")
    return ShoalVectorEnv(make_pool(options.pop("env"), options.pop("num_envs"), **options))
