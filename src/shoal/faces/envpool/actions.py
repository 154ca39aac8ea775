"""Actions in all the forms that EnvPool accepts, turned into what the pool takes.

    step(array)                      one action per env, numbers of any type: they are cast, and floats cut off
    step(array, env_id)              for some envs; for one env, a single id and a single number will do
    step({"action": array, ...})     with "env_id" and "players.env_id" inside, dotted or nested; types are exact

The pool behind checks shapes, counts, ranges and ids; here is only what EnvPool's forms add to that. For envs in which
several play, there is more in ``player_actions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from shoal.errors import ActionError, MissingAction, SpecError, WrongDtype, WrongShape
from shoal.faces.envpool.arrayspec import INT32, face_dtype

if TYPE_CHECKING:
    from shoal.readiness import Ids
    from shoal.spec import Leaf, SpaceTree

_INT64 = np.dtype(np.int64)
_EXPECTED = "Expected shape"


class ActionReader:
    """Turns what a caller passes to ``step`` or ``send`` into actions and ids for the pool.

    Args:
        tree: The action space.
        num_envs: How many envs the pool has.
    """

    def __init__(self, tree: SpaceTree, num_envs: int) -> None:
        self._tree = tree
        self._num_envs = num_envs
        self._everyone = np.arange(num_envs)
        self._exact = tree.leaves[0].dtype if tree.is_single else None

    def __call__(self, action: Any, env_id: Ids) -> tuple[Any, Ids]:
        """Actions and ids in the pool's form.

        Raises:
            ActionError: If there is no such form; no env has moved.
        """
        env_id = listed(env_id)
        if action.__class__ is np.ndarray and action.dtype is self._exact and action.ndim:
            return action, env_id
        if isinstance(action, Mapping):
            env_id = self._ids_of(action, env_id)
            action = self._actions_of(action)
        rows = self._num_envs if env_id is None else np.size(env_id)
        if self._tree.is_single:
            return cast(self._tree.leaves[0], action, rows), env_id
        leaves = zip(self._tree.leaves, self._flat(action), strict=True)
        return self._tree.unflatten([cast(leaf, value, rows) for leaf, value in leaves]), env_id

    def _ids_of(self, action: Mapping[str, Any], env_id: Ids) -> Ids:
        """The ids in a dict, unless the call named others."""
        found, players = self._given_ids(action, env_id)
        if env_id is not None or players is None:
            return found
        if not np.array_equal(players, self._everyone if found is None else found):
            raise ActionError(f"players.env_id: there is one player per env, so it must equal env_id, got {players!r}")
        return found

    def _given_ids(self, action: Mapping[str, Any], env_id: Ids) -> tuple[Ids, Any]:
        """The envs that step, named by the dict or the call, and those that the dict says the actions are for."""
        within, players = self._given(action, "env_id"), self._given(action, "players.env_id")
        return (listed(within) if env_id is None else env_id), players

    def _given(self, action: Mapping[str, Any], name: str) -> Any:
        """Ids in a dict, under a dotted name or nested; None if there are none."""
        outer, _, inner = name.partition(".")
        nested = action.get(outer)
        ids = action.get(name, nested.get(inner) if inner and isinstance(nested, Mapping) else None)
        _check_dtype(name, ids, INT32)
        return ids

    def _flat(self, action: Any) -> list[Any]:
        """The leaves of an action, whatever they are."""
        try:
            return self._tree.flatten(action)
        except SpecError as error:
            raise ActionError(str(error)) from None

    def _actions_of(self, action: Mapping[str, Any]) -> Any:
        space = self._tree.space
        own_keys = space.spaces if isinstance(space, spaces.Dict) else ()
        if "action" in action and "action" not in own_keys:
            return _gather(space, action["action"], "action")
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            return _gather(space, action, "")
        raise MissingAction(f"the action dict has no 'action', only {list(action)}")


def _gather(space: Space[Any], value: Any, name: str) -> Any:
    """The nested action of a dict whose keys may be joined by dots, with the exact type at every leaf."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        _check_dtype(name, value, face_dtype(space))
        return value
    children = space.spaces if isinstance(space, spaces.Dict) else {str(i): s for i, s in enumerate(space.spaces)}
    if not isinstance(value, Mapping):
        if isinstance(space, spaces.Dict) or not isinstance(value, (tuple, list)) or len(value) != len(children):
            raise ActionError(f"{name}: expected {len(children)} parts called {list(children)}, got {value!r}")
        value = dict(zip(children, value, strict=True))
    parts = {key: _gather(child, _item(value, key, name), _join(name, key)) for key, child in children.items()}
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def _item(value: Mapping[str, Any], key: str, name: str) -> Any:
    if key in value:
        return value[key]
    below = {other[len(key) + 1 :]: item for other, item in value.items() if other.startswith(f"{key}.")}
    if not below:
        raise MissingAction(f"the action dict has no {_join(name, key)!r}, only {list(value)}")
    return below


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _check_dtype(name: str, value: Any, dtype: np.dtype[Any]) -> None:
    """Check that an array has the right type; lists and numbers have none, and objects may come in any array."""
    if isinstance(value, np.ndarray) and dtype.kind != "O" and value.dtype != dtype:
        raise WrongDtype(f'Expected dtype {dtype} with action "{name}", got {value.dtype}')


def listed(env_id: Any) -> Any:
    """Ids as a list or array, even if there is only one.

    Raises:
        WrongShape: If they are in an array of several dimensions.
    """
    if isinstance(env_id, np.ndarray):
        if env_id.ndim > 1:
            raise WrongShape(f'{_EXPECTED} (num_ids,) with action "env_id", got {env_id.shape}')
        return env_id if env_id.ndim else [env_id]
    return [env_id] if isinstance(env_id, (int, np.integer)) else env_id


def in_envpools_words(error: WrongShape) -> WrongShape:
    """The same error with a text that begins like EnvPool's."""
    is_said = str(error).startswith(_EXPECTED)
    return error if is_said else WrongShape(f"{_EXPECTED}s as in action_array_spec; {error}")


def cast(leaf: Leaf, values: Any, rows: int) -> Any:
    """An array of numbers for a leaf; where it wants whole numbers, others are converted as by ``astype``."""
    if not leaf.is_array:
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        return values  # ragged; the pool says so
    if not array.ndim and rows == 1 and not leaf.shape:
        array = array.reshape(1)
    if leaf.dtype.kind not in "iu":
        return array
    kind = array.dtype.kind
    if kind == "f":
        if not np.isfinite(array).all():
            raise ActionError(f"{leaf.path}: expected whole numbers, got {values!r}")
        with np.errstate(invalid="ignore"):
            return array.astype(_INT64)
    # Only what surely fits is cast here; the rest is for the pool to judge.
    return array.astype(_INT64) if kind == "b" or (kind == "i" and leaf.dtype == _INT64) else array
