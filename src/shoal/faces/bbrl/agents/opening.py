"""From what an env agent was given to a running pool.

    Named         an id, a registration or a KernelEnv: the pool makes the envs, on any engine, compiled ones included
    Made          a function that makes an env
    Nothing       no envs at all

For the serial engine, the function is called here, once per env and in order; for the other engines it is called where
the envs will run, and once here, for an env to inspect. The inspection asks whether the env has an ``Autoreset``
wrapper and whether the first observation matches the observation space. The pool is opened by the first reset, because
that observation needs the seed.

``Autoreset`` stays where it is. It acts when an env is stepped after the end of an episode, and the pool never does
that: its boundary rule resets the env, and the wrapper with it.

A copy of a source in this process has copies of the envs that are here. Envs that cannot be copied or are elsewhere are
made anew, and so are all envs of a source that was pickled.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as RegisteredSpec

from shoal.adapters import adapt
from shoal.build import make_pool, own_recipe
from shoal.engines.kernel.installed import has_numba
from shoal.errors import StateError
from shoal.faces.bbrl.agents.frames import seen_space
from shoal.faces.bbrl.agents.making import has_autoreset, make_env
from shoal.faces.bbrl.agents.shown import MakeShown, Shown, check_autoreset
from shoal.kernel import is_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium import Space

    from shoal.pool import Pool
    from shoal.slot import Autoreset

_MAKE_ENV = inspect.signature(make_env)


class Source(Protocol):
    """Where the envs of an agent come from.

    Attributes:
        autoreset: Whether the envs are reset when an episode has ended.
        is_here: Whether the envs are in this thread.
    """

    autoreset: bool
    is_here: bool

    def spaces(self) -> tuple[Space[Any] | None, Space[Any] | None]:
        """The observation and action space that the env declares, if there is one."""

    def at_hand(self) -> Source:
        """A source of the same envs in this thread, if nobody has said where they are to run."""

    def envs(self) -> list[Any]:
        """The envs themselves, if they are in this thread."""

    def made(self) -> list[Any]:
        """The envs in this thread that exist already."""

    def take(self, envs: list[Any]) -> None:
        """Use these envs, which another source has made in another process."""

    def open(self, mode: Autoreset, seeds: Sequence[int]) -> Pool:
        """A pool of the envs, which is about to be reset with these seeds."""

    def reopen(self, pool: Pool, mode: Autoreset, action: Any) -> Pool:
        """A pool for actions like this one, with the envs of another pool that has just been reset.

        Raises:
            StateError: If the envs are where no other pool can take them over.
        """

    def close(self, pool: Pool | None) -> None:
        """Close the envs, or the pool that has taken them over."""


def source_of(
    make: Any, num_envs: int, kwargs: Mapping[str, Any], autoreset: bool | None, options: dict[str, Any]
) -> Source:
    """The source for what an agent was given; ``options`` are those of ``make_pool``.

    With None as the engine, envs are compiled where only speed depends on it, and serial otherwise.
    """
    if make is None:
        return Nothing()
    engine = options["engine"]
    serial = {**options, "engine": engine or "serial"}
    if engine in ("kernel", "auto", None) and (found := _id_in(make, kwargs)):
        name, wish, own, more = found
        compiled = {**options, **more, "engine": engine or "auto"}
        wish = wish if autoreset is None else autoreset
        if engine is not None:
            return Named(name, num_envs, own, wish, compiled)
        if _is_twin(name, own, compiled):
            return Named(name, num_envs, own, wish, compiled, partial(Made, make, num_envs, kwargs, autoreset, serial))
    if isinstance(make, (str, RegisteredSpec)) or is_kind(make):
        if engine is None and _is_compiled(make, kwargs, options):
            serial["engine"] = "auto"
        return Named(make, num_envs, kwargs, bool(autoreset), serial)
    return Made(make, num_envs, kwargs, autoreset, serial)


def _id_in(make: Any, kwargs: Mapping[str, Any]) -> tuple[Any, bool, dict[str, Any], dict[str, Any]] | None:
    """The id that ``make_env`` is called with; only an id can lead to a compiled env.

    Returns:
        The id, whether to reset, keywords of the env and options of the pool; None if ``make`` is not ``make_env``, or
        wraps the env.
    """
    function, args, keywords = (make.func, make.args, make.keywords) if isinstance(make, partial) else (make, (), {})
    if function is not make_env:
        return None
    bound = _MAKE_ENV.bind(*args, **{**keywords, **kwargs})
    bound.apply_defaults()
    given = bound.arguments
    if given["wrappers"]:
        return None
    own = dict(given["kwargs"])
    limit = own.pop("max_episode_steps", None)
    return given["env_name"], given["autoreset"], own, {} if limit is None else {"max_episode_steps": limit}


def _is_twin(name: Any, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether the compiled env of an id can replace Gymnasium's for a caller who only needs rows."""
    if not isinstance(name, str) or name not in gym.registry:
        return False
    if kwargs.get("render_mode") is not None:  # whoever wants pictures wants the envs themselves
        return False
    limit = options.get("max_episode_steps")
    is_limit = limit is None or limit > 0  # other values, such as -1 for none, are Gymnasium's to judge
    return is_limit and _is_compiled(name, kwargs, options)


def _is_compiled(env: Any, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether there is a compiled env, and the compiler it needs."""
    if isinstance(env, str):
        recipe = own_recipe(env, "auto", 1, kwargs, options.get("wrappers"), options.get("max_episode_steps"))
        return recipe is not None and recipe.is_kernel and has_numba()
    return is_kind(env) and not options.get("wrappers") and has_numba()


class Nothing:
    """No envs: what an agent has that was made without a function."""

    autoreset = False
    is_here = True

    def spaces(self) -> tuple[None, None]:
        """None, and none."""
        return None, None

    def at_hand(self) -> Source:
        """This source."""
        return self

    def envs(self) -> list[Any]:
        """None."""
        return []

    made = envs

    def take(self, envs: list[Any]) -> None:
        """Refused: nobody has said how many there are to be."""
        raise _no_envs()

    def open(self, mode: Autoreset, seeds: Sequence[int]) -> Pool:
        """Refused: a pool has envs."""
        raise _no_envs()

    def reopen(self, pool: Pool, mode: Autoreset, action: Any) -> Pool:
        """Refused: a pool has envs."""
        raise _no_envs()

    def close(self, pool: Pool | None) -> None:
        """Do nothing."""


def _no_envs() -> StateError:
    return StateError("this agent was made without a function that makes envs, so there is nothing to reset or step")


class Named:
    """Envs that the pool can make on its own; ``plain`` makes a source of the same envs in this thread."""

    is_here = False

    def __init__(
        self,
        env: Any,
        num_envs: int,
        kwargs: Mapping[str, Any],
        autoreset: bool,
        options: dict[str, Any],
        plain: Callable[[], Source] | None = None,
    ) -> None:
        self._env, self._num_envs, self._kwargs, self._options = env, num_envs, kwargs, options
        self.autoreset = autoreset
        self._plain = plain
        self._spaces: tuple[Any, Any] | None = None

    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """The observation and action space that the env declares."""
        if self._spaces is None:
            with make_pool(self._env, 1, env_kwargs=self._kwargs, **{**self._options, "engine": "serial"}) as pool:
                self._spaces = (pool.spec.observation.space, pool.spec.action.space)
        return self._spaces

    def at_hand(self) -> Source:
        """The same envs as objects in this thread, if nobody has said where they are to run."""
        return self if self._plain is None else self._plain()

    def envs(self) -> list[Any]:
        """Refused: the envs belong to the pool."""
        raise StateError(
            "envs: the pool makes them with the first call with t=0; from then on there is a view of each. "
            'engine="serial" has them here'
        )

    def made(self) -> list[Any]:
        """None: the envs belong to the pool."""
        return []

    def take(self, envs: list[Any]) -> None:
        """Refused: the envs belong to the pool."""
        raise StateError("these envs are the pool's")

    def open(self, mode: Autoreset, seeds: Sequence[int]) -> Pool:
        """A pool of the envs."""
        return make_pool(self._env, self._num_envs, env_kwargs=self._kwargs, autoreset=mode, **self._options)

    def reopen(self, pool: Pool, mode: Autoreset, action: Any) -> Pool:
        """Refused: the envs belong to the pool."""
        raise StateError("these envs are the pool's")

    def close(self, pool: Pool | None) -> None:
        """Close the pool, to which the envs belong."""
        if pool is not None:
            pool.close()


class Made:
    """Envs that a function makes."""

    def __init__(
        self,
        make: Callable[..., Any],
        num_envs: int,
        kwargs: Mapping[str, Any],
        autoreset: bool | None,
        options: dict[str, Any],
    ) -> None:
        self._make, self._num_envs, self._kwargs, self._options = make, num_envs, dict(kwargs), options
        self.is_here = options["engine"] == "serial"
        self._wish = autoreset
        self._built: list[Any] = []
        self._shown: list[Shown] = []
        self._is_closed = False
        self._build()
        self.autoreset = has_autoreset(self._built[0]) if autoreset is None else autoreset
        for k, env in enumerate(self._built):
            check_autoreset(env, None if autoreset is not None else self.autoreset, f"env {k}")

    def _build(self) -> list[Any]:
        if not self._built:
            count = self._num_envs if self.is_here else 1
            self._built = [self._make(**self._kwargs) for _ in range(count)]
            first = adapt(self._built[0])
            self._spaces = (first.observation_space, first.action_space)
        return self._built

    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """The observation and action space that the env declares."""
        return self._spaces

    def at_hand(self) -> Source:
        """This source: where the envs run has been decided."""
        return self

    def envs(self) -> list[Any]:
        """The envs themselves."""
        if not self.is_here:
            raise StateError("envs: they begin elsewhere with the first call with t=0; then there is a view of each")
        return self._build()

    def made(self) -> list[Any]:
        """The envs in this thread that exist already."""
        return self._built if self.is_here else []

    def take(self, envs: list[Any]) -> None:
        """Use these envs, which another source has made in another process."""
        self._built = envs

    def open(self, mode: Autoreset, seeds: Sequence[int]) -> Pool:
        """A pool of the envs; the first env is reset with its seed, and keeps the result for the pool."""
        built = self._build()
        self._is_closed = False
        first = adapt(built[0])
        result = first.reset(seed=seeds[0])
        obs = result[0] if isinstance(result, tuple) and result else result
        space = seen_space(obs, self._spaces[0], "env_obs")
        expected = None if self._wish is not None else self.autoreset
        if self.is_here:
            self._shown = [Shown(env, space) for env in built]
            self._shown[0].early = (seeds[0], result)
            return self._pool_of_shown(mode)
        first.close()
        self._built = []
        factories = [MakeShown(self._make, self._kwargs, space, expected)] * self._num_envs
        return make_pool(factories, autoreset=mode, **{"name": _name_of(first), **self._options})

    def _pool_of_shown(self, mode: Autoreset) -> Pool:
        factories = [partial(_itself, shown) for shown in self._shown]
        return make_pool(factories, autoreset=mode, **{"name": _name_of(self._built[0]), **self._options})

    def reopen(self, pool: Pool, mode: Autoreset, action: Any) -> Pool:
        """A pool for actions like this one, with the envs of another pool that has just been reset.

        The action space that an env declares may be wrong too, which only shows once there is an action.
        """
        if not self.is_here:
            raise StateError("these envs are elsewhere")
        space = seen_space(_row(action, 0), None, "action")
        first = pool.latest().obs
        others = [Shown(shown.env, shown.observation_space, space) for shown in self._shown]
        for k, (old, new) in enumerate(zip(self._shown, others, strict=True)):
            old.is_handed_over = True
            new.early = (None, (_row(first, k), {}))
        pool.close()
        self._shown = others
        made = self._pool_of_shown(mode)
        made.reset()
        return made

    def close(self, pool: Pool | None) -> None:
        """Close the envs, or the pool that has taken them over."""
        if pool is not None:
            pool.close()
        else:
            for env in self._built:
                env.close()
        self._is_closed = True

    def __getstate__(self) -> dict[str, Any]:
        # Envs are not pickled with the agent; whoever gets it makes new ones, or is given these.
        return {**self.__dict__, "_built": [], "_shown": [], "_is_closed": False}

    def __deepcopy__(self, memo: dict[int, Any]) -> Made:
        memo[id(self)] = made = type(self).__new__(type(self))
        vars(made).update(deepcopy(self.__getstate__(), memo))
        if not self._is_closed:
            # Not every env can be copied; the copy makes its own then, when it needs them.
            with suppress(Exception):
                made._built = _all_copied(self._built, memo)
        return made


def _all_copied(things: list[Any], memo: dict[int, Any]) -> list[Any]:
    """Copies of things; ``memo`` learns of them only if all could be copied, and so of none that is half done."""
    own = dict(memo)
    copies = deepcopy(things, own)
    originals = own.pop(id(own), [])  # kept alive there, so that their ids stay theirs
    memo.update(own)
    memo.setdefault(id(memo), []).extend(originals)
    return copies


def _itself(shown: Shown) -> Shown:
    return shown


def _row(batch: Any, k: int) -> Any:
    return {key: _row(part, k) for key, part in batch.items()} if isinstance(batch, dict) else batch[k]


def _name_of(env: Any) -> str:
    registered = getattr(env, "spec", None)
    return str(getattr(registered, "id", None) or type(getattr(env, "unwrapped", env)).__name__)
