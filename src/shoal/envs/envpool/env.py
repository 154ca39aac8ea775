"""``EnvPoolEnv``: one of EnvPool's tasks, with its options, as a kind of native env."""

from __future__ import annotations

import inspect
import warnings
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.envs.envpool import library
from shoal.envs.envpool.layout import Layout, layout_of
from shoal.envs.envpool.sim import EnvPoolSim
from shoal.envs.envpool.trial import try_out
from shoal.errors import ArgumentError, BackendUnavailable
from shoal.native import NativeEnv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.native import BatchSim
    from shoal.spec import EnvSpec

TASKS = "shoal.envs.envpool.tasks"  # where each class can be found under its id
NO_LIMIT = 2**31 - 1
# Keys that every EnvPool config has, and that are up to the pool.
_POOLS_OWN = frozenset(
    {
        "num_envs",
        "batch_size",
        "num_threads",
        "max_num_players",
        "thread_affinity_offset",
        "base_path",
        "seed",
        "env_seed",
        "gym_reset_return_info",
        "reward_threshold",
    }
)
_LIMIT = "max_episode_steps"
_DRAWING = {"render_mode": None, "render_width": None, "render_height": None, "render_camera_id": None}
_RENDER_MODES = (None, "rgb_array")


class EnvPoolEnv(NativeEnv):
    """One of EnvPool's tasks. Subclasses, made by ``kind``, name it.

    Args:
        **options: Keys of what EnvPool calls the config of the task, and ``render_mode``, ``render_width``,
            ``render_height``, ``render_camera_id``.

    Raises:
        TypeError: For an option that the task does not have.
        ArgumentError: For a value that it cannot take.

    Attributes:
        task_id: EnvPool's id.
        defaults: The options of the task with their defaults.
    """

    task_id: ClassVar[str]
    defaults: ClassVar[dict[str, Any]]

    def __init__(self, **options: Any) -> None:
        for name in options:
            if name not in self.defaults and name not in _DRAWING:
                raise TypeError(f"{self.task_id} got an unexpected option {name!r}; it knows {sorted(self.defaults)}")
        self._drawing = {name: options.pop(name, default) for name, default in _DRAWING.items()}
        self.render_mode = self._drawing["render_mode"]
        if self.render_mode not in _RENDER_MODES:
            raise ArgumentError(f"render_mode: expected one of {_RENDER_MODES}, got {self.render_mode!r}")
        self.options = {name: value for name, value in options.items() if value != self.defaults[name]}

    @cached_property
    def layout(self) -> Layout:
        """EnvPool's arrays, and what they are here. Options, if there are any, are tried out first."""
        self._try_out()
        by_lives = bool(self.options.get("zero_discount_on_life_loss"))
        return layout_of(self.task_id, spec_of(self.task_id, self.options), tells_discount=by_lives)

    def describe(self, name: str) -> EnvSpec:
        """The contract of one env."""
        return self.layout.describe(name, {"render_modes": ["rgb_array"]}, self.render_mode)

    def simulate(self, num_envs: int, num_threads: int) -> BatchSim:
        """A simulator of EnvPool's pools, which are made as seeds come in."""
        return EnvPoolSim(self, num_envs, num_threads)

    def make(self, seeds: Sequence[int], num_threads: int) -> Any:
        """One of EnvPool's pools, with one env per seed."""
        self._try_out()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's remarks on the spaces that EnvPool makes from its specs
            return library().make_gymnasium(
                self.task_id,
                num_envs=len(seeds),
                num_threads=max(1, min(num_threads, len(seeds))),
                seed=list(seeds),
                **self.arguments,
            )

    @property
    def arguments(self) -> dict[str, Any]:
        """What EnvPool is to be told besides the number of envs."""
        return {**self.options, **{name: value for name, value in self._drawing.items() if value is not None}}

    def _try_out(self) -> None:
        """Try the user's options in another process first, because they may crash EnvPool, and with it the process."""
        if any(name != _LIMIT for name in self.arguments):
            try_out(self.task_id, self.arguments)


@cache
def kind(task_id: str) -> type[EnvPoolEnv]:
    """The class for one of EnvPool's ids; the id must exist."""
    config = spec_of(task_id, {}).config._asdict()
    defaults = {name: value for name, value in config.items() if name not in _POOLS_OWN}

    def __init__(self: EnvPoolEnv, **options: Any) -> None:
        EnvPoolEnv.__init__(self, **options)

    # The signature is where others look up which options there are.
    shown = {**defaults, **_DRAWING}
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown[name]) for name in shown]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = inspect.Signature([own, *keywords])  # type: ignore[attr-defined]
    limit = config[_LIMIT]
    members = {
        "__init__": __init__,
        "__doc__": f"EnvPool's {task_id}.",
        "__module__": TASKS,
        "task_id": task_id,
        "defaults": defaults,
        "max_episode_steps": None if limit == NO_LIMIT else limit,
        "reward_threshold": config.get("reward_threshold"),
    }
    return type(task_id, (EnvPoolEnv,), members)


def spec_of(task_id: str, options: dict[str, Any]) -> Any:
    """EnvPool's own description of a task.

    Raises:
        BackendUnavailable: If the family needs something that the machine does not have.
        ArgumentError: If an option has the wrong type, or makes no sense.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return library().make_spec(task_id, **options)
    except ImportError as error:
        raise BackendUnavailable(f"{task_id}: EnvPool cannot load it here: {error}") from error
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ArgumentError(f"{task_id} with {options}: EnvPool refuses it: {why}") from error
