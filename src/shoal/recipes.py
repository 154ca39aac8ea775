"""From whatever a user gives as an env to factories, one per env, that build it wherever it will run.

That may be a worker process, which has not run the user's program. So a factory brings along what the program has
registered with Gymnasium, for envs that are made by id.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as RegisteredSpec

from shoal.adapters import adapt
from shoal.arguments import check_count
from shoal.envs.box2d import check_installed
from shoal.envs.envpool.names import hint as envpool_hint
from shoal.envs.gymnasiums import latest_version, register_with_gymnasium
from shoal.errors import ArgumentError, ResourceError, ShippingError
from shoal.kernel import is_kind
from shoal.machine import available_memory_bytes
from shoal.native import is_native

# More envs than this are counted against the memory: the least that each takes are its places in a few lists.
_SURELY_FIT = 1_000_000
_LEAST_BYTES = 64

Wrapper = Callable[[Any], Any]
EnvKwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Registrations:
    """What the program has registered with Gymnasium, for whichever process this object is sent to.

    The registrations are packed when they are first sent. Any that cannot be sent or unpacked are left out, since few
    pools make all the envs that their program knows.
    """

    def __init__(self, packed: tuple[Sequence[bytes], Mapping[str, bytes]] | None = None) -> None:
        self._packed = packed
        self._is_installed = packed is None

    def __reduce__(self) -> Any:
        if self._packed is None:
            self._packed = _packed_registry()
        return Registrations, (self._packed,)

    def install(self) -> None:
        """Register everything in this process, unless it comes from here."""
        if self._packed is None or self._is_installed:
            return
        from shoal.engines.process.shipping import unpickle_value

        self._is_installed = True
        # A library that registers its envs on import will find them registered already.
        warnings.filterwarnings("ignore", ".*Overriding environment", UserWarning)
        specs, parts = self._packed
        for data in specs:
            with suppress(Exception):
                gym.registry.update((spec.id, spec) for spec in unpickle_value(data))
        for name, data in parts.items():
            with suppress(Exception):
                setattr(sys.modules["__main__"], name, unpickle_value(data))


def _packed_registry() -> tuple[list[bytes], dict[str, bytes]]:
    """All registrations, and the parts of the user's script that they name.

    A worker does not run the script, so it would look in vain for what ``"__main__:MyEnv"`` names.
    """
    from shoal.engines.process.shipping import pickle_value

    def pack(values: Iterable[Any]) -> Iterable[bytes]:
        for value in values:
            with suppress(ShippingError):
                yield pickle_value(value, "registration")

    specs = list(gym.registry.values())
    # Those with a text as entry point are many, and can almost always be packed together.
    texts = [spec for spec in specs if isinstance(spec.entry_point, str)]
    packed = list(pack([texts])) or list(pack([spec] for spec in texts))
    packed += pack([spec] for spec in specs if not isinstance(spec.entry_point, str))
    homes = [home for spec in specs for home in (spec.entry_point, *(w.entry_point for w in spec.additional_wrappers))]
    names = {home.partition(":")[2] for home in homes if isinstance(home, str) and home.startswith("__main__:")}
    found = {name: getattr(sys.modules["__main__"], name, None) for name in sorted(names)}
    return packed, {name: data for name, value in found.items() if value is not None for data in pack([value])}


@dataclass(frozen=True)
class MakeRegistered:
    """Builds an env from its registration, even if its id has another one by now."""

    spec: RegisteredSpec
    kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...]
    max_episode_steps: int | None
    registrations: Registrations = field(default_factory=Registrations, repr=False, compare=False)

    def __call__(self) -> Any:
        """Build the env."""
        self.registrations.install()
        # Gymnasium would check the first results itself, and raise its own errors before a slot has seen them.
        kwargs = {"disable_env_checker": True, **self.kwargs}
        return _wrap(gym.make(self.spec, max_episode_steps=self.max_episode_steps, **kwargs), self.wrappers)


@dataclass(frozen=True)
class MakeCallable:
    """Builds an env by calling what the user gave."""

    function: Callable[..., Any]
    kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...]
    registrations: Registrations = field(default_factory=Registrations, repr=False, compare=False)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """What the user gave, so that a search for what cannot be pickled names things as the user would."""
        return self.function

    def __call__(self) -> Any:
        """Build the env."""
        self.registrations.install()
        return _wrap(self.function(**self.kwargs), self.wrappers)


@dataclass(frozen=True)
class Recipe:
    """What to build.

    Attributes:
        factories: One per env.
        name: What to call the env in messages.
        max_episode_steps: A time limit that the pool has to enforce, because the factories do not.
        is_kernel: Whether the factories make kinds of kernel envs.
        is_native: Whether they make kinds of envs that a native simulator runs.
        registered: Gymnasium's registration of the env, if the factories do not know it.
    """

    factories: Sequence[Callable[[], Any]] = field(repr=False)
    name: str
    max_episode_steps: int | None
    is_kernel: bool = False
    is_native: bool = False
    registered: Any = None


def recipe_for(
    env: Any,
    num_envs: int | None = None,
    env_kwargs: EnvKwargs = None,
    wrappers: Sequence[Wrapper] | None = None,
    max_episode_steps: int | None = None,
) -> Recipe:
    """How to build the envs of a pool.

    Args:
        env: A registered id, a Gymnasium ``EnvSpec``, a callable (a class, a function), or a list of callables.
        num_envs: How many; for a list, its length.
        env_kwargs: Keyword arguments for every env, or a list with one mapping per env.
        wrappers: Applied to each env, innermost first.
        max_episode_steps: A time limit in place of the registered one.
    """
    check_count("max_episode_steps", max_episode_steps)
    wrap = _wrappers(wrappers)
    sources = _sources(env, num_envs)
    kwargs = _kwargs_per_env(env_kwargs, len(sources))
    registrations = Registrations()

    def factory(source: Any, own: dict[str, Any]) -> Callable[[], Any]:
        if isinstance(source, RegisteredSpec):
            return MakeRegistered(source, own, wrap, max_episode_steps, registrations)
        return MakeCallable(source, own, wrap, registrations)

    if isinstance(env, (list, tuple)) or not (env_kwargs is None or isinstance(env_kwargs, Mapping)):
        factories = [factory(source, own) for source, own in zip(sources, kwargs, strict=True)]
    else:
        # One for all: with tens of thousands of envs, making equal factories takes longer than compiling the env.
        factories = [factory(sources[0], kwargs[0])] * len(sources)
    first = sources[0]
    name = first.id if isinstance(first, RegisteredSpec) else _name_of(first)
    all_kinds, all_native = (all(map(is_one, sources)) for is_one in (is_kind, is_native))
    if all(isinstance(source, RegisteredSpec) for source in sources):
        limit = None  # a registered env enforces the limit itself; for anything else the pool does
    elif max_episode_steps is None and (all_kinds or all_native):
        limit = first.max_episode_steps
    else:
        limit = max_episode_steps
    return Recipe(factories, name, limit, is_kernel=all_kinds and not wrap, is_native=all_native and not wrap)


def _wrappers(wrappers: Any) -> tuple[Wrapper, ...]:
    is_list = isinstance(wrappers, Iterable) and not callable(wrappers)
    given = tuple(wrappers) if is_list else ()
    if wrappers is not None and not (is_list and all(map(callable, given))):
        raise ArgumentError(f"wrappers: expected a list of callables, got {wrappers!r}")
    return given


def _name_of(source: Any) -> str:
    while isinstance(source, partial):
        source = source.func
    return str(getattr(source, "__name__", type(source).__name__))


def _sources(env: Any, num_envs: int | None) -> list[Any]:
    if isinstance(env, (list, tuple)):
        if not env:
            raise ArgumentError("env: the list of factories is empty")
        if num_envs not in (None, len(env)):
            raise ArgumentError(f"num_envs: {num_envs} does not fit a list of {len(env)} factories")
        return [_source(item) for item in env]
    if num_envs is None:
        return [_source(env)]
    check_count("num_envs", num_envs)
    if num_envs > _SURELY_FIT and num_envs * _LEAST_BYTES > (available := available_memory_bytes()):
        raise ResourceError(f"num_envs: {num_envs:,} envs do not fit into the {available:,} bytes that are available")
    return [_source(env)] * num_envs


def _source(env: Any) -> Any:
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        register_with_gymnasium(name)
        try:
            if module:
                importlib.import_module(module)
            env = gym.spec(latest_version(name))
        except gym.error.Error as error:
            raise ArgumentError(f"env: {error}{envpool_hint(name)}") from error
        except ModuleNotFoundError as error:
            raise ArgumentError(f"env: {env!r} names a module that cannot be imported ({error})") from error
    if isinstance(env, RegisteredSpec):
        check_installed(env)
        return env
    if callable(env):
        return env
    hint = "; pass a class or a function that makes the env, not the env itself" if hasattr(env, "step") else ""
    raise ArgumentError(f"env: expected an id, an EnvSpec, a callable or a list of callables, got {env!r}{hint}")


def _kwargs_per_env(env_kwargs: EnvKwargs, num_envs: int) -> list[dict[str, Any]]:
    if env_kwargs is None or isinstance(env_kwargs, Mapping):
        return [dict(env_kwargs or {})] * num_envs
    if not isinstance(env_kwargs, Sequence) or not all(isinstance(own, Mapping) for own in env_kwargs):
        raise ArgumentError(f"env_kwargs: expected a mapping, or a list with one per env, got {env_kwargs!r}")
    if len(env_kwargs) != num_envs:
        raise ArgumentError(f"env_kwargs: expected {num_envs} mappings, one per env, got {len(env_kwargs)}")
    return [dict(own) for own in env_kwargs]


def _wrap(env: Any, wrappers: tuple[Wrapper, ...]) -> Any:
    if wrappers:
        env = adapt(env)  # wrappers are Gymnasium's, so they need a Gymnasium env
    for wrapper in wrappers:
        env = wrapper(env)
    return env
