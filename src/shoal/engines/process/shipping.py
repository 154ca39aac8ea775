"""Everything that is pickled, and why it may be.

    to a worker     env factories and the arguments of calls: code and values we were given to run
    from a worker   exceptions, specs at start-up, and the answers to explicit calls

Infos and observations are not here: they cross as plain data (``codec``), unless the pool was made with
``allow_pickle=True``. No other module of shoal touches pickle.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle

from shoal.errors import ShippingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def pack_factories(factories: Sequence[Callable[[], Any]]) -> bytes:
    """Env factories as bytes: by reference where the worker can import them, by value otherwise.

    Raises:
        ShippingError: Naming the attribute that cannot be sent.
    """
    reason: Exception | None = None
    try:
        data = pickle.dumps(list(factories), protocol=pickle.HIGHEST_PROTOCOL)
        # A worker does not run the user's script again, so what lives in __main__ must travel by value.
        if b"__main__" not in data and b"__mp_main__" not in data:
            return data
    except Exception as error:
        reason = error
    try:
        return bytes(cloudpickle.dumps(list(factories), protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        culprits = (find_culprit(factory, "env_fn") for factory in factories)
        culprit = next((found for found in culprits if found), "env_fn")
        raise ShippingError(
            f"the env factory cannot be sent to a worker process: {culprit} ({reason or error}). "
            "Make the object inside the factory instead of capturing it, or use engine='thread' or engine='serial'"
        ) from error


def unpack_factories(data: bytes) -> list[Callable[[], Any]]:
    """The factories, in the worker."""
    return list(pickle.loads(data))  # noqa: S301 - sent by the process that started us


def pickle_value(value: Any, what: str) -> bytes:
    """Any value as bytes.

    Raises:
        ShippingError: Naming the part that cannot be sent.
    """
    try:
        return bytes(cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise ShippingError(f"{find_culprit(value, what) or what} cannot be pickled ({error})") from error


def unpickle_value(data: bytes | memoryview) -> Any:
    """The value behind ``pickle_value``."""
    return pickle.loads(data)  # noqa: S301 - between a pool and the workers it started


def pickle_exception(error: BaseException | None) -> bytes:
    """An exception as bytes that are known to load again, or no bytes at all.

    Many exception classes pickle and then fail to load, because their constructor takes other arguments: so it is
    tried here, where a failure costs nothing.
    """
    try:
        data = pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)  # noqa: S301 - our own bytes
        return data
    except Exception:
        return b""


def find_culprit(value: Any, path: str, depth: int = 4) -> str | None:
    """The path of the innermost part that cannot be pickled, such as ``env_fn.closure.lock``."""
    if _pickles(value):
        return None
    if depth:
        for name, part in _parts(value):
            found = find_culprit(part, f"{path}.{name}", depth - 1)
            if found:
                return found
    return f"{path} ({type(value).__name__})"


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
        return True
    except Exception:
        return False


def _parts(value: Any) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = []
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = getattr(value, "__closure__", None) or ()
        parts += [(f"closure.{name}", cell.cell_contents) for name, cell in zip(code.co_freevars, cells, strict=True)]
        scope = getattr(value, "__globals__", {})
        parts += [(f"globals.{name}", scope[name]) for name in code.co_names if name in scope]
    if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        parts += [("func", value.func), *((f"args[{i}]", arg) for i, arg in enumerate(value.args))]
        parts += list(value.keywords.items())
    if isinstance(value, dict):
        parts += [(repr(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        parts += [(f"[{i}]", item) for i, item in enumerate(value)]
    elif isinstance(getattr(value, "__dict__", None), dict):
        parts += list(vars(value).items())
    elif isinstance(value, type):
        parts += [(name, item) for name, item in vars(value).items() if not name.startswith("__")]
    return parts
