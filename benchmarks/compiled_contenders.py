"""The contenders and loads for compiled envs; importing this adds them to the contenders and loads of all runs.

All contenders do the same work: the same number of envs, one random action per env and call, drawn in advance and of
the type that the library works with, the next episode begun by the library, and results as numpy arrays (with gymnax,
only the observations).
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from contenders import CONTENDERS, GYMNASIUM, AsyncSession, Contender
from loads import LOADS, EnvFn, Load

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

SIZES = (1, 8, 64, 1024, 65_536)
GYMNAX_SIZE = 1024
NUM_ACTION_BATCHES = 16


class CompiledGroup(enum.Enum):
    """Loads that the same contenders can take."""

    CARTPOLE = "cartpole"
    CARTPOLE_GYMNAX = "cartpole of gymnax's size"
    PENDULUM = "pendulum"


@dataclass(frozen=True, slots=True)
class CompiledLoad(Load):
    """Envs by their registered id: there is no Python env to build."""

    env_id: str = ""

    def env_fns(self, turns_per_us: float) -> list[EnvFn]:
        return []


def _nothing(index: int, turns_per_us: float) -> EnvFn:
    raise NotImplementedError


def _load(env_id: str, num_envs: int, group: CompiledGroup) -> CompiledLoad:
    name = env_id.partition("-")[0]
    title = f"{env_id}, {num_envs:,} env{'s' if num_envs > 1 else ''}"
    return CompiledLoad(f"compiled-{name.lower()}-{num_envs}", title, group, num_envs, _nothing, env_id=env_id)


def _cartpole_group(num_envs: int) -> CompiledGroup:
    return CompiledGroup.CARTPOLE_GYMNAX if num_envs == GYMNAX_SIZE else CompiledGroup.CARTPOLE


COMPILED_LOADS: dict[str, CompiledLoad] = {
    load.key: load
    for load in (
        *(_load("CartPole-v1", size, _cartpole_group(size)) for size in SIZES),
        *(_load("Pendulum-v1", size, CompiledGroup.PENDULUM) for size in SIZES),
    )
}


def _actions(load: CompiledLoad, integer: type[np.signedinteger[Any]]) -> list[npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    if load.group is CompiledGroup.PENDULUM:
        return list(rng.uniform(-2, 2, (NUM_ACTION_BATCHES, load.num_envs, 1)).astype(np.float32))
    return list(rng.integers(0, 2, (NUM_ACTION_BATCHES, load.num_envs)).astype(integer))


def _session(load: CompiledLoad, envs: Any, integer: type[np.signedinteger[Any]] = np.int64) -> AsyncSession:
    envs.reset()
    return _stepping(load, envs.step, _actions(load, integer), envs.close)


def _stepping(
    load: CompiledLoad, step: Callable[[Any], object], actions: list[npt.NDArray[Any]], close: Callable[[], object]
) -> AsyncSession:
    """All envs are always ready here: an exchange is one step of each."""
    batches, num_envs = itertools.cycle(actions), load.num_envs

    def exchange() -> int:
        step(next(batches))
        return num_envs

    return AsyncSession(exchange, close)


def shoal_envpool_face(load: CompiledLoad, fns: list[EnvFn], num_threads: int) -> AsyncSession:
    import shoal

    return _session(load, shoal.make_gymnasium(load.env_id, num_envs=load.num_envs, num_threads=num_threads))


def shoal_vec(load: CompiledLoad, fns: list[EnvFn]) -> AsyncSession:
    import shoal

    return _session(load, shoal.make_vec(load.env_id, load.num_envs, engine="kernel"))


def envpool(load: CompiledLoad, fns: list[EnvFn], num_threads: int) -> AsyncSession:
    import envpool

    envs = envpool.make_gymnasium(load.env_id, num_envs=load.num_envs, num_threads=num_threads)
    return _session(load, envs, np.int32)


def gymnasium_numpy(load: CompiledLoad, fns: list[EnvFn]) -> AsyncSession:
    import gymnasium

    return _session(load, gymnasium.make_vec(load.env_id, load.num_envs, vectorization_mode="vector_entry_point"))


def gymnax_vmap(load: CompiledLoad, fns: list[EnvFn], *, keys_inside: bool) -> AsyncSession:
    """gymnax leaves random keys to the caller, who may split them in separate calls or in the compiled step."""
    import gymnax
    import jax

    jax.config.update("jax_platforms", "cpu")
    env, params = gymnax.make(load.env_id)
    step_all = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))

    def advance(key: Any, state: Any, action: Any) -> Any:
        key, used = jax.random.split(key)
        # The rest are rewards and flags, with one more flag since gymnax 1.0.
        obs, state, *rest, _ = step_all(jax.random.split(used, load.num_envs), state, action, params)
        return key, state, obs, rest

    advance = jax.jit(advance) if keys_inside else advance
    key = jax.random.key(0)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, load.num_envs), params)

    def step(action: npt.NDArray[Any]) -> tuple[Any, Any]:
        nonlocal key, state
        key, state, obs, rest = advance(key, state, action)
        return np.asarray(obs), rest

    return _stepping(load, step, _actions(load, np.int32), lambda: None)


SHOAL_THREADS = ("shoal-1", "shoal-2")
ENVPOOL_THREADS = ("envpool-1", "envpool-2")
NUMPY_VECTOR = ("gymnasium-numpy",)
# The form in which it is used from Python; with the keys split inside the jit, which is shown too, it is twice as fast.
GYMNAX = ("gymnax",)

_EVERY = frozenset(CompiledGroup)
_CARTPOLES = frozenset({CompiledGroup.CARTPOLE, CompiledGroup.CARTPOLE_GYMNAX})
_GYMNAX_ONLY = frozenset({CompiledGroup.CARTPOLE_GYMNAX})

COMPILED_CONTENDERS: dict[str, Contender] = {
    contender.key: contender
    for contender in (
        Contender("envpool-1", "EnvPool, 1 thread", "envpool", _EVERY, partial(envpool, num_threads=1)),
        Contender("envpool-2", "EnvPool, 2 threads", "envpool", _EVERY, partial(envpool, num_threads=2)),
        Contender("gymnasium-numpy", "gymnasium numpy vector", GYMNASIUM, _CARTPOLES, gymnasium_numpy),
        Contender("gymnax", "gymnax, jit + vmap", "gymnax", _GYMNAX_ONLY, partial(gymnax_vmap, keys_inside=False)),
        Contender(
            "gymnax-keys-inside",
            "gymnax, keys in the jit",
            "gymnax",
            _GYMNAX_ONLY,
            partial(gymnax_vmap, keys_inside=True),
        ),
        Contender("shoal-1", "shoal, 1 thread", "shoal", _EVERY, partial(shoal_envpool_face, num_threads=1)),
        Contender("shoal-2", "shoal, 2 threads", "shoal", _EVERY, partial(shoal_envpool_face, num_threads=2)),
        Contender(
            "shoal-default", "shoal, default threads", "shoal", _EVERY, partial(shoal_envpool_face, num_threads=0)
        ),
        Contender("shoal-vec", "shoal make_vec", "shoal", _EVERY, shoal_vec),
    )
}

CONTENDERS.update(COMPILED_CONTENDERS)
LOADS.update(COMPILED_LOADS)
