"""What a pool is made with: EnvPool's keys, shoal's own, and the options of the env, checked together.

``read`` turns keyword arguments into ``Settings``: the config that users see, in EnvPool's order, and the render
options, which EnvPool does not count as part of the config.
"""

from __future__ import annotations

import difflib
import inspect
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import ArgumentError, WrongSetting, WrongType
from shoal.faces.envpool import dialect
from shoal.faces.envpool.option_types import as_declared, declared_types
from shoal.seeding import entropy
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from shoal.registry import Task

NO_LIMIT = 2**31 - 1
# What happens to envs that fail: the pool's own settings, passed on as they are.
SAFETY: dict[str, Any] = {
    "on_fault": "raise",
    "on_nan": "raise",
    "fault_dir": None,
    "construct_timeout": 60.0,
    "reset_timeout": 60.0,
    "step_timeout": 60.0,
    "close_timeout": 5.0,
}
RENDER_MODES = (None, "rgb_array", "human")
_INT32 = range(-(2**31), 2**31)
_BASE_PATH = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Rendering:
    """How a pool draws.

    Attributes:
        mode: None, ``"rgb_array"`` or ``"human"``.
        env_id: The env that ``render()`` shows unless told otherwise.
        width: Width of the pictures; None for the env's own.
        height: Height of the pictures.
        camera_id: The camera, for envs whose constructor takes one.
    """

    mode: str | None = None
    env_id: int = 0
    width: int | None = None
    height: int | None = None
    camera_id: int | None = None


@dataclass(frozen=True)
class Settings:
    """Everything that ``make`` was given, checked and completed.

    Attributes:
        config: All keys in EnvPool's order, the options of the env last.
        env_kwargs: The part of ``config`` that the env's constructor gets.
        rendering: How the pool draws.
    """

    config: dict[str, Any]
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    rendering: Rendering = field(default_factory=Rendering)


def read(task: Task, given: Mapping[str, Any]) -> Settings:
    """Check keyword arguments of ``make``.

    Raises:
        TypeError: For a key that neither shoal nor the env knows, and for a value of the wrong type.
        ArgumentError: For a value that makes no sense.
    """
    common = _defaults(task)
    render_defaults = {f"render_{name}": value for name, value in vars(Rendering()).items()}
    render_defaults["from_pixels"] = False
    options, takes_any = task.options()
    unset = {name for name, default in options.items() if default is None}
    fixed = {name: value for name, value in dialect.FIXED.items() if task.is_native and name in options}
    if task.is_native:
        given = dialect.own_options(task.env, options, given)
    given = _typed(task, given, {*common, *render_defaults})
    options = dialect.settled(task.env, options, given)
    if task.is_native:
        options = dialect.known_options(task.env, options, given)
    # Keywords that a task was registered with may be meant for the pool.
    presets = {name: value for name, value in task.kwargs.items() if name in common or name in render_defaults}
    given = {**presets, **given}
    # A keyword of the env that has the same name as one of shoal's is not an option.
    options = {name: value for name, value in options.items() if name not in common and name not in render_defaults}
    if not takes_any:
        _refuse_unknown(task.id, given, [*common, *render_defaults, *options])
    config = _checked({**common, **{name: given[name] for name in given if name in common}})
    rest = {name: value for name, value in given.items() if name not in common and name not in render_defaults}
    # None for an option that is None anyway says nothing, and an env may inherit such an option without taking it.
    rest = {
        name: _like(options.get(name), value) for name, value in rest.items() if value is not None or name not in unset
    }
    told = {name: value for name, value in rest.items() if value is not None or name not in options}
    shown = {name: value for name, value in {**options, **told}.items() if value is not inspect.Parameter.empty}
    rendering = _rendering({**render_defaults, **{k: v for k, v in given.items() if k in render_defaults}}, config)
    own = {name: value for name, value in task.kwargs.items() if name not in presets}
    return Settings({**config, **shown}, {**own, **fixed, **rest}, rendering)


def _defaults(task: Task) -> dict[str, Any]:
    limit = task.time_limit
    return {
        "num_envs": 1,
        "batch_size": 0,
        "num_threads": 0,
        "max_num_players": 1,
        "thread_affinity_offset": -1,
        "base_path": _BASE_PATH,
        "seed": 42,
        "env_seed": [],
        "gym_reset_return_info": True,
        "max_episode_steps": NO_LIMIT if limit is None else limit,
        "reward_threshold": task.threshold,
        "autoreset": "next_step",
        "engine": "auto",
        **SAFETY,
    }


def _refuse_unknown(task_id: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {', '.join(close)}?" if close else f"; it knows {', '.join(known)}"
            raise WrongType(f"{task_id} got an unexpected keyword argument {name!r}{hint}")


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    for name in ("num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset"):
        config[name] = _integer(name, config[name])
    count = config["num_envs"]
    for name, low, high in (
        ("num_envs", 1, None),
        ("batch_size", 0, count),
        ("num_threads", 0, None),
        ("max_num_players", 1, None),
        ("thread_affinity_offset", -1, None),
    ):
        if config[name] < low or (high is not None and config[name] > high):
            wanted = f"at least {low}" if high is None else f"{low} to {high} (num_envs)"
            raise WrongSetting(f"{name}: expected {wanted}, got {config[name]}")
    config["batch_size"] = config["batch_size"] or count
    config["base_path"] = _path("base_path", config["base_path"])
    config["seed"], config["env_seed"] = _seeds(config["seed"], config["env_seed"], count)
    config["gym_reset_return_info"] = bool(config["gym_reset_return_info"])
    limit = NO_LIMIT if config["max_episode_steps"] is None else config["max_episode_steps"]
    config["max_episode_steps"] = _integer("max_episode_steps", limit)
    if config["max_episode_steps"] < 0:
        raise WrongSetting(f"max_episode_steps: expected at least 1, got {limit}")
    if config["reward_threshold"] is not None:
        try:
            config["reward_threshold"] = float(config["reward_threshold"])
        except (TypeError, ValueError):
            raise WrongType(f"reward_threshold: expected a number, got {config['reward_threshold']!r}") from None
    config["autoreset"] = str(Autoreset.parse(config["autoreset"]))
    return config


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise WrongType(f"{name}: expected an int, got {value!r}") from None


def _path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise WrongType(f"{name}: expected a path, got {value!r}")
    return os.fsdecode(value)


def _seeds(seed: Any, env_seed: Any, num_envs: int) -> tuple[int, list[int]]:
    """``seed`` and ``env_seed`` as the config shows them; where both have seeds, those of ``env_seed`` count."""
    if not _is_list(env_seed):
        raise WrongType(f"env_seed: expected one seed per env, got {env_seed!r}")
    if _is_list(seed):
        if np.size(env_seed):
            raise WrongSetting("seed: a list of seeds and env_seed were both given")
        return 0, _seed_list("seed", seed, num_envs)
    # The config shows the seed that was drawn, so that a run can be repeated.
    single = entropy() >> 1 if seed is None else _seed(seed)
    return single, _seed_list("env_seed", env_seed, num_envs) if np.size(env_seed) else []


def _is_list(seeds: Any) -> bool:
    return not isinstance(seeds, str) and (isinstance(seeds, (Sequence, np.ndarray)) or np.ndim(seeds) > 0)


def _seed_list(name: str, seeds: Any, num_envs: int) -> list[int]:
    if np.ndim(seeds) != 1 or len(seeds) != num_envs:
        raise WrongSetting(f"{name}: expected {num_envs} seeds, one per env, got {seeds!r}")
    return [_seed(seed) for seed in seeds]


def _seed(seed: Any) -> int:
    value = _integer("seed", seed)
    if value not in _INT32:
        raise WrongSetting(f"seed: expected an int32, got {value}")
    return value


def _typed(task: Task, given: Mapping[str, Any], others: set[str]) -> dict[str, Any]:
    """What was given, with the options of the env, which are not among the others, in the types that it declares."""
    types = declared_types(task.env) if given.keys() - others else {}
    return {
        name: value if name in others else as_declared(f"{task.id}: {name}", types.get(name, ""), value)
        for name, value in given.items()
    }


def _like(default: Any, value: Any) -> Any:
    """A value in the type of its default.

    Where that is a float, whole numbers become floats, lest they turn the env's arithmetic to ints; where it is a bool,
    0 and 1 become bools.
    """
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if isinstance(default, bool) and is_whole and value in (0, 1):
        return bool(value)
    return float(value) if isinstance(default, float) and is_whole else value


def _rendering(options: Mapping[str, Any], config: Mapping[str, Any]) -> Rendering:
    if options["from_pixels"]:
        raise ArgumentError("from_pixels: no env of shoal observes pictures of itself; use render() instead")
    mode = options["render_mode"]
    if mode not in RENDER_MODES:
        raise ArgumentError(f"render_mode: expected one of {RENDER_MODES}, got {mode!r}")
    env_id = _integer("render_env_id", options["render_env_id"])
    if not 0 <= env_id < config["num_envs"]:
        raise ArgumentError(f"render_env_id: the pool has envs 0 to {config['num_envs'] - 1}, got {env_id}")
    sizes: dict[str, int | None] = {}
    for name in ("render_width", "render_height"):
        size = 0 if options[name] is None else _integer(name, options[name])
        if size < 0:
            raise ArgumentError(f"{name}: expected at least 1, or 0 for the env's own, got {size}")
        sizes[name.removeprefix("render_")] = size or None
    return Rendering(mode, env_id, camera_id=options["render_camera_id"], **sizes)
