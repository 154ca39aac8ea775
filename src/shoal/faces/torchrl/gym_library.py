"""Which library ``gym`` is: Gymnasium, unless another is chosen; and the spaces of old Gym as Gymnasium's."""

from __future__ import annotations

import importlib
from contextlib import ContextDecorator
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    Backend = str | ModuleType | Callable[[], Any]

_DEFAULTS = ("gymnasium", "gym")
# The innermost choice is the last; nothing chosen means the default.
_chosen: list[ModuleType] = []


def gym_backend(submodule: str | None = None) -> ModuleType:
    """The library that envs are made with, or one of its submodules.

    Example:
        >>> from shoal.faces.torchrl import gym_backend
        >>> gym_backend().__name__, gym_backend("wrappers").__name__
        ('gymnasium', 'gymnasium.wrappers')
    """
    backend = _chosen[-1] if _chosen else _default()
    return backend if submodule is None else importlib.import_module(f"{backend.__name__}.{submodule}")


def _default() -> ModuleType:
    for name in _DEFAULTS:
        if find_spec(name) is not None:
            return importlib.import_module(name)
    raise BackendUnavailable(f"none of {_DEFAULTS} is installed: pip install gymnasium")


class set_gym_backend(ContextDecorator):
    """Chooses the library that envs are made with: for a block, for a function, or from now on (``set``).

    Args:
        backend: Its name, its module, or a function that returns the module.

    Attributes:
        backend: The module.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, set_gym_backend
        >>> with set_gym_backend("gymnasium"):
        ...     env = GymEnv("CartPole-v1")
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def backend(self) -> ModuleType:  # noqa: D102
        backend: Any = self._backend
        if callable(backend) and not isinstance(backend, ModuleType):
            backend = backend()
        if isinstance(backend, ModuleType):
            return backend
        try:
            return importlib.import_module(backend)
        except ModuleNotFoundError as error:
            raise BackendUnavailable(f"gym backend {backend!r} is not installed ({error})") from error

    def set(self) -> None:
        """Choose it from now on, in place of the latest choice."""
        _chosen[-1:] = [self.backend]

    def __enter__(self) -> Self:
        _chosen.append(self.backend)
        return self

    def __exit__(self, *exc: object) -> None:
        _chosen.pop()


def as_gymnasium(space: Any) -> Any:
    """A Gym space as a Gymnasium space; anything else is returned unchanged.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> as_gymnasium(Discrete(2))
        Discrete(2)
    """
    if isinstance(space, spaces.Space) or not type(space).__module__.startswith("gym."):
        return space
    kind = type(space).__name__
    if kind == "Dict":
        return spaces.Dict({key: as_gymnasium(part) for key, part in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([as_gymnasium(part) for part in space.spaces])
    make = _SPACES.get(kind)
    return space if make is None else make(space)


_SPACES: dict[str, Callable[[Any], Any]] = {
    "Box": lambda space: spaces.Box(space.low, space.high, dtype=space.dtype.type),
    "Discrete": lambda space: spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0))),
    "MultiDiscrete": lambda space: spaces.MultiDiscrete(space.nvec),
    "MultiBinary": lambda space: spaces.MultiBinary(space.n),
}
