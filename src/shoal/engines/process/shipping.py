"""Everything that is pickled, and why it may be.

    to a worker     env factories and the arguments of calls: code and values we were given to run
    from a worker   exceptions, specs at start-up, and the answers to explicit calls

Infos and observations are not here: they cross as plain data (``codec``), unless the pool was made with
``allow_pickle=True``. No other module of shoal touches pickle.
"""

from __future__ import annotations

import contextlib
import pickle
from types import FunctionType, MethodType
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
    except MemoryError as error:  # not the value's fault, and searching for a culprit would need even more
        raise MemoryError(f"cannot allocate the memory to pickle {what}") from error
    except Exception as error:
        raise ShippingError(f"{find_culprit(value, what) or what} cannot be pickled ({error})") from error


def unpickle_value(data: bytes | memoryview) -> Any:
    """The value behind ``pickle_value``."""
    return pickle.loads(data)  # noqa: S301 - between a pool and the workers it started


def pickle_exception(error: BaseException | None) -> bytes:
    """An exception as bytes that are known to load again, or no bytes at all.

    Many exception classes pickle but then fail to load, because their constructor takes other arguments. So loading is
    tried here, where a failure costs nothing.
    """
    try:
        data = pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL)
        return data if unpickle_exception(data) is not None else b""
    except BaseException:  # the author's code runs in both directions, and may even exit
        return b""


def unpickle_exception(data: bytes) -> BaseException | None:
    """The exception behind ``pickle_exception``; None if there is none, or if it cannot be raised."""
    try:
        error = pickle.loads(data) if data else None  # noqa: S301 - between a pool and the workers it started
    except (Exception, SystemExit):  # a class that only the worker can import: its text is all there is
        return None
    return error if isinstance(error, BaseException) else None


def find_culprit(value: Any, path: str, depth: int = 5) -> str | None:
    """The path of the innermost part that cannot be pickled, such as ``env_fn.closure.lock``."""
    if _pickles(value):
        return None
    return _find(value, path, depth, set()) or f"{path} ({type(value).__name__})"


def _find(value: Any, path: str, depth: int, seen: set[int]) -> str | None:
    """The innermost culprit in something that cannot be pickled; None if that only leads back to where we came from."""
    seen.add(id(value))
    parts: list[tuple[str, Any]] = []
    with contextlib.suppress(Exception):  # an odd object may not even allow inspection
        parts = _parts(value) if depth else []
    leads_back = False
    for name, part in parts:
        if id(part) in seen:
            leads_back = True
        elif not _pickles(part):
            # A value with a nameless part is a mere shell around it.
            found = _find(part, f"{path}.{name}", depth - 1, seen) if name else _find(part, path, depth, seen)
            if found:
                return found
    return None if leads_back else f"{path} ({type(value).__name__})"


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
        return True
    except Exception:
        return False


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What an object consists of, by name."""
    parts: list[tuple[str, Any]] = []
    if hasattr(value, "__wrapped__"):
        parts.append(("", value.__wrapped__))
    if isinstance(value, MethodType):
        parts.append(("__self__", value.__self__))
    if hasattr(value, "__code__"):
        parts += _parts_of_function(value)
    if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        parts += [("func", value.func), *((f"args[{i}]", arg) for i, arg in enumerate(value.args))]
        parts += list(value.keywords.items())
    if isinstance(value, dict):
        parts += [(repr(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        parts += [(f"[{i}]", item) for i, item in enumerate(value)]
    elif isinstance(getattr(value, "__dict__", None), dict):
        parts += list(vars(value).items())
    elif isinstance(getattr(type(value), "__slots__", None), tuple):
        parts += [(name, getattr(value, name)) for name in type(value).__slots__ if hasattr(value, name)]
    elif isinstance(value, type):
        # Besides what its author has written, a class has members of Python's own, which never pickle.
        members = vars(value).items()
        parts += [(name, item) for name, item in members if name[:2] != "__" or isinstance(item, FunctionType)]
    return parts


def _parts_of_function(function: Any) -> list[tuple[str, Any]]:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    parts = []
    for name, cell in zip(names, cells, strict=True):
        with contextlib.suppress(ValueError):  # the cell is still empty
            parts.append((f"closure.{name}", cell.cell_contents))
    scope = function.__globals__
    return parts + [(f"globals.{name}", scope[name]) for name in function.__code__.co_names if name in scope]
