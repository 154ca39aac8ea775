"""The envs of a batched env before they are built: what makes each, and with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.batched.creator import EnvCreator, get_env_metadata, is_env

if TYPE_CHECKING:
    from shoal.faces.torchrl.metadata import EnvMetaData

Maker = Callable[..., Any]
Kwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Members:
    """One maker and its keyword arguments per env.

    Args:
        count: How many envs.
        makers: One callable for all, or a list with one per env.
        kwargs: Keyword arguments for all, or a list with one mapping per env.

    Attributes:
        makers: One per env.
        kwargs: One dict per env.
        is_single_task: Whether one callable makes them all.
        is_updated: Whether the arguments have been changed since they were given.
    """

    def __init__(self, count: int, makers: Maker | Sequence[Maker], kwargs: Kwargs = None) -> None:
        self.is_single_task = not isinstance(makers, (list, tuple))
        given: list[Any] = list(makers) if isinstance(makers, (list, tuple)) else [makers] * count
        if len(given) != count:
            raise TensorEnvError(f"create_env_fn: expected {count} callables, one per env, got {len(given)}")
        for maker in given:
            _check_maker(maker)
        if not self.is_single_task and all(maker is given[0] for maker in given):
            self.is_single_task = True
        self.is_updated = False
        self.makers: list[Maker] = given
        self.kwargs = _each(kwargs, count)
        if any(self.kwargs) and any(isinstance(maker, EnvCreator) for maker in given):
            raise TensorEnvError("create_env_kwargs: an EnvCreator has its own; use make_variant() for others")

    def __len__(self) -> int:
        return len(self.makers)

    def update(self, kwargs: Kwargs) -> None:
        """Change keyword arguments: what is given is added to what was there."""
        self.is_updated = True
        for own, more in zip(self.kwargs, _each(kwargs, len(self)), strict=True):
            own.update(more)

    def build(self, index: int) -> Any:
        """Make one env."""
        return self.makers[index](**self.kwargs[index])

    def kinds(self) -> list[int]:
        """For each env, the first one that is made in the same way."""
        firsts: list[int] = []
        kinds = []
        for i, (maker, kwargs) in enumerate(zip(self.makers, self.kwargs, strict=True)):
            same = (k for k in firsts if self.makers[k] is maker and same_kwargs(self.kwargs[k], kwargs))
            kind = next(same, i)
            if kind == i:
                firsts.append(i)
            kinds.append(kind)
        return kinds

    def metadata(self, *, by_kwargs: bool = False) -> list[EnvMetaData]:
        """What each env is, from throw-away ones: one per function that makes them.

        Args:
            by_kwargs: Whether envs of one function may differ by their arguments, so that one is made for each set.
        """
        kinds = [0] * len(self) if self.is_single_task and not by_kwargs else self.kinds()
        known = {kind: get_env_metadata(self.makers[kind], self.kwargs[kind]) for kind in dict.fromkeys(kinds)}
        return [known[kind] for kind in kinds]


def same_kwargs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two envs are made with the same arguments; what cannot be compared counts as different."""
    if a is b or (not a and not b):
        return True
    try:
        return bool(a == b)
    except Exception:  # tensors, arrays: their == is not a single yes or no
        return False


def _check_maker(maker: Any) -> None:
    if not callable(maker) or is_env(maker):
        what = f"the env {type(maker).__name__}" if is_env(maker) else f"{type(maker).__name__} {maker!r}"
        raise _NoMaker(f"create_env_fn: expected a function that makes an env, got {what}")


def _each(kwargs: Kwargs, count: int) -> list[dict[str, Any]]:
    if kwargs is None:
        return [{} for _ in range(count)]
    if isinstance(kwargs, Mapping):
        # Each env may change its own.
        return [deepcopy(dict(kwargs)) for _ in range(count)]
    if len(kwargs) != count:
        raise TensorEnvError(f"create_env_kwargs: expected {count} mappings, one per env, got {len(kwargs)}")
    return [dict(own) for own in kwargs]


class _NoMaker(TensorEnvError, TypeError):
    """Something else was given in place of a function that makes an env."""
