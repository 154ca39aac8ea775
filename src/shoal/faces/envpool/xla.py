"""A pool inside compiled JAX code: ``handle, recv, send, step = envs.xla()``.

The envs stay where they are; JAX calls back to them from its compiled code. The handle keeps the calls in order: each
call takes a handle and returns the next one, so a later call waits for an earlier one, even inside ``jit``,
``fori_loop`` and ``scan``. Every batch has ``batch_size`` rows.

Actions that are JAX's arrays, and all that come in dicts, have the types of ``action_array_spec``, or what JAX makes of
those; the check is done before anything is compiled.

JAX has to know all shapes beforehand, so infos have the ids, the counts and the fields of compiled envs, but not what
Python envs report now and then.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import StateError, WrongDtype, WrongShape, XlaUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.faces.envpool.arrayspec import ArraySpec
    from shoal.faces.envpool.base import EnvPool

Functions = tuple[Any, "Callable[..., Any]", "Callable[..., Any]", "Callable[..., Any]"]


def xla_functions(face: EnvPool) -> Functions:
    """The handle of a pool, and ``recv``, ``send`` and ``step`` for compiled JAX code.

    Raises:
        XlaUnavailable: If jax is not installed.
        StateError: If observations have no fixed shape.
    """
    if face.pool.spec.players:
        raise StateError("xla: the number of players in a batch may change, and JAX needs to know it beforehand")
    try:
        import jax
        from jax.experimental import io_callback
    except ImportError as error:
        raise XlaUnavailable("XLA is unavailable: xla() needs jax: pip install 'shoal[jax]'") from error
    if face.pool.spec.observation.has_objects:
        raise StateError("xla: observations that are not arrays cannot enter JAX")
    example = face.example()
    batch_form = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jax.dtypes.canonicalize_dtype(a.dtype)), example)
    handle_form = jax.ShapeDtypeStruct((8,), np.uint8)
    actions = _Actions(face.spec.action_array_spec)
    numbers = itertools.count(1)

    def next_handle() -> np.ndarray[Any, Any]:
        return np.frombuffer(next(numbers).to_bytes(8, "little"), np.uint8)

    def take(_: Any) -> Any:
        return next_handle(), _in_form(batch_form, face.recv())

    def give(_: Any, action: Any, *env_id: Any) -> Any:
        face.send(actions.restored(action), *map(np.array, env_id))
        return next_handle()

    def recv(handle: Any) -> Any:
        return io_callback(take, (handle_form, batch_form), handle)

    def send(handle: Any, action: Any, env_id: Any = None) -> Any:
        actions.check(action)
        return io_callback(give, handle_form, handle, *((action,) if env_id is None else (action, env_id)))

    def step(handle: Any, action: Any, env_id: Any = None) -> Any:
        return recv(send(handle, action, env_id))

    return jax.numpy.zeros(8, np.uint8), recv, send, step


class _Actions:
    """Actions between a pool and JAX, which may have narrower types.

    Args:
        arrays: What an action consists of.
    """

    def __init__(self, arrays: Mapping[str, ArraySpec]) -> None:
        import jax

        self._arrays = arrays
        self._jaxs = jax.dtypes.canonicalize_dtype
        self._name = partial(jax.tree_util.keystr, simple=True, separator=".")
        self._parts = jax.tree_util.tree_leaves_with_path
        self._map = jax.tree_util.tree_map_with_path

    def check(self, action: Any) -> None:
        """Check an action before it is compiled or sent.

        Raises:
            WrongDtype: If a part has another type than its spec.
            WrongShape: If what a part has for one env is of another shape.
        """
        for path, value in self._parts(action):
            name, array = self._spec(path)
            # Lists and numbers have no type, and numpy's arrays are cast as by ``step``.
            if array is None or not hasattr(value, "dtype"):
                continue
            expected, is_cast = self._jaxs(array.dtype), not path and isinstance(value, np.ndarray)
            if self._jaxs(value.dtype) != expected and not is_cast:
                raise WrongDtype(f'Expected dtype {expected} with action "{name}", got {value.dtype}')
            inner = tuple(size for size in array.shape if size != -1)
            if value.shape[1:] != inner or (inner and not value.shape):
                raise WrongShape(f'Expected shape {(-1, *inner)} with action "{name}", got {value.shape}')

    def restored(self, action: Any) -> Any:
        """An action that has come out of JAX, in numpy arrays of the caller's own, in the types of the pool."""
        return self._map(self._restored_part, action)

    def _restored_part(self, path: Any, value: Any) -> Any:
        array = self._spec(path)[1]
        if array is None or value.dtype != self._jaxs(array.dtype):
            return np.array(value)
        return np.array(value, array.dtype)

    def _spec(self, path: Any) -> tuple[str, ArraySpec | None]:
        """The name of a part of an action, and its spec; objects have none."""
        name = self._name(path) or "action"
        array = self._arrays.get(name) or self._arrays.get(name.removeprefix("action."))
        return name, None if array is None or array.dtype.kind == "O" else array


def _in_form(form: Any, value: Any) -> Any:
    """The parts of a result that have a fixed form, in JAX's types."""
    if isinstance(form, dict):
        return {key: _in_form(part, value[key]) for key, part in form.items()}
    if isinstance(form, tuple):
        if hasattr(form, "_fields"):
            return type(form)(
                *(_in_form(part, getattr(value, name)) for name, part in zip(form._fields, form, strict=True))
            )
        return tuple(_in_form(part, item) for part, item in zip(form, value, strict=True))
    return np.asarray(value, form.dtype)
