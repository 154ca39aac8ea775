"""``EnvSpec``: what a pool will be like, without the pool."""

from __future__ import annotations

import re
from collections import namedtuple
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec as RegisteredSpec
from gymnasium.spaces import Box

from shoal.adapters import adapt, describe
from shoal.envs.box2d import is_box2ds
from shoal.errors import ArgumentError, WrongType
from shoal.faces.envpool.arrayspec import INT32, ArraySpec, Form, describe_leaf, form_of, named_leaves
from shoal.faces.envpool.config import Settings, read
from shoal.faces.envpool.dialect import info_types
from shoal.faces.envpool.players import player_spec
from shoal.recipes import recipe_for
from shoal.spec import Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gymnasium import Space

    from shoal.native import NativeEnv
    from shoal.registry import Task
    from shoal.spec import EnvSpec as CoreSpec

_INT = np.iinfo(np.int32)
_ID = ArraySpec(INT32, [], 0, _INT.max)
_BOOL = np.dtype(np.bool_)
_FLAG = ArraySpec(_BOOL, [], False, True)
_FLOAT32 = np.dtype(np.float32)
_FLAGS = ("terminated",)  # whole numbers that are 0 or 1
_TOLD_ANYWAY = ("elapsed_step", "discount")  # for every env, whether or not it counts and discounts itself


class _ConfigType:
    """The type of a class's configs, made when it is first asked for: an env may have to be built to know them."""

    def __get__(self, spec: EnvSpec | None, kind: type[EnvSpec]) -> Any:
        if kind is EnvSpec:
            return self
        spec = EnvSpec(kind.task, {}) if spec is None else spec
        defaults = {**read(kind.task, {}).config, "batch_size": 0, "max_num_players": spec.num_players}
        kind.gen_config = _config_type(_fields(defaults), defaults.values())
        return kind.gen_config


class EnvSpec:
    """The config, spaces and arrays of a pool, made by ``make_spec`` or read from a pool.

    It can be pickled, and ``make`` takes it in place of a task id. Specs of a task are of one class, such as
    ``CartPoleEnvSpec``.

    Attributes:
        gen_config: The type of ``config``: a namedtuple with the task's defaults, an attribute of the class.
        found: The task that was asked for.
        task: The task that is made: ``found`` as the engine serves it; an attribute of the class.
        given: The keyword arguments that it is made with.
        settings: The same arguments, checked and completed.

    Args:
        found: The task to make; or for the class of a task, as in EnvPool, a config of its ``gen_config`` alone.
        given: Keyword arguments of ``make``.
        reset_returns_info: The value of ``gym_reset_return_info`` if it is not given.
    """

    task: Task
    gen_config: Any = _ConfigType()

    def __new__(cls, found: Any, given: Mapping[str, Any] | None = None, reset_returns_info: bool = True) -> EnvSpec:
        """A spec of the class that belongs to the task."""
        found, given = cls._read(found, given)
        return super().__new__(_class_of(found.serving(given.get("engine", "auto"), given)))

    def __init__(self, found: Any, given: Mapping[str, Any] | None = None, reset_returns_info: bool = True) -> None:
        found, given = self._read(found, given)
        self.found = found
        self.settings: Settings = read(self.task, {"gym_reset_return_info": reset_returns_info, **given})
        self.given = dict(given)
        self._reset_returns_info = reset_returns_info
        if given.get("seed", 0) is None:
            # Every other pool made from this spec, in whatever process, gets the seed that was drawn.
            self.given["seed"] = self.settings.config["seed"]

    @classmethod
    def _read(cls, found: Any, given: Mapping[str, Any] | None) -> tuple[Task, Mapping[str, Any]]:
        """A task and keyword arguments; both from a config, if that is all there is."""
        if given is not None:
            return found, given
        if cls is EnvSpec or not hasattr(found, "_asdict"):
            raise WrongType(f"{cls.__name__}: expected a config of the gen_config of a task's class, got {found!r}")
        names = {_field(name): name for name in read(cls.task, {}).config}
        return cls.task, {names.get(field, field): value for field, value in found._asdict().items()}

    def __reduce__(self) -> tuple[type[EnvSpec], tuple[Any, ...]]:
        return EnvSpec, (self.found, self.given, self._reset_returns_info)

    # ------------------------------------------------------------------ config

    @property
    def config(self) -> Any:
        """All keys and values, as a namedtuple."""
        make, _ = self.gen_config, self.num_players  # an env that is asked for its players completes the settings
        fields = _fields(self.settings.config)
        if fields != make._fields:  # an env may take options that it does not name, or for which it has no default
            make = _config_type(fields)
        return make(*self.settings.config.values())

    @property
    def reward_threshold(self) -> float | None:
        """The mean return at which the task counts as solved."""
        threshold: float | None = self.settings.config["reward_threshold"]
        return threshold

    # ------------------------------------------------------------------ spaces

    @property
    def observation_space(self) -> Space[Any]:
        """What one env observes, or one player where there are several."""
        return self.observation_form.space

    @property
    def action_space(self) -> Space[Any]:
        """The actions of one env, or of one player where there are several."""
        return player_spec(self.core).action.space

    @property
    def gymnasium_observation_space(self) -> Space[Any]:
        """The same as ``observation_space``."""
        return self.observation_space

    @property
    def gymnasium_action_space(self) -> Space[Any]:
        """The same as ``action_space``."""
        return self.action_space

    def observation_spec(self) -> Any:
        """What one env observes and reports, as a namedtuple of dm_env specs."""
        from shoal.faces.envpool.dm_specs import observation_spec

        return observation_spec(self)

    def action_spec(self) -> Any:
        """The action of one env, as a dm_env spec, or as nested namedtuples of them."""
        from shoal.faces.envpool.dm_specs import action_spec

        return action_spec(self)

    # ------------------------------------------------------------------ arrays

    @property
    def state_array_spec(self) -> dict[str, ArraySpec]:
        """Every array that a batch consists of."""
        common = {
            "info:env_id": _ID,
            "info:players.env_id": ArraySpec(INT32, [-1], 0, _INT.max),
            "elapsed_step": _ID,
            "done": _FLAG,
            "reward": ArraySpec(_FLOAT32, [-1], -np.inf, np.inf),
            "discount": ArraySpec(_FLOAT32, [-1], 0.0, 1.0),
            "step_type": ArraySpec(INT32, [], 0, 2),
            "trunc": _FLAG,
        }
        of_players = bool(self.core.players)
        observed = {
            f"obs:{name}" if name else "obs": describe_leaf(leaf, per_player=of_players)
            for name, leaf in named_leaves(self.observation_space)
        }
        fields = {f"info:{f.name}": _describe_field(f) for f in self.info_fields if f.name not in _TOLD_ANYWAY}
        if of_players:
            last = len(self.core.players) - 1
            fields["info:players.id"] = ArraySpec(INT32, [-1], 0, last)
            fields["info:players.terminated"] = fields["info:players.truncated"] = ArraySpec(_BOOL, [-1], False, True)
        return {**common, **observed, **fields}

    @property
    def action_array_spec(self) -> dict[str, ArraySpec]:
        """Every array that an action consists of."""
        ids = {"env_id": _ID, "players.env_id": ArraySpec(INT32, [-1], 0, _INT.max)}
        leaves = named_leaves(self.action_space)
        # EnvPool leaves the players out of the continuous actions of its Box2D envs, and of no others.
        per_player = not is_box2ds(self.task.env)
        return {**ids, **{name or "action": describe_leaf(leaf, per_player=per_player) for name, leaf in leaves}}

    # ------------------------------------------------------------------ what the env itself says

    @cached_property
    def core(self) -> CoreSpec:
        """The contract of the env, read from an env that is built for this purpose unless a pool has set it."""
        if self.native_kind is not None:
            return self.learn(self.native_kind.describe(self.task.id))
        env = adapt(recipe_for(self.task.env, 1, self.settings.env_kwargs).factories[0]())
        try:
            return self.learn(describe(env, self.task.id))
        finally:
            if hasattr(env, "close"):
                env.close()

    def learn(self, core: CoreSpec) -> CoreSpec:
        """Take over the contract of the env, and complete the config with what only the env knows.

        Raises:
            ArgumentError: If more play than ``max_num_players``.
        """
        count = len(core.players)
        given = self.given.get("max_num_players", count)
        if given < count:
            raise ArgumentError(f"max_num_players: {self.task.id} has {count} players, got {given}")
        if count:
            self.settings = replace(self.settings, config={**self.settings.config, "max_num_players": int(given)})
        self.core = core
        return core

    @property
    def num_players(self) -> int:
        """How many play in one env. An env is built to find out only if there is no other way."""
        is_single = self.task.is_compiled or self.task.is_native or isinstance(self.task.env, RegisteredSpec)
        return 1 if is_single else max(1, len(self.core.players))

    @property
    def needs_window(self) -> bool:
        """Whether the env is to be shown, but can only draw pictures."""
        return self.settings.rendering.mode == "human" and (self.task.is_compiled or self.task.is_native)

    @cached_property
    def observation_form(self) -> Form:
        """How observations are handed out."""
        space = player_spec(self.core).observation.space
        if is_box2ds(self.task.env) and space.dtype == np.float32:
            # Landers and walkers leave the bounds that Gymnasium names, and EnvPool names none.
            space = Box(-np.inf, np.inf, space.shape, np.float32)
        return form_of(space)

    @cached_property
    def info_fields(self) -> tuple[Field, ...]:
        """Info fields that come with every row, whatever runs the env."""
        if self.task.is_compiled:
            fields: tuple[Field, ...] = self.task.env(**self.settings.env_kwargs).info_fields()
            types = info_types(self.task)
            return tuple(field._replace(dtype=types.get(field.name, field.dtype)) for field in fields)
        if self.native_kind is not None:
            declared = self.native_kind.describe(self.task.id).info
            known = {field.name for field in declared}
            aliases = [name for name in self.native_kind.info_aliases if name not in known]
            return (*declared, *(Field(name, np.dtype(np.float64), ()) for name in aliases))
        return self.core.info

    @cached_property
    def native_kind(self) -> NativeEnv | None:
        """The env, if a native simulator runs it."""
        return self.task.env(**self.settings.env_kwargs) if self.task.is_native else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.settings.config.items())})"


_classes: dict[str, type[EnvSpec]] = {}


def _class_of(task: Task) -> type[EnvSpec]:
    """The class of a task's specs, the same for all of them."""
    known = _classes.get(task.id)
    if known is None or not _is_same(known.task, task):
        own = {"task": task, "__doc__": EnvSpec.__doc__, "__module__": EnvSpec.__module__}
        known = _classes[task.id] = type(f"{stem_of(task.id)}EnvSpec", (EnvSpec,), own)
    return known


def _is_same(task: Task, other: Task) -> bool:
    try:
        return task == other
    except ValueError:  # there are arrays among the options
        return False


def stem_of(task_id: str) -> str:
    """``"phys2d/CartPole-v1"`` as ``CartPole``."""
    name = re.sub(r"-v\d+$", "", task_id.rpartition("/")[2])
    return re.sub(r"\W", "", name)


def _config_type(fields: tuple[str, ...], defaults: Iterable[Any] = ()) -> Any:
    return namedtuple("Config", fields, rename=True, defaults=defaults)


def _fields(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_field(name) for name in config)


def _field(name: str) -> str:
    return name.replace(".", "_")


def _describe_field(field: Field) -> ArraySpec:
    kind = field.dtype.kind
    low, high = (False, True) if kind == "b" else (-np.inf, np.inf)
    if kind in "iu" and field.name in _FLAGS:
        return ArraySpec(field.dtype, [-1], 0, 1, is_discrete=True)
    if kind in "iu":
        low, high = np.iinfo(field.dtype).min, np.iinfo(field.dtype).max
    return ArraySpec(field.dtype, list(field.shape) or [-1], low, high)
