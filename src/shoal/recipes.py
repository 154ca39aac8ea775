"""From what a user calls an env to factories, one per env, that build it wherever it will run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as RegisteredSpec

from shoal.adapters import adapt
from shoal.errors import ArgumentError
from shoal.kernel import is_kind

Wrapper = Callable[[Any], Any]
EnvKwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True)
class MakeRegistered:
    """Builds an env from its registration.

    The registration itself travels, not its name: a worker process need not know what the caller has registered.
    """

    spec: RegisteredSpec
    kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...]
    max_episode_steps: int | None

    def __call__(self) -> Any:
        """Build it."""
        return _wrap(gym.make(self.spec, max_episode_steps=self.max_episode_steps, **self.kwargs), self.wrappers)


@dataclass(frozen=True)
class MakeCallable:
    """Builds an env by calling what the user gave."""

    function: Callable[..., Any]
    kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...]

    def __call__(self) -> Any:
        """Build it."""
        return _wrap(self.function(**self.kwargs), self.wrappers)


@dataclass(frozen=True)
class Recipe:
    """What to build.

    Attributes:
        factories: One per env.
        name: What to call the env in messages.
        max_episode_steps: A time limit that the pool has to keep, because the factories do not.
        is_kernel: Whether the factories make kinds of kernel envs.
        registered: Gymnasium's registration of the env, when the factories do not know it.
    """

    factories: Sequence[Callable[[], Any]] = field(repr=False)
    name: str
    max_episode_steps: int | None
    is_kernel: bool = False
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
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ArgumentError(f"max_episode_steps: expected at least 1, got {max_episode_steps}")
    sources = _sources(env, num_envs)
    kwargs = _kwargs_per_env(env_kwargs, len(sources))
    wrap = tuple(wrappers or ())

    def factory(source: Any, own: dict[str, Any]) -> Callable[[], Any]:
        if isinstance(source, RegisteredSpec):
            return MakeRegistered(source, own, wrap, max_episode_steps)
        return MakeCallable(source, own, wrap)

    if isinstance(env, (list, tuple)) or not (env_kwargs is None or isinstance(env_kwargs, Mapping)):
        factories = [factory(source, own) for source, own in zip(sources, kwargs, strict=True)]
    else:
        # One for all: with tens of thousands of envs, making equal factories takes longer than compiling the env.
        factories = [factory(sources[0], kwargs[0])] * len(sources)
    first = sources[0]
    name = first.id if isinstance(first, RegisteredSpec) else getattr(first, "__name__", type(first).__name__)
    all_kinds = all(is_kind(source) for source in sources)
    if all(isinstance(source, RegisteredSpec) for source in sources):
        limit = None  # a registered env keeps the limit by itself; for anything else the pool does
    elif max_episode_steps is None and all_kinds:
        limit = first.max_episode_steps
    else:
        limit = max_episode_steps
    return Recipe(factories, name, limit, is_kernel=all_kinds and not wrap)


def _sources(env: Any, num_envs: int | None) -> list[Any]:
    if isinstance(env, (list, tuple)):
        if not env:
            raise ArgumentError("env: the list of factories is empty")
        if num_envs not in (None, len(env)):
            raise ArgumentError(f"num_envs: {num_envs} does not fit a list of {len(env)} factories")
        return [_source(item) for item in env]
    if num_envs is None:
        return [_source(env)]
    if isinstance(num_envs, bool) or not hasattr(num_envs, "__index__") or num_envs < 1:
        raise ArgumentError(f"num_envs: expected an int of at least 1, got {num_envs!r}")
    return [_source(env)] * num_envs


def _source(env: Any) -> Any:
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        try:
            if module:
                importlib.import_module(module)
            return gym.spec(name)
        except gym.error.Error as error:
            raise ArgumentError(f"env: {error}") from error
        except ModuleNotFoundError as error:
            raise ArgumentError(f"env: {env!r} names a module that cannot be imported ({error})") from error
    if isinstance(env, RegisteredSpec) or callable(env):
        return env
    hint = "; pass a class or a function that makes the env, not the env itself" if hasattr(env, "step") else ""
    raise ArgumentError(f"env: expected an id, an EnvSpec, a callable or a list of callables, got {env!r}{hint}")


def _kwargs_per_env(env_kwargs: EnvKwargs, num_envs: int) -> list[dict[str, Any]]:
    if env_kwargs is None or isinstance(env_kwargs, Mapping):
        return [dict(env_kwargs or {}) for _ in range(num_envs)]
    if len(env_kwargs) != num_envs:
        raise ArgumentError(f"env_kwargs: expected {num_envs} mappings, one per env, got {len(env_kwargs)}")
    return [dict(own) for own in env_kwargs]


def _wrap(env: Any, wrappers: tuple[Wrapper, ...]) -> Any:
    if wrappers:
        env = adapt(env)  # wrappers are Gymnasium's, so they need an env that is
    for wrapper in wrappers:
        env = wrapper(env)
    return env
