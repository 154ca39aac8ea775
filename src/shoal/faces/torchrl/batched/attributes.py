"""Attributes of all envs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.errors import FaultError
from shoal.faces.torchrl.batched.remote import attribute_of, call_attribute_of, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.faces.torchrl.batched.hosts import Host


def attributes_here(envs: Sequence[Any], name: str) -> Any:
    """The attribute of each env, in a list; if they are methods, a function that calls each and returns a list.

    Raises:
        AttributeError: If an env lacks it.
    """
    found = [getattr(env, name) for env in envs]
    if not all(callable(value) for value in found):
        return found

    def call_each(*args: Any, **kwargs: Any) -> list[Any]:
        return [value(*args, **kwargs) for value in found]

    return call_each


class RemoteAttribute:
    """An attribute of envs that live elsewhere, fetched when it is looked at.

    Iterate over it, index it or compare it with a list to get the values; call it to call the method of every env; use
    a further dot to get an attribute of the attribute.

    Example:
        >>> from functools import partial
        >>> from shoal.faces.torchrl import GymEnv, ParallelEnv
        >>> env = ParallelEnv(2, partial(GymEnv, "Pendulum-v1", g=9.81))
        >>> list(env.g)
        [9.81, 9.81]
        >>> env.close()
    """

    def __init__(self, host: Callable[[], Host], ids: Sequence[int], path: tuple[str, ...]) -> None:
        self._host = host
        self._ids = list(ids)
        self._path = path
        self._apply(kind_of, path)

    def _apply(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        try:
            return self._host().apply(self._ids, function, [args] * len(self._ids))
        except FaultError as error:
            if isinstance(error.__cause__, AttributeError):
                raise AttributeError(str(error.__cause__)) from error
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the method of every env."""
        return self._apply(call_attribute_of, self._path, args, kwargs)

    def __getattr__(self, name: str) -> RemoteAttribute:
        if name.startswith("_"):
            raise AttributeError(name)
        return RemoteAttribute(self._host, self._ids, (*self._path, name))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._apply(attribute_of, self._path))

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (list, tuple, RemoteAttribute)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{'.'.join(self._path)} of {len(self._ids)} envs>"
