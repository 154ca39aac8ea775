"""Envs that shoal can compile: one class, plain scalar Python, no decorators.

    class Walk(KernelEnv):
        observation_space = spaces.Box(-10, 10, (1,), np.float32)
        action_space = spaces.Discrete(2)
        state = {"x": np.float64}
        max_episode_steps = 100

        def reset(env, rng, obs):
            env.x = rng.uniform(-1.0, 1.0)
            obs[0] = env.x

        def step(env, action, rng, obs):
            env.x += 1.0 if action == 1 else -1.0
            obs[0] = env.x
            return 1.0, abs(env.x) > 10.0

``env`` is the env's own record: state, info fields and constants, by name. ``rng`` is the env's own generator with
the methods of ``numpy.random.Generator``. ``obs`` is where the observation goes: an array with the shape of the
space (of one element for a ``Discrete``), a tuple of arrays for a ``Tuple``, or a named tuple of them for a ``Dict``.
Its contents are arbitrary when the function is called, so every element must be written.

The kernel engine compiles both functions with numba, along with the plain functions that they call. Every other engine
runs them as they are (``adapters.kernel_env``), with the same rows wherever Python and numba compute the same.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from keyword import iskeyword
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces

from shoal.errors import ArgumentError, SpecError
from shoal.spec import Field

Fields = Mapping[str, Any]

# Names that a field would shadow when the env runs uncompiled.
_TAKEN = frozenset(
    ("action_space", "kind", "metadata", "np_random", "observation_space", "record", "render_mode", "spec", "unwrapped")
)
_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class KernelEnv:
    """One kind of env, described for compilation: subclasses declare fields and write ``reset`` and ``step``.

    An instance is a kind with its constants filled in; it holds no episode. Episodes live in records, one per env,
    which belong to whoever runs them.

    Attributes:
        observation_space: What ``obs`` holds. A Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those.
        action_space: What ``action`` is: a number for a Discrete, an array for a Box, a tuple for a Dict or Tuple.
        state: Fields that change, ``name -> dtype`` or ``name -> (dtype, shape)``.
        info: Fields that every row reports in its info.
        constants: Fields that never change, with their defaults, which keyword arguments of the class override.
        reset_options: Fields that ``reset(options=...)`` may set for one reset, with their defaults.
        max_episode_steps: The time limit.
        reward_threshold: The mean return at which the task counts as solved.
        gymnasium_id: Gymnasium's env of the same kind, the twin, which draws the pictures.
        pose: ``pose(env, twin)`` puts the twin into the state of a record.
        render_fps: Pictures per second of simulated time.

    Example:
        >>> class Coin(KernelEnv):
        ...     observation_space = spaces.Discrete(2)
        ...     action_space = spaces.Discrete(2)
        ...     state = {"tosses": np.int64}
        ...
        ...     def reset(env, rng, obs):
        ...         env.tosses = 0
        ...         obs[0] = rng.integers(0, 2)
        ...
        ...     def step(env, action, rng, obs):
        ...         env.tosses += 1
        ...         obs[0] = rng.integers(0, 2)
        ...         return float(action == obs[0]), env.tosses == 10
        >>> import shoal
        >>> with shoal.make_vec(Coin, num_envs=4, engine="serial") as envs:
        ...     obs, infos = envs.reset(seed=1)
        >>> obs.shape
        (4,)
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    state: ClassVar[Fields] = {}
    info: ClassVar[Fields] = {}
    constants: Mapping[str, Any] = {}
    reset_options: ClassVar[Mapping[str, Any]] = {}
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    gymnasium_id: ClassVar[str | None] = None

    reset: ClassVar[Callable[..., None]]
    step: ClassVar[Callable[..., tuple[float, bool]]]
    pose: ClassVar[Callable[[Any, Any], None]]
    render_fps: ClassVar[int] = 50

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step", "pose"):
            # They are written without self, because there is no object when they run compiled.
            function = cls.__dict__.get(name)
            if isinstance(function, FunctionType):
                setattr(cls, name, staticmethod(function))

    def __init__(self, *, render_mode: str | None = None, **changes: Any) -> None:
        defaults = type(self).constants
        unknown = sorted(changes.keys() - defaults.keys())
        if unknown:
            known = f"it has {sorted(defaults)}" if defaults else "it has none"
            raise ArgumentError(f"{type(self).__name__}: no constant called {', '.join(unknown)}; {known}")
        self.constants = {**defaults, **{name: _like(name, defaults[name], value) for name, value in changes.items()}}
        if render_mode not in (None, "rgb_array"):
            raise ArgumentError(f"{type(self).__name__}: render_mode: expected 'rgb_array', got {render_mode!r}")
        self.render_mode = render_mode

    @property
    def metadata(self) -> dict[str, Any]:
        """Render modes, as Gymnasium's envs declare them."""
        return {"render_modes": ["rgb_array"] if self.gymnasium_id else [], "render_fps": self.render_fps}

    def twin_kwargs(self) -> dict[str, Any]:
        """The keyword arguments to make the twin with, so that it can be posed."""
        return {}

    def record_dtype(self) -> np.dtype[Any]:
        """The record of one env: state, info, constants and reset options."""
        fields = [
            *((name, *_declared(kind)) for name, kind in {**self.state, **self.info}.items()),
            *((name, *_kind_of(value)) for name, value in {**self.constants, **self.reset_options}.items()),
        ]
        return np.dtype([(name, dtype, shape) for name, dtype, shape in fields], align=True)

    def records(self, count: int) -> np.ndarray[Any, Any]:
        """Records of ``count`` envs, with the constants and the defaults of reset options in place, the rest zero."""
        records = np.zeros(count, self.record_dtype())
        for name, value in {**self.constants, **self.reset_options}.items():
            records[name] = value
        return records

    def info_fields(self) -> tuple[Field, ...]:
        """The info fields as columns."""
        return tuple(Field(name, *_declared(kind)) for name, kind in self.info.items())

    def check(self) -> None:
        """Raise ``SpecError`` for a declaration that cannot be compiled, naming the class and the field."""
        name = type(self).__name__
        for attribute in ("observation_space", "action_space", "reset", "step"):
            if not hasattr(self, attribute):
                raise SpecError(f"{name}: {attribute} is missing")
        for what in ("observation_space", "action_space"):
            _check_space(getattr(self, what), f"{name}.{what}")
        declared = [*self.state.items(), *self.info.items()]
        given = [*self.constants.items(), *self.reset_options.items()]
        fields = [field for field, _ in (*declared, *given)]
        if not fields:
            raise SpecError(f"{name}: declare at least one field of state")
        for field in fields:
            _check_name(field, f"{name}: field")
            if field in _TAKEN:
                raise SpecError(f"{name}: field {field!r}: the name is taken")
            if fields.count(field) > 1:
                raise SpecError(f"{name}: field {field!r} is declared more than once")
        for read, group in ((_declared, declared), (_kind_of, given)):
            for field, kind in group:
                _check_kind(read, kind, f"{name}: field {field!r}")

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.constants.items())
        return f"{type(self).__name__}({options})"


def is_kind(source: Any) -> bool:
    """Whether ``source`` is a class of kernel envs.

    Example:
        >>> is_kind(KernelEnv), is_kind(int)
        (True, False)
    """
    return isinstance(source, type) and issubclass(source, KernelEnv)


def leaves_tuple(space: Space[Any], name: str) -> Any:
    """The class that hands kernels the leaves of a Tuple or (as a named tuple) Dict space; None for a single leaf."""
    if isinstance(space, spaces.Dict):
        return namedtuple(name, list(space.spaces))
    return tuple if isinstance(space, spaces.Tuple) else None


def _check_space(space: Space[Any], where: str) -> None:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        children = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        if not children:
            raise SpecError(f"{where} is empty")
        for key, child in children:
            if isinstance(space, spaces.Dict):
                _check_name(key, f"{where}: key")
            _check_leaf(child, f"{where}[{key!r}]")
    else:
        _check_leaf(space, where)


def _check_leaf(space: Space[Any], where: str) -> None:
    if not isinstance(space, _LEAVES):
        raise SpecError(f"{where}: {type(space).__name__} cannot be compiled")
    _check_float(np.dtype(space.dtype), where)


def _check_float(dtype: np.dtype[Any], where: str) -> None:
    if dtype.kind == "f" and dtype not in (np.float32, np.float64):
        raise SpecError(f"{where}: numba has no {dtype.name}; use float{32 if dtype == np.float16 else 64}")


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name) or name.startswith("_"):
        raise SpecError(f"{where} {name!r} cannot be a name")


def _check_kind(read: Callable[[Any], tuple[np.dtype[Any], tuple[int, ...]]], kind: Any, where: str) -> None:
    try:
        dtype, shape = read(kind)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where}: {kind!r} is no type of number ({error})") from None
    if dtype.kind not in "biuf" or any(not isinstance(size, int) or size < 1 for size in shape):
        raise SpecError(f"{where}: expected numbers or an array of numbers, got {kind!r}")
    _check_float(dtype, where)
    if shape and dtype == np.bool_:
        raise SpecError(f"{where}: numba has no arrays of bools in records; declare it as np.uint8")


def _declared(kind: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype, shape = kind if isinstance(kind, tuple) else (kind, ())
    return np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)


def _kind_of(value: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    array = np.asarray(value)
    return array.dtype, array.shape


def _like(name: str, default: Any, value: Any) -> Any:
    """A value for a constant, in the type of its default where it fits, as another type would be compiled anew."""
    if np.shape(value) != np.shape(default):
        raise ArgumentError(
            f"{name}: expected {f'shape {np.shape(default)}' if np.ndim(default) else 'one number'}, got {value!r}; "
            "a list of env_kwargs gives each env its own"
        )
    own, given = np.asarray(default), np.asarray(value)
    fits = np.can_cast(given.dtype, own.dtype, "same_kind") or (own.dtype.kind == "f" and given.dtype.kind in "iu")
    if not fits:
        return value
    cast = checked_cast(name, value, own.dtype)
    return cast if own.shape else cast.item()


def checked_cast(name: str, value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A value for a field, in the field's type.

    Raises:
        ArgumentError: If it is no number, or would become another one: a fraction in a field of integers, or a number
            that is too large.
    """
    given = np.asarray(value)
    if given.dtype.kind in "biuf":
        with np.errstate(all="ignore"):  # whatever numpy would warn of is checked below
            cast = given.astype(dtype)
        is_same = np.isfinite(cast) | ~np.isfinite(given) if dtype.kind == "f" else cast == given
        if is_same.all():
            return cast
    raise ArgumentError(f"{name}: expected a number that fits {dtype.name}, got {value!r}")
