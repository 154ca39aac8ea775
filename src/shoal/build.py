"""From a name to a running pool: the recipe, the engine, and the pool on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from shoal.arguments import check_choice, check_count, check_counts, check_cpus, check_flags, check_folder
from shoal.black_box import BlackBox, FaultFiles
from shoal.engines.base import Engine, EngineConfig, Timeouts
from shoal.engines.choose import build_engine
from shoal.engines.kernel.installed import has_numba
from shoal.engines.starting import closing_on_error
from shoal.envs.envpool import kind_of
from shoal.envs.gymnasiums import latest_version
from shoal.errors import ArgumentError
from shoal.nan_watch import POLICIES as NAN_POLICIES
from shoal.pool import Pool
from shoal.recipes import EnvKwargs, Recipe, Wrapper, recipe_for
from shoal.recovery import POLICIES as FAULT_POLICIES
from shoal.recovery import Restart
from shoal.registry import is_shipped, own_task
from shoal.seeding import seeds_for
from shoal.slot import Autoreset

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from gymnasium.envs.registration import EnvSpec

    from shoal.kernel import KernelEnv
    from shoal.native import NativeEnv
    from shoal.registry import Task
    from shoal.seeding import Seed

# Views stay valid for one further call, and even the call after that writes to a block that nobody looks at.
_VIEW_BLOCKS = 3
_CHECKS = ("always", "first", "off")


def make_pool(
    env: Any,
    num_envs: int | None = None,
    *,
    engine: str = "auto",
    num_workers: int | None = None,
    threads_per_worker: int = 1,
    inline: bool = False,
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
    on_fault: str | Restart = "raise",
    on_nan: str = "raise",
    fault_dir: str | os.PathLike[str] | None = None,
    recycle_above: int | None = None,
    allow_pickle: bool = False,
    construct_timeout: float | None = 60.0,
    reset_timeout: float | None = 60.0,
    step_timeout: float | None = 60.0,
    close_timeout: float = 5.0,
    bounded_actions: bool = True,
    implicit_reset: bool = False,
    quick_reset_s: float | None = None,
    name: str | None = None,
) -> Pool:
    """Make a pool without a face; ``make_vec`` explains the arguments that the two share, ``Pool`` most of the others.

    ``name`` is the env's name in messages. ``Slot`` explains ``quick_reset_s``, which is for ``on_fault="raise"``.

    Example:
        >>> import shoal
        >>> with shoal.make_pool("CartPole-v1", 4, engine="serial") as pool:
        ...     first = pool.reset(seed=1)
        ...     batch = pool.step([0, 1, 0, 1])
        >>> batch.reward.tolist(), batch.elapsed_step.tolist()
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1])
    """
    recipe = _recipe(env, engine, num_envs, env_kwargs, wrappers, max_episode_steps)
    count = len(recipe.factories)
    check_choice("check", check, _CHECKS)
    if not isinstance(on_fault, Restart):
        check_choice("on_fault", on_fault, FAULT_POLICIES)
    check_choice("on_nan", on_nan, NAN_POLICIES)
    check_count("batch_size", batch_size, count)
    check_counts(num_workers=num_workers, threads_per_worker=threads_per_worker, recycle_above=recycle_above)
    check_flags(copy=copy, inline=inline, allow_pickle=allow_pickle)
    check_folder("fault_dir", fault_dir)
    is_async = batch_size is not None and batch_size < count
    seeds = seeds_for(seed, count)
    config = EngineConfig(
        factories=recipe.factories,
        name=name or recipe.name,
        autoreset=Autoreset.parse(autoreset),
        max_episode_steps=recipe.max_episode_steps,
        check=check,
        blocks=1 if copy or is_async else _VIEW_BLOCKS,
        timeouts=Timeouts(construct_timeout, reset_timeout, step_timeout, close_timeout),
        one_by_one=is_async,
        num_workers=num_workers,
        threads_per_worker=threads_per_worker,
        inline=inline,
        start_method=start_method,
        affinity=check_cpus("affinity", affinity),
        allow_pickle=allow_pickle,
        is_kernel=recipe.is_kernel,
        is_native=recipe.is_native,
        registered=recipe.registered,
        bounded_actions=bounded_actions,
        finite_rewards=on_nan == "raise",
        quick_reset_s=quick_reset_s,
        spares_failed_builds=on_fault != "raise" and not (isinstance(on_fault, Restart) and on_fault.keeps_env),
        seed=next((own for own in seeds if own is not None), None),
        recycle_above=recycle_above,
    )
    running, reason = build_engine(engine, config)
    with closing_on_error(running.close):
        return Pool(
            running,
            autoreset=config.autoreset,
            batch_size=batch_size,
            seed=seeds,
            copy=copy,
            engine_reason=reason,
            bounded_actions=bounded_actions,
            implicit_reset=implicit_reset,
            on_fault=on_fault,
            on_nan=None if check == "off" else on_nan,
            fault_files=_fault_files(running, fault_dir),
        )


def preload_if_loaded(*modules: str) -> None:
    """Have worker processes start with these modules loaded, if this process has them; for slow imports."""
    from shoal.engines.process.launch import preload_if_loaded as note

    note(*modules)


def warm_up(start_method: str | None = None) -> None:
    """Begin to load what worker processes will need, without waiting for it, so that the next pool starts sooner."""
    from shoal.engines.process.launch import warm_up as start_loading

    start_loading(start_method)


def _fault_files(engine: Engine, folder: str | os.PathLike[str] | None) -> FaultFiles | None:
    """The black box of a pool; None if the actions are objects, or if compiled or native envs have no use for one.

    It would cost those a tenth of their speed, so they have one only if a folder is given.
    """
    if engine.spec.action.has_objects or (engine.name in ("kernel", "native") and folder is None):
        return None
    return FaultFiles(BlackBox(engine.rows), engine.config, folder)


def _recipe(env: Any, engine: str, *arguments: Any) -> Recipe:
    """How to build whatever ``make_pool`` was given."""
    if isinstance(env, str) and engine != "envpool" and own_task(env) is None:
        env = latest_version(env)
    return own_recipe(env, engine, *arguments) or recipe_for(env, *arguments)


def own_recipe(
    env: Any,
    engine: str,
    num_envs: int | None,
    env_kwargs: EnvKwargs,
    wrappers: Sequence[Wrapper] | None,
    max_episode_steps: int | None,
) -> Recipe | None:
    """How to build the env of an id that is shoal's own or registered with it; None if Gymnasium's is to be built.

    Where both have an env, ``engine="auto"`` takes shoal's if it is a match: the id still means Gymnasium's own env,
    shoal's knows every keyword, and there are no wrappers. A native env also needs the same keywords in the whole pool.
    Where shoal itself has two envs, the task says which one serves.
    """
    if engine == "envpool":
        return _envpool_recipe(env, num_envs, env_kwargs, wrappers, max_episode_steps)
    task = own_task(env) if isinstance(env, str) else None
    if task is None:
        return None
    given = env_kwargs or {}
    kwargs: Any = {**task.kwargs, **given} if isinstance(given, Mapping) else [{**task.kwargs, **own} for own in given]
    is_alike = isinstance(kwargs, Mapping)
    task = task.serving(engine, kwargs if is_alike else (), is_alike=is_alike and not wrappers)
    registered = gym.registry.get(env)
    if is_shipped(env) and registered is not None and engine != ("native" if task.is_native else "kernel"):
        is_same = _is_gymnasiums_own(registered, task) and _knows(task.env, kwargs)
        can_run = is_alike if task.is_native else has_numba()
        if engine != "auto" or wrappers or not is_same or not can_run:
            return None
    limit = task.time_limit if max_episode_steps is None else max_episode_steps
    recipe = recipe_for(task.env, num_envs, kwargs, wrappers, limit)
    return replace(recipe, name=env, registered=_made_spec(registered, given, limit))


def _made_spec(registered: EnvSpec | None, given: Any, limit: int | None) -> EnvSpec | None:
    """A registration as ``gymnasium.make`` attaches it to an env: with the keywords and the limit of that call."""
    if registered is None:
        return None
    spec = deepcopy(registered)
    spec.kwargs = {**spec.kwargs, **(given if isinstance(given, Mapping) else given[0])}
    spec.max_episode_steps = limit
    return spec


def _envpool_recipe(
    env: Any,
    num_envs: int | None,
    env_kwargs: EnvKwargs,
    wrappers: Sequence[Wrapper] | None,
    max_episode_steps: int | None,
) -> Recipe:
    """How to have EnvPool run one of its own tasks, given by its id or as the class that ``kind_of`` made for it."""
    kind = kind_of(env)
    if wrappers:
        raise ArgumentError("wrappers: EnvPool's envs have no Python side that could be wrapped")
    if not isinstance(env_kwargs, Mapping | None):
        raise ArgumentError("env_kwargs: EnvPool has one set of options for all envs, so it has to be one mapping")
    kwargs = dict(env_kwargs or {})
    if max_episode_steps is not None:
        kwargs["max_episode_steps"] = max_episode_steps  # for envs that make use of it
    kind(**kwargs).describe(kind.task_id)  # a task that cannot run is an error of this call, not a fault of an env
    return recipe_for(kind, num_envs, kwargs, None, kwargs.get("max_episode_steps"))


def _is_gymnasiums_own(registered: EnvSpec, task: Task) -> bool:
    """Whether an id still means Gymnasium's own env, and not something registered in its place."""
    if registered.id != task.id:  # under an alias such as phys2d/CartPole-v1, Gymnasium's env has another generator
        return False
    own = str(registered.entry_point).startswith("gymnasium.envs.") and not registered.additional_wrappers
    options, _ = task.options()
    same = registered.max_episode_steps == task.max_episode_steps
    return own and same and all(options.get(name) == value for name, value in registered.kwargs.items())


def _knows(kind: type[KernelEnv | NativeEnv], kwargs: Any) -> bool:
    try:
        for own in [kwargs] if isinstance(kwargs, Mapping) else kwargs:
            kind(**own)
    except (TypeError, ValueError):
        return False
    return True
