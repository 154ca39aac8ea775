"""A pool inside compiled JAX code: ``handle, recv, send, step = envs.xla()``.

The envs stay where they are; JAX calls back to them from its compiled code. The handle keeps the calls in order: each
call takes a handle and returns the next one, so a later call waits for an earlier one, even inside ``jit``,
``fori_loop`` and ``scan``. Every batch has ``batch_size`` rows.

JAX has to know all shapes beforehand, so infos have the ids, the counts and the fields of compiled envs, but not what
Python envs report now and then.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import StateError, XlaUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

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
    numbers = itertools.count(1)

    def next_handle() -> np.ndarray[Any, Any]:
        return np.frombuffer(next(numbers).to_bytes(8, "little"), np.uint8)

    def take(_: Any) -> Any:
        return next_handle(), _in_form(batch_form, face.recv())

    def give(_: Any, *action: Any) -> Any:
        face.send(*jax.tree.map(np.array, action))
        return next_handle()

    def recv(handle: Any) -> Any:
        return io_callback(take, (handle_form, batch_form), handle)

    def send(handle: Any, action: Any, env_id: Any = None) -> Any:
        return io_callback(give, handle_form, handle, *((action,) if env_id is None else (action, env_id)))

    def step(handle: Any, action: Any, env_id: Any = None) -> Any:
        return recv(send(handle, action, env_id))

    return jax.numpy.zeros(8, np.uint8), recv, send, step


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
