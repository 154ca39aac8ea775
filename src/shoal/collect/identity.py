"""What a dataset says about the envs and the policy behind it, as plain data that a later run can be compared with."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from shoal.recipes import MakeRegistered
from shoal.recording import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.collect.collector import Policy
    from shoal.pool import Pool

Kwargs = dict[str, Any] | list[dict[str, Any]]


def kwargs_of(pool: Pool) -> Kwargs:
    """What the envs of a pool were made with: one dict, or one per env if they differ."""
    config = pool.engine.config
    if config.registered is not None:  # an id with a compiled env, which was told the registered keywords too
        usual = plain(getattr(gym.registry.get(config.registered.id), "kwargs", {}))
        given = plain(config.registered.kwargs)
        return {name: value for name, value in given.items() if name not in usual or usual[name] != value}
    factories = [config.factories[i] for i in range(pool.num_envs)]
    known = {id(factory): plain(_arguments(factory)) for factory in factories}
    each = [known[id(factory)] for factory in factories]
    return each if any(own != each[0] for own in each) else each[0]


def _arguments(factory: Any) -> dict[str, Any]:
    kwargs: dict[str, Any] = dict(getattr(factory, "kwargs", {}))
    function = None if isinstance(factory, MakeRegistered) else getattr(factory, "function", factory)
    while isinstance(function, functools.partial):
        kwargs = {**({"*": function.args} if function.args else {}), **function.keywords, **kwargs}
        function = function.func
    return kwargs


def time_limit_of(pool: Pool) -> int | None:
    """After how many steps episodes of a pool are cut; None if they are not, or the envs keep it to themselves."""
    limit: int | None = pool.engine.config.max_episode_steps
    return getattr(pool.spec.registered, "max_episode_steps", None) if limit is None else limit


def plain(value: Any) -> Any:
    """A value as JSON can hold it: of an object that it cannot hold, the class; of a function, its place.

    Example:
        >>> plain({"size": (3, 4), "seed": np.int64(1), "kind": complex})
        {'size': [3, 4], 'seed': 1, 'kind': 'builtins:complex'}
    """
    try:
        return json.loads(json.dumps(value, default=_simpler))
    except (TypeError, ValueError, RecursionError):
        return place_of(value)


def _simpler(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else place_of(value)


def name_of(policy: Policy | None) -> str:
    """The name of a policy in a dataset: its place, and where that says too little, a digest of its code.

    That is so for lambdas, for functions within functions or in ``__main__``, and for partials, which are told apart by
    their arguments. Objects go by their class.

    Example:
        >>> name_of(None), name_of(np.argmax)
        ('random', 'numpy:argmax')
        >>> name_of(lambda obs: obs > 0) == name_of(lambda obs: obs < 0)
        False
    """
    if policy is None:
        return "random"
    named, held = _named(policy)
    place = place_of(named)
    if _is_there(named, place) and not held:
        return place
    told = [plain(held), *(_told(function) for function in _functions(named))]
    return f"{place}#{hashlib.sha256(repr(told).encode()).hexdigest()[:8]}"


def _named(policy: Any) -> tuple[Any, list[Any]]:
    """The function or class behind a policy, and what partials around it hold."""
    held: list[Any] = []
    while isinstance(policy, functools.partial):
        held += [policy.args, policy.keywords]
        policy = policy.func
    if isinstance(policy, MethodType):
        policy = policy.__func__
    return (policy if hasattr(policy, "__qualname__") else type(policy)), held


def _is_there(named: Any, place: str) -> bool:
    """Whether this is what another program, too, would find in its place."""
    module, _, path = place.partition(":")
    found = None if module == "__main__" else sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is named


def _functions(named: Callable[..., Any] | type) -> Iterator[FunctionType]:
    members = vars(named).values() if isinstance(named, type) else [named]
    return (member for member in members if isinstance(member, FunctionType))


def _told(function: FunctionType) -> list[Any]:
    """What a function does, as far as its code and the plain values in it say."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]  # which is empty
    return [_code(function.__code__), plain([function.__defaults__, function.__kwdefaults__, cells])]


def _code(code: CodeType) -> list[Any]:
    return [code.co_code, code.co_names, [_constant(value) for value in code.co_consts]]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    # The order of a set is another one in every process.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
