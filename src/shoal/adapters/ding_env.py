"""DI-engine envs as Gymnasium envs.

Such an env has ``reset(**kwargs) -> obs``, ``step(action) -> (obs, reward, done, info)`` and ``seed(seed[, dynamic])``,
and takes and returns whatever its author liked. What has the form that its spaces announce travels in columns; anything
else goes beside them, in the info under ``ASIDE``, and whoever reads the row puts it back in its place. So nothing is
cast, and nothing is refused that a plain call would have accepted.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from shoal.adapters.ding_timestep import FIELDS, TRUNCATED, BaseEnvTimestep, is_abnormal, told_by
from shoal.arrays import has_true
from shoal.errors import ArgumentError, SpecError
from shoal.spec import SpaceTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ASIDE = "shoal.aside"
_FLOAT32 = np.dtype(np.float32)
_INT64 = np.dtype(np.int64)
_INT, _NUMPY_INT, _SCALAR = range(3)  # forms of a number; the fourth is an array of one number
_NUM_FORMS = 4
_FORMS: dict[type, int] = {int: _INT, np.int64: _NUMPY_INT}
_LARGEST = 2**60  # numbers up to this, and as many, are an int64 in every form
_NATIVE = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
_log = logging.getLogger("shoal")


class Anything(Space[Any]):
    """The space of everything, for values that nobody has described.

    Example:
        >>> Anything().contains("a word"), Anything() == Anything()
        (True, True)
    """

    def __init__(self) -> None:
        super().__init__(None, None)

    def contains(self, x: Any) -> bool:
        """True for everything."""
        return True

    @property
    def is_np_flattenable(self) -> bool:
        """Whether its values are arrays of one shape."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anything)

    def __hash__(self) -> int:
        return hash(Anything)

    def __repr__(self) -> str:
        return "Anything()"


def as_gymnasium(space: Any) -> Space[Any]:
    """A space of the old gym as one of Gymnasium's; a space of neither can hold anything."""
    if isinstance(space, Space):
        return space
    kind = type(space).__name__
    if kind == "Dict":
        return spaces.Dict({key: as_gymnasium(child) for key, child in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([as_gymnasium(child) for child in space.spaces])
    if kind not in _NATIVE or not hasattr(space, "contains"):
        return Anything()
    if kind == "Box":
        low, high = np.asarray(space.low, space.dtype), np.asarray(space.high, space.dtype)
        return spaces.Box(low, high, space.shape, space.dtype)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    return spaces.MultiDiscrete(space.nvec) if kind == "MultiDiscrete" else spaces.MultiBinary(space.n)


# ---------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Given:
    """An action that goes beside its column."""

    action: Any


class ActionForms:
    """How actions travel in a column and arrive as they were given.

    A number for a ``Discrete`` space may be given as an int, a numpy int, or an array of shape ``()`` or ``(1,)``, and
    envs tell these apart. So its column has room for each number in each form.

    Attributes:
        space: What the pool takes for the env's action space.
        has_column: Whether there is a column at all.
        pack: Actions as one array for the pool; None if one of them fits no column.
        unpack: The action as it was given, for the env.

    Example:
        >>> forms = ActionForms(spaces.Discrete(3))
        >>> column = forms.pack([2, np.array([1])])
        >>> [forms.unpack(row) for row in column]
        [2, array([1])]
        >>> forms.pack(["left"]) is None
        True
    """

    def __init__(self, space: Any) -> None:
        own = as_gymnasium(space)
        self.pack: Callable[[Sequence[Any]], np.ndarray[Any, Any] | None] = self._pack_arrays
        self.unpack: Callable[[Any], Any] = _unpack_any
        if isinstance(own, spaces.Discrete) and max(own.n, abs(int(own.start))) <= _LARGEST:
            numbers = _Numbers(int(own.start), int(own.n))
            self.space: Space[Any] = spaces.Discrete(_NUM_FORMS * numbers.count)
            self.pack, self.unpack = numbers.pack, numbers.unpack
        elif isinstance(own, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)) and own.shape:
            self.space = own
        else:
            self.space = Anything()
        self.has_column = not isinstance(self.space, Anything)

    def _pack_arrays(self, actions: Sequence[Any]) -> np.ndarray[Any, Any] | None:
        shape, dtype = self.space.shape, self.space.dtype
        for action in actions:
            if action.__class__ is not np.ndarray or action.dtype != dtype or action.shape != shape:
                return None
        packed = np.array(actions)
        return None if has_true(np.isnan(packed)) else packed  # a pool objects to NaN, and an env may not


class _Numbers:
    """The numbers from ``first`` on, each in several forms: ``count`` ints, then as many numpy ints, and so on."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.last = first + count - 1
        self.count = count

    def pack(self, actions: Sequence[Any]) -> np.ndarray[Any, Any] | None:
        """Actions as one array; None if one of them is no such number."""
        kinds = {*map(type, actions)}
        if len(kinds) == 1 and (form := _FORMS.get(kinds.pop())) is not None:  # as is usual
            if not (self.first <= min(actions) and max(actions) <= self.last):
                return None
            shift = form * self.count - self.first
            return np.array(actions, np.int64) + shift if shift else np.array(actions, np.int64)
        places = [self._place_of(action) for action in actions]
        return None if None in places else np.array(places, np.int64)

    def _place_of(self, action: Any) -> int | None:
        form, number = _FORMS.get(type(action)), action
        if form is None:
            if not (type(action) is np.ndarray and action.dtype == _INT64 and action.ndim < 2 and action.size == 1):
                return None
            form, number = _SCALAR + action.ndim, action.item()
        place = int(number) - self.first
        return form * self.count + place if 0 <= place < self.count else None

    def unpack(self, action: Any) -> Any:
        """The number as it was given."""
        if action.__class__ is Given:
            return action.action
        place = int(action)
        if place < self.count:
            return place + self.first
        form, place = divmod(place, self.count)
        number = place + self.first
        if form == _NUMPY_INT:
            return np.int64(number)
        return np.array(number if form == _SCALAR else [number])


def _unpack_any(action: Any) -> Any:
    return action.action if action.__class__ is Given else action


# ---------------------------------------------------------------------- observations


def pool_space(space: Any) -> Space[Any]:
    """The observation space that a pool gets: the env's own if it is made of arrays, else the space of everything."""
    own = as_gymnasium(space)
    return Anything() if SpaceTree(own, "observation").has_objects else own


def fitter(space: Space[Any]) -> Callable[[Any], bool]:
    """A function that says whether a value comes out of the columns of this space unchanged."""
    if isinstance(space, Anything):
        return lambda value: True
    if isinstance(space, spaces.Dict):
        children = {key: fitter(child) for key, child in space.spaces.items()}
        return lambda value: (
            value.__class__ is dict
            and value.keys() == children.keys()
            and all([fits(value[key]) for key, fits in children.items()])
        )
    if isinstance(space, spaces.Tuple):
        parts = [fitter(child) for child in space.spaces]
        return lambda value: (
            value.__class__ is tuple
            and len(value) == len(parts)
            and all([fits(item) for fits, item in zip(parts, value, strict=True)])
        )
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())
    if shape:
        # Numpy has one object for each plain dtype, and identity is quicker to check than equality.
        return lambda value: (
            value.__class__ is np.ndarray and (value.dtype is dtype or value.dtype == dtype) and value.shape == shape
        )
    numbers = (int, np.int64) if dtype == _INT64 else (dtype.type,)
    return lambda value: value.__class__ in numbers


# ---------------------------------------------------------------------- the env


class DingEnv:
    """A DI-engine env with Gymnasium's interface.

    ``options`` of a reset may hold ``kwargs`` for the env's own ``reset`` and the following ones, ``seeded`` (the seed
    comes from the caller, not from rebuilding the env), ``dynamic_seed``, and for an env that was rebuilt
    ``static_seed``, the seed to use instead, and ``is_seeded``. Without any of these, it is not seeded: an env that
    nobody has seeded may take a seed for a reason to seed generators that others use as well.

    Attributes:
        leaves_end: Whether the last episode ended with a timestep that the env calls abnormal: its caller resets it.

    Args:
        env: The env.
        observation_space: As reported by the env, or by another of its kind.
        action_space: Likewise.
        attempts: How often a step that raises is tried, with the same action, on the same env.
    """

    metadata: Mapping[str, Any] = {}
    render_mode = None
    spec = None

    def __init__(self, env: Any, observation_space: Any, action_space: Any, attempts: int = 1) -> None:
        self.env = env
        self.observation_space = pool_space(observation_space)
        forms = ActionForms(action_space)
        self.action_space = forms.space
        self._unpack = forms.unpack
        self._fits = fitter(self.observation_space)
        tree = SpaceTree(self.observation_space, "observation")
        self._blank = tree.unflatten([leaf.blank() if leaf.is_array else None for leaf in tree.leaves])
        self._kwargs: dict[str, Any] = {}
        self.leaves_end = False
        # The class of timesteps that whoever reads the rows takes them for.
        self._told: type[Any] | None = BaseEnvTimestep
        self._attempts = attempts
        self._step = env.step if attempts == 1 else self._try

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Seed the env if that is due, and start an episode."""
        asked = options or {}
        if seed is not None and asked.get("seeded"):
            self.seed(seed, asked.get("dynamic_seed"))
        elif seed is not None and "static_seed" in asked:
            self.seed(asked["static_seed"], False)
        elif seed is not None and asked.get("is_seeded"):
            self.seed(seed)
        if self._told is not BaseEnvTimestep:
            self._told = None  # the row that announced the class may be one that this reset makes void
        if "kwargs" in asked:
            self._kwargs = asked["kwargs"]
        obs = self.env.reset(**self._kwargs)
        return (obs, {}) if self._fits(obs) else (self._blank, {ASIDE: {"obs": obs}})

    def seed(self, seed: int, dynamic_seed: bool | None = None) -> None:
        """Seed the env; one that cannot be seeded goes on without."""
        given = (seed,) if dynamic_seed is None else (seed, dynamic_seed)
        try:
            self.env.seed(*given)
        except Exception:
            _log.warning("seed(%d) failed in %r, which goes on without", seed, self.env, exc_info=True)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; a ``done`` that is due to a time limit is a truncation."""
        timestep = self._step(self._unpack(action))
        is_usual = timestep.__class__ is self._told
        if not is_usual and getattr(timestep, "_fields", None) != FIELDS:
            return self._unusual(timestep)
        obs, reward, done, info = timestep
        is_float = reward.__class__ is np.ndarray and reward.dtype is _FLOAT32 and reward.shape == (1,)
        if is_usual and is_float and info.__class__ is dict and self._fits(obs):
            number = reward.item()
        else:
            obs, number, info = self._set_aside(timestep)
        if not done:
            return obs, number, False, False, info
        told = told_by(timestep.info)
        truncated = bool(told.get(TRUNCATED, False))
        self.leaves_end = is_abnormal(timestep.info)
        return obs, number, not truncated, truncated, dict(info)

    def _unusual(self, timestep: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Put a timestep with fields other than the usual four beside its row, as a whole."""
        try:
            info, done = told_by(timestep.info), bool(timestep.done)
            obs = timestep.obs if self._fits(timestep.obs) else self._blank
        except AttributeError as error:
            raise SpecError(
                f"step must return a namedtuple with {', '.join(FIELDS)}, got {type(timestep).__name__} ({error})"
            ) from error
        truncated = done and bool(info.get(TRUNCATED, False))
        self.leaves_end = is_abnormal(timestep.info)
        return obs, 0.0, done and not truncated, truncated, {**info, ASIDE: {"timestep": timestep}}

    def _set_aside(self, timestep: Any) -> tuple[Any, float, dict[str, Any]]:
        """Observation, reward and info for a row, with what fits no column in the info."""
        obs, reward, _, info = timestep
        aside: dict[str, Any] = {}
        if timestep.__class__ is not self._told:
            aside["kind"] = self._told = timestep.__class__
        if not self._fits(obs):
            aside["obs"], obs = obs, self._blank
        number = 0.0
        if isinstance(reward, np.ndarray) and reward.dtype == _FLOAT32 and reward.shape == (1,):
            number = reward.item()
        else:
            aside["reward"] = reward
        if not isinstance(info, Mapping):
            aside["info"], info = info, {}
        return obs, number, {**info, ASIDE: aside} if aside else dict(info)

    def _try(self, action: Any) -> Any:
        for attempt in range(1, self._attempts):
            try:
                return self.env.step(action)
            except Exception:
                _log.warning("step failed in %r, attempt %d of %d", self.env, attempt, self._attempts, exc_info=True)
        return self.env.step(action)

    def read(self, name: str) -> Any:
        """An attribute of the env; None if it has no such attribute."""
        return getattr(self.env, name, None)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a method of the env returns."""
        return getattr(self.env, name)(*args, **kwargs)

    def picture(self) -> Any:
        """What the env looks like, as an array: from the simulator, or the env inside, or the env itself."""
        inner = getattr(self.env, "_env", self.env)
        if hasattr(inner, "sim"):
            return inner.sim.render(camera_name="track", height=128, width=128)[::-1]
        has_mode = getattr(inner, "render_mode", None) is not None
        image = inner.render() if has_mode or not _takes_mode(inner.render) else inner.render(mode="rgb_array")
        if image is None:
            raise ArgumentError(f"ready_imgs: {inner!r} draws no pictures: make it with render_mode='rgb_array'")
        return image

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def _takes_mode(render: Callable[..., Any]) -> bool:
    """Whether ``render`` is told what to draw with every call, as in the old gym."""
    parameters = inspect.signature(render).parameters
    return "mode" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


@dataclass(frozen=True)
class MakeDingEnv:
    """Builds a DI-engine env wherever it will run, and tells it where to keep its replays."""

    env_fn: Callable[[], Any]
    observation_space: Any
    action_space: Any
    attempts: int = 1
    replay_path: str | None = None

    @property
    def __wrapped__(self) -> Callable[[], Any]:
        """What the user gave, so that a search for what cannot be pickled names it as the user would."""
        return self.env_fn

    def __call__(self) -> DingEnv:
        """Build the env."""
        env = self.env_fn()
        if self.replay_path is not None:
            env.enable_save_replay(self.replay_path)
        return DingEnv(env, self.observation_space, self.action_space, self.attempts)
