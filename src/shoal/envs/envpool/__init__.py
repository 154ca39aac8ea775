"""EnvPool's C++ envs as native envs, for ``engine="envpool"``.

``kind_of`` returns the ``NativeEnv`` class of a task id, which simulates with EnvPool's own pools. The package is
needed, and imported, only when such a class is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError, BackendUnavailable

if TYPE_CHECKING:
    from shoal.envs.envpool.env import EnvPoolEnv

__all__ = ["kind_of", "library"]

INSTALL = "pip install 'shoal[envpool]'"


def library() -> Any:
    """The package itself.

    Raises:
        BackendUnavailable: If it is not installed, or too old.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of libraries that it imports
            found = importlib.import_module("envpool")
    except ImportError as error:
        raise BackendUnavailable(f"engine='envpool' needs EnvPool ({error}): {INSTALL}") from error
    if not hasattr(found, "make_gymnasium") or not hasattr(found, "list_all_envs"):
        raise BackendUnavailable(f"engine='envpool' needs a newer EnvPool: {INSTALL}")
    return found


def kind_of(task_id: Any) -> type[EnvPoolEnv]:
    """The class of the env that EnvPool has under this id; such a class itself is returned as it is.

    Raises:
        ArgumentError: If EnvPool has no such env, or several play in it.
        BackendUnavailable: If EnvPool is not installed, or lacks what this env needs.
    """
    from shoal.envs.envpool.env import EnvPoolEnv, kind

    if isinstance(task_id, type) and issubclass(task_id, EnvPoolEnv):
        return task_id
    if not isinstance(task_id, str):
        raise ArgumentError(f"engine: the envpool engine runs EnvPool's own envs, by their ids, and not {task_id!r}")
    known = library().list_all_envs()
    if task_id not in known:
        close = difflib.get_close_matches(task_id, known, n=3)
        hint = f"did you mean {', '.join(map(repr, close))}?" if close else "envpool.list_all_envs() lists them all"
        raise ArgumentError(f"EnvPool has no task {task_id!r}; {hint}")
    return kind(task_id)
