"""Whether an env keeps to the conventions of DI-engine's dialect.

Each check plays with an env, whatever state it is in, and raises at the first thing that is wrong, with the env and the
field in the message. What the checks require:

    check_space_dtype     spaces of floats are float32, spaces of ints are int64
    check_reset           the first observation is in its space
    check_step            so are all others, and the rewards; the last info has the return of the episode
    check_obs_deepcopy    no observation reuses the array of the previous one
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import EnvCheckFailed
from shoal.faces.ding.env import RETURN

_DTYPES = {"f": np.dtype(np.float32), "i": np.dtype(np.int64), "u": np.dtype(np.int64)}
_EPISODES = 3
_MOST_STEPS = 100_000
_log = logging.getLogger("shoal")


def check_all(env: Any) -> None:
    """Run all checks of this module, one after another.

    Raises:
        EnvCheckFailed: Naming the env and the field.

    Example:
        >>> from shoal.faces.ding import DingEnvWrapper
        >>> check_all(DingEnvWrapper(cfg={"env_id": "CartPole-v1"}))
    """
    for check in (check_space_dtype, check_reset, check_step, check_obs_deepcopy):
        check(env)


def check_space_dtype(env: Any) -> None:
    """Check that spaces of floats are float32, and spaces of ints int64."""
    _log.info("%r: dtypes of its spaces", env)
    env.reset()
    for name in ("observation_space", "action_space", "reward_space"):
        for field, space in _leaves(getattr(env, name), name):
            dtype = getattr(space, "dtype", None)
            wanted = None if dtype is None else _DTYPES.get(np.dtype(dtype).kind)
            _require(wanted is None or dtype == wanted, env, field, f"must be {wanted}, and is {dtype}")


def check_reset(env: Any) -> None:
    """Check that the first observation is in its space."""
    _log.info("%r: reset", env)
    _check_value(env, "obs", env.reset(), env.observation_space)


def check_step(env: Any) -> None:
    """Check that observations and rewards of three episodes are in their spaces, and that each ends with its return."""
    _log.info("%r: step", env)
    env.reset()
    for _ in range(_EPISODES):
        for timestep in _episode(env):
            _check_value(env, "obs", timestep.obs, env.observation_space)
            _check_value(env, "reward", timestep.reward, env.reward_space)
        _check_return(env, timestep.info)
        env.reset()


def check_obs_deepcopy(env: Any) -> None:
    """Check that each observation of an episode is a new array."""
    _log.info("%r: observations", env)
    last = env.reset()
    for timestep in _episode(env):
        _check_new(env, "obs", last, timestep.obs)
        last = timestep.obs


def demonstrate_correct_procedure(env_fn: Callable[[dict[str, Any]], Any]) -> None:
    """Do with an env what a manager does: build it from a config, seed it, reset it, and play three episodes."""
    env = env_fn({})
    _require(getattr(env, "__dict__", {}).get("_env") is None, env, "_env", "must not be built before the first reset")
    env.seed(4)
    for _ in range(_EPISODES):
        seed = getattr(env, "_seed", None)
        _require(seed == 4, env, "_seed", f"must be what seed() was given, 4, and is {seed!r}")
        env.reset()
        *_, last = _episode(env)
        _check_return(env, last.info)
    env.close()


def _check_value(env: Any, name: str, value: Any, space: Any) -> None:
    """Check that a value is an array in its space, or is nested as the space is and consists of such arrays."""
    if isinstance(value, np.ndarray):
        _require(value.dtype == space.dtype, env, name, f"must be {space.dtype}, and is {value.dtype}")
        _require(value.shape == space.shape, env, name, f"must be of shape {space.shape}, and is {value.shape}")
        _require(bool(space.contains(value)), env, name, f"must be in {space}, and is {value}")
        return
    for key, item in _items(env, name, value):
        _check_value(env, f"{name}[{key!r}]", item, space[key])


def _check_return(env: Any, info: Mapping[str, Any]) -> None:
    _require(RETURN in info, env, "info", f"must have {RETURN!r} at the end of an episode, and has {[*info]}")


def _check_new(env: Any, name: str, last: Any, now: Any) -> None:
    """Check that two observations have the same structure, and share no array."""
    _require(type(last) is type(now), env, name, f"was {type(last).__name__}, and is {type(now).__name__}")
    if isinstance(last, np.ndarray):
        is_shared = np.shares_memory(last, now)
        _require(not is_shared, env, name, "must be a new array at each step, and is the one of the step before")
        return
    before, after = dict(_items(env, name, last)), dict(_items(env, name, now))
    _require(before.keys() == after.keys(), env, name, f"had {[*before]}, and has {[*after]}")
    for key in before:
        _check_new(env, f"{name}[{key!r}]", before[key], after[key])


def _items(env: Any, name: str, value: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a dict or list of arrays."""
    if isinstance(value, Mapping):
        return value.items()
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    _require(is_list, env, name, f"must be an array, or a dict or list of arrays, and is {value!r:.60}")
    return enumerate(value)


def _episode(env: Any) -> Iterator[Any]:
    """The timesteps of one episode of an env that has been reset, with random actions."""
    for _ in range(_MOST_STEPS):
        action = env.random_action() if hasattr(env, "random_action") else None
        timestep = env.step(env.action_space.sample() if action is None else action)
        yield timestep
        if timestep.done:
            return
    _require(False, env, "done", f"must come true at some time, and has not within {_MOST_STEPS} steps")


def _leaves(space: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The spaces that a space is made of, each with its name."""
    children = getattr(space, "spaces", None)
    if children is None:
        yield name, space
        return
    for key, child in children.items() if isinstance(children, Mapping) else enumerate(children):
        yield from _leaves(child, f"{name}[{key!r}]")


def _require(is_right: bool, env: Any, field: str, text: str) -> None:
    if not is_right:
        raise EnvCheckFailed(f"{env!r}: {field} {text}")
