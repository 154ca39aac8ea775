"""From a spec to a running pool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec

from shoal.build import make_pool
from shoal.errors import ArgumentError, EnvConstructError
from shoal.faces.envpool.config import NO_LIMIT, SAFETY
from shoal.readiness import check_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.faces.envpool.spec import EnvSpec
    from shoal.pool import Pool
    from shoal.readiness import Ids

_SEEDS = 2**32
_LIMIT = "max_episode_steps"


def open_pool(spec: EnvSpec) -> Pool:
    """A pool under EnvPool's rules: the first step is a reset, and actions may leave a continuous space."""
    config, task = spec.settings.config, spec.task
    limit = config["max_episode_steps"]
    has_limit = limit != NO_LIMIT or task.time_limit is not None
    try:
        pool = make_pool(
            task.env,
            config["num_envs"],
            engine=config["engine"],
            num_workers=config["num_threads"] or None,
            batch_size=config["batch_size"],
            autoreset=config["autoreset"],
            seed=unsigned(config["env_seed"] or config["seed"], None, config["num_envs"]),
            env_kwargs=_env_kwargs(spec),
            max_episode_steps=max(1, limit) if has_limit else None,
            affinity=_affinity(config),
            implicit_reset=True,
            bounded_actions=False,
            name=task.id,
            **{name: config[name] for name in SAFETY},
        )
    except EnvConstructError as error:
        cause = error.__cause__
        if isinstance(cause, ArgumentError):  # an option of one of shoal's own envs makes no sense
            raise type(cause)(f"{task.id}: {cause}") from error
        raise
    try:
        spec.learn(pool.spec)
    except BaseException:
        pool.close()
        raise
    return pool


def unsigned(seed: Any, env_id: Ids, num_envs: int) -> Any:
    """Seeds for all envs, or for those in ``env_id``, as generators take them, since EnvPool's may be negative."""
    if np.ndim(seed):
        return [own % _SEEDS if _is_negative(own) else own for own in seed]
    if not _is_negative(seed):
        return seed
    ids = range(num_envs) if env_id is None else check_ids(env_id, num_envs)
    return [(int(seed) + i) % _SEEDS for i in ids]


def _is_negative(seed: Any) -> bool:
    return isinstance(seed, (int, np.integer)) and bool(seed < 0)


def _env_kwargs(spec: EnvSpec) -> Any:
    """Keyword arguments for all envs, or a list with one dict per env if only one of them has a window."""
    rendering, task = spec.settings.rendering, spec.task
    kwargs = dict(spec.settings.env_kwargs)
    options, takes_any = task.options()
    if _LIMIT in options and not isinstance(task.env, RegisteredSpec):
        # The limit may be that of games that go on over several episodes.
        kwargs[_LIMIT] = spec.settings.config[_LIMIT]
    # EnvPool's own envs have their drawing options under EnvPool's names.
    prefix = "render_" if "render_camera_id" in options else ""
    # Where there are no cameras to choose from, there is one view, whichever is asked for.
    if f"{prefix}camera_id" in options or takes_any:
        kwargs.update({} if rendering.camera_id is None else {f"{prefix}camera_id": rendering.camera_id})
    elif isinstance(rendering.camera_id, str):
        raise ArgumentError(f"render_camera_id: {task.id} has no camera called {rendering.camera_id!r}")
    if rendering.mode is None:
        return kwargs
    if task.is_native:
        # A native env draws in any size, which is better than resizing its pictures.
        sizes = {f"{prefix}width": rendering.width, f"{prefix}height": rendering.height}
        kwargs.update({name: size for name, size in sizes.items() if size is not None and name in options})
    can_draw = (
        task.is_compiled
        or task.is_native
        or isinstance(task.env, RegisteredSpec)
        or takes_any
        or "render_mode" in options
    )
    if not can_draw:
        raise ArgumentError(f"render_mode: {task.id} takes none")
    if rendering.mode == "rgb_array" or spec.needs_window:
        return {**kwargs, "render_mode": "rgb_array"}
    drawing = {**kwargs, "render_mode": rendering.mode}
    return [drawing if i == rendering.env_id else kwargs for i in range(spec.settings.config["num_envs"])]


def _affinity(config: Mapping[str, Any]) -> list[int] | None:
    """The CPUs for the workers, in turn, starting with the one at the offset."""
    offset = config["thread_affinity_offset"]
    if offset < 0 or not hasattr(os, "sched_getaffinity"):
        return None
    cpus = sorted(os.sched_getaffinity(0))
    return [cpus[(offset + t) % len(cpus)] for t in range(config["num_threads"] or len(cpus))]
