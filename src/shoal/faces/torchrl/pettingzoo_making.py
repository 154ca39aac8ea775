"""PettingZoo envs from their names, as given in its registry or as the names of its modules."""

from __future__ import annotations

import importlib
import pkgutil
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shoal.errors import ArgumentError, BackendUnavailable

if TYPE_CHECKING:
    from types import ModuleType

_FAMILIES = ("atari", "butterfly", "classic", "sisl")


def pettingzoo_library() -> ModuleType:
    """The library.

    Raises:
        BackendUnavailable: If it is not installed.
    """
    if find_spec("pettingzoo") is None:
        raise BackendUnavailable("PettingZooEnv needs pettingzoo: pip install 'shoal[pettingzoo]'")
    return importlib.import_module("pettingzoo")


def available_tasks() -> list[str]:
    """All names, as ``family/name_v0``."""
    library = pettingzoo_library()
    if hasattr(library, "aec_registry"):
        return sorted({_as_module(name) for name in (*library.aec_registry, *library.parallel_registry)})
    found = []
    for family in _FAMILIES:
        package = importlib.import_module(f"{library.__name__}.{family}")
        modules = (module.name for module in pkgutil.iter_modules(package.__path__))
        found += [f"{family}/{name}" for name in modules if re.search(r"_v\d+$", name)]
    return sorted(found)


def make_task(task: str, is_parallel: bool, kwargs: dict[str, Any]) -> Any:
    """The env with a name, given with its family or without.

    Raises:
        ArgumentError: If there is no such env, or not in this form.
    """
    known, wanted = available_tasks(), _as_module(task)
    matching = [name for name in known if wanted in (name, name.rpartition("/")[2])]
    if not matching:
        raise ArgumentError(f"task: there is no {task!r}; there are {known}")
    library, name = pettingzoo_library(), matching[0]
    if not hasattr(library, "aec_registry"):
        module = importlib.import_module(f"pettingzoo.{name.replace('/', '.')}")
        maker = getattr(module, "parallel_env" if is_parallel else "env", None)
        made = None if maker is None else maker(**kwargs)
    else:
        kind = "parallel" if is_parallel else "aec"
        registry = library.parallel_registry if is_parallel else library.aec_registry
        registered = {_as_module(own): own for own in registry}
        made = library.make(kind, registered[name], **kwargs) if name in registered else None
    if made is None:
        form = "act together (parallel=False makes it)" if is_parallel else "take turns (parallel=True makes it)"
        raise ArgumentError(f"task: {task} has no form in which agents {form}")
    return made


def _as_module(name: str) -> str:
    """The name in the form of a module's: ``classic/rps_v2`` for ``classic/rps-v2``."""
    return re.sub(r"-v(\d+)$", r"_v\1", name)
