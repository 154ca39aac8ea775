"""Task ids: from a name to what builds the env.

A name is looked up in these places, in this order:

    compiled      envs that ship with shoal and run on the kernel engine (``shoal.envs``)
    registered    what the program has registered with ``register``
    native        Gymnasium's robots, which run on the native engine (``shoal.envs.mujoco``), if MuJoCo is installed
    Atari         games under EnvPool's ids (``shoal.envs.atari``)
    Box2D         EnvPool's ids for envs that Gymnasium has under newer ones (``shoal.envs.box2d``)
    MiniGrid      with EnvPool's observations, for EnvPool's doors only (``shoal.envs.minigrid``)
    dm_control    tasks of its suite (``shoal.envs.dm_control``), if no other library has registered the id
    Gymnasium     its registry, also in the form ``"module:id"``, which imports the module first

``find`` gives a ``Task``: plain data that knows how to load the env's class and which options it takes.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as RegisteredSpec

from shoal.envs import TASKS
from shoal.envs.atari import TASKS as ATARI_TASKS
from shoal.envs.box2d import OLD_IDS as OLD_BOX2D_IDS
from shoal.envs.box2d import check_installed
from shoal.envs.dm_control import ENVPOOL_IDS as SUITE_ALIASES
from shoal.envs.dm_control import MISSING as SUITE_MISSING
from shoal.envs.dm_control import TASKS as SUITE_TASKS
from shoal.envs.dm_control import find_task, has_dm_control
from shoal.envs.envpool import kind_of
from shoal.envs.envpool.names import hint as envpool_hint
from shoal.envs.gymnasiums import register_with_gymnasium
from shoal.envs.minigrid import TASKS as MINIGRID_TASKS
from shoal.envs.minigrid import is_minigrids
from shoal.envs.mujoco import OLD_TASKS as OLD_MUJOCO_TASKS
from shoal.envs.mujoco import TASKS as MUJOCO_TASKS
from shoal.envs.mujoco import has_mujoco
from shoal.errors import ArgumentError, BackendUnavailable, UnknownTask, WrongSetting
from shoal.kernel import KernelEnv, is_kind
from shoal.native import is_native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Names under which other libraries know the compiled envs.
_ALIASES = {
    "phys2d/CartPole-v0": "CartPole-v0",
    "phys2d/CartPole-v1": "CartPole-v1",
    "phys2d/Pendulum-v0": "Pendulum-v0",
    "tabular/Blackjack-v0": "Blackjack-v1",
    "tabular/CliffWalking-v0": "CliffWalking-v0",
}
_registered: dict[str, Task] = {}

# Base classes, whose constructors take no options of the env.
_ROOTS = (object, gym.Env, gym.Wrapper, KernelEnv)


@dataclass(frozen=True)
class Task:
    """One task id and how to build its env.

    Attributes:
        id: The name it was registered under.
        source: A ``"module:attribute"`` string, a Gymnasium registration, or a callable that makes an env.
        kwargs: Keyword arguments that belong to the task.
        max_episode_steps: The time limit; None for the env's own, if it has one.
        reward_threshold: The mean return at which the task counts as solved.
        plain: The Python env under the same id as a native ``source``, in the same form, if there is one.
    """

    id: str
    source: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    plain: str | None = None

    @cached_property
    def env(self) -> Any:
        """What ``make_pool`` takes (a Gymnasium registration, a class or another callable), its module imported."""
        return _attribute(self.source, self.id) if isinstance(self.source, str) else self.source

    @property
    def is_compiled(self) -> bool:
        """Whether the env can run on the kernel engine."""
        return is_kind(self.env)

    @property
    def is_native(self) -> bool:
        """Whether the env can run on the native engine."""
        return is_native(self.env)

    @property
    def time_limit(self) -> int | None:
        """The task's limit, or else what a compiled or native env declares."""
        own = self.env.max_episode_steps if self.is_compiled or self.is_native else None
        return self.max_episode_steps if self.max_episode_steps is not None else own

    @property
    def threshold(self) -> float | None:
        """The task's threshold, or else what a compiled or native env declares."""
        own = self.env.reward_threshold if self.is_compiled or self.is_native else None
        return self.reward_threshold if self.reward_threshold is not None else own

    @property
    def reset_options(self) -> tuple[str, ...] | None:
        """The names that the options of a reset may have; None if only the env knows them."""
        known = getattr(self.env, "reset_options", None)
        return None if known is None else tuple(known)

    def serving(self, engine: str, keywords: Iterable[str] = (), *, is_alike: bool = True) -> Task:
        """The task as an engine serves it.

        If a task has both a native and a plain env, ``"native"`` takes the native one, and so does ``"auto"`` if that
        knows the keywords and the envs of the pool are all alike, with nothing wrapped around them. Every other engine
        takes the plain one.
        """
        if self.plain is None or engine == "native":
            return self
        plain = replace(self, source=self.plain, plain=None)
        only_plain = plain.options()[0].keys() - self.options()[0].keys()
        return self if engine == "auto" and is_alike and only_plain.isdisjoint(keywords) else plain

    def options(self) -> tuple[dict[str, Any], bool]:
        """The keywords that the env takes, with their defaults, and whether it takes any others as well."""
        maker: Any = self.env
        defaults: dict[str, Any] = {}
        if isinstance(maker, RegisteredSpec):
            check_installed(maker)
            defaults.update(maker.kwargs)
            maker = _attribute(maker.entry_point, self.id) if isinstance(maker.entry_point, str) else maker.entry_point
        found, is_open = _keywords(maker)
        if self.is_compiled:
            # Keywords that reach the constructor of KernelEnv set constants, and nothing else.
            found = {**found, **self.env.constants} if is_open else found
            is_open = False
        return {**found, **defaults, **self.kwargs}, is_open

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "env"}


def register(
    task_id: str,
    env: Any,
    *,
    aliases: tuple[str, ...] = (),
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    **defaults: Any,
) -> None:
    """Give an env a task id, so that ``make`` and its family know it.

    An id of Gymnasium's may be taken over; one that is shoal's own or registered already may not.

    Args:
        task_id: The name, by convention ``"Name-v0"``.
        env: An env class (Gymnasium's, dm_env's, PettingZoo's or a ``KernelEnv``), a function that makes an env, a
            ``"module:attribute"`` string that names one and is imported when it is needed, or another task's id.
        aliases: Further names for it.
        max_episode_steps: The time limit.
        reward_threshold: The mean return at which the task counts as solved.
        **defaults: Keyword arguments for the env, or for ``make`` and its family, which may override them.

    Example:
        >>> register("ShortCart-v0", "CartPole-v1", max_episode_steps=7)
        >>> find("ShortCart-v0").max_episode_steps
        7
    """
    names = (task_id, *aliases)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"task_id: expected a name, got {name!r}")
        is_own = own_task(name) is not None and name not in gym.registry
        if is_own or name in _registered or _compiled(name) is not None:
            raise WrongSetting(f"task_id: {name!r} is registered already")
    if isinstance(env, str) and ":" not in env:
        base = find(env)
        task = replace(base, id=task_id, kwargs={**base.kwargs, **defaults})
    elif isinstance(env, (str, RegisteredSpec)) or callable(env):
        task = Task(task_id, env, defaults)
    else:
        raise ArgumentError(f"env: expected a class, a function, 'module:attribute' or a task id, got {env!r}")
    if max_episode_steps is not None:
        task = replace(task, max_episode_steps=max_episode_steps)
    if reward_threshold is not None:
        task = replace(task, reward_threshold=float(reward_threshold))
    _registered.update(dict.fromkeys(names, task))


def list_all_envs() -> list[str]:
    """Every task id that ``make`` knows: shoal's own first, then registered ones, then Gymnasium's.

    Example:
        >>> list_all_envs()[:2]
        ['CartPole-v0', 'CartPole-v1']
    """
    own = [*TASKS, *(alias for alias, target in _ALIASES.items() if target in TASKS)]
    suite = [*SUITE_TASKS, *SUITE_ALIASES] if has_dm_control() else []
    families = [*ATARI_TASKS, *OLD_BOX2D_IDS, *MINIGRID_TASKS, *suite]
    return list(dict.fromkeys([*own, *families, *_registered, *gym.registry]))


def find(task_id: Any) -> Task:
    """The task of this name; for an env class or another callable that makes an env, a task made up for it.

    Raises:
        UnknownTask: If there is none; the error names the ids that come closest.
    """
    if isinstance(task_id, RegisteredSpec):
        return _registration(task_id)
    if not isinstance(task_id, str):
        if not callable(task_id):
            raise UnknownTask(f"task_id: expected a name or a callable that makes an env, got {task_id!r}")
        return Task(getattr(task_id, "__name__", type(task_id).__name__), task_id)
    return own_task(task_id) or _minigrid(task_id) or _in_gymnasium(task_id)


def is_shipped(task_id: str) -> bool:
    """Whether the name is that of a compiled or native env that comes with shoal."""
    return _compiled(task_id) is not None or (task_id not in _registered and _native(task_id) is not None)


def own_task(task_id: str) -> Task | None:
    """The task of this name if it is shoal's own or registered with it."""
    lookups = (_compiled, _registered.get, _native, _atari, _box2d, _suite)
    return next((task for look_up in lookups if (task := look_up(task_id)) is not None), None)


def _compiled(task_id: str) -> Task | None:
    name = task_id if task_id in TASKS else _ALIASES.get(task_id, "")
    found = TASKS.get(name)
    if found is None:
        return None
    return Task(name, found.home, found.kwargs, found.max_episode_steps, found.reward_threshold)


def _native(task_id: str) -> Task | None:
    found = MUJOCO_TASKS.get(task_id) or OLD_MUJOCO_TASKS.get(task_id)
    if found is None:
        return None
    registered = gym.registry.get(task_id)
    home = None if registered is None else registered.entry_point
    # Somebody else may have taken the id over. Gymnasium's own old ids lead to a function that only says they are gone.
    is_gymnasiums = (
        home.startswith("gymnasium.envs.mujoco.")
        if isinstance(home, str)
        else task_id in OLD_MUJOCO_TASKS and getattr(home, "__module__", "gymnasium.envs") == "gymnasium.envs"
    )
    if not is_gymnasiums or not has_mujoco():
        return None
    return Task(task_id, found.home, found.kwargs, found.max_episode_steps, found.reward_threshold)


def _atari(task_id: str) -> Task | None:
    found = ATARI_TASKS.get(task_id)
    return None if found is None else Task(task_id, found.home, found.kwargs, found.max_episode_steps)


def _box2d(task_id: str) -> Task | None:
    current = gym.registry.get(OLD_BOX2D_IDS.get(task_id, ""))
    if current is None or task_id in gym.registry:
        return None
    return replace(_registration(current), id=task_id)


def _minigrid(task_id: str) -> Task | None:
    if not is_minigrids(task_id):
        return None
    from shoal.envs.minigrid.env import GridMaker

    return Task(task_id, GridMaker(task_id), {}, MINIGRID_TASKS[task_id])


def envpool_task(task_id: Any) -> Task:
    """The task that EnvPool itself has under this name.

    Raises:
        ArgumentError: If it has none.
        BackendUnavailable: If it is not installed.
    """
    kind = kind_of(task_id)
    return Task(kind.task_id, f"{kind.__module__}:{kind.task_id}")


def _suite(task_id: str) -> Task | None:
    found = find_task(task_id)
    if found is None or task_id in gym.registry:
        return None
    if not has_dm_control():
        raise BackendUnavailable(f"{task_id}: {SUITE_MISSING}")
    (plain, native), limit = found
    if native is None or not has_mujoco():
        return Task(task_id, plain.home, plain.kwargs, limit)
    return Task(task_id, native.home, native.kwargs, limit, plain=plain.home)


def _in_gymnasium(task_id: str) -> Task:
    module, _, name = task_id.rpartition(":")
    register_with_gymnasium(name)
    try:
        if module:
            importlib.import_module(module)
        spec = gym.spec(name)
    except (gym.error.Error, ImportError, ValueError) as error:
        close = difflib.get_close_matches(task_id, list_all_envs(), n=3)
        hint = f"did you mean {', '.join(map(repr, close))}? " if close else ""
        raise UnknownTask(
            f"no task is called {task_id!r}; {hint}shoal.list_all_envs() lists them all{envpool_hint(task_id)}"
        ) from error
    return _registration(spec)


def _registration(spec: RegisteredSpec) -> Task:
    return Task(spec.id, spec, {}, spec.max_episode_steps, spec.reward_threshold)


def _attribute(home: str, task_id: str) -> Any:
    """What a ``"module:attribute"`` string names.

    Raises:
        ArgumentError: If there is no such thing.
        BackendUnavailable: If it needs a library that is not installed.
    """
    module, _, path = home.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, gym.error.DependencyNotInstalled) as error:
        # If the module itself is there, what is missing is another one that it imports.
        if isinstance(error, AttributeError) or f"{module}.".startswith(f"{getattr(error, 'name', None)}."):
            raise ArgumentError(f"{task_id}: {home!r} cannot be imported ({error})") from error
        raise BackendUnavailable(f"{task_id} needs what is not installed: {error}") from error
    return found


def _keywords(maker: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """The keywords of a function or a class, with defaults, and whether it takes others that cannot be known.

    A constructor with ``**kwargs`` usually hands them to the next one in line, so that one is inspected as well.
    """
    line: list[Any] = [maker]
    if isinstance(maker, type):
        line = [vars(cls)["__init__"] for cls in maker.__mro__ if cls not in _ROOTS and "__init__" in vars(cls)]
        if not line:
            return {}, is_kind(maker)
    found: dict[str, Any] = {}
    for function in line:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return found, True
        named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        found = {**{p.name: p.default for p in named if p.name != "self"}, **found}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return found, False
    return found, True
