"""Which env libraries are installed."""

from __future__ import annotations

from importlib.util import find_spec

_MODULES = {
    "gym": ("gymnasium", "gym"),
    "gym[atari]": ("ale_py", "atari_py"),
    "dm_control": ("dm_control",),
    "habitat": ("habitat",),
    "gym-super-mario-bros": ("gym_super_mario_bros",),
}


def get_available_libraries() -> dict[str, bool]:
    """Some libraries of envs, the same as TorchRL names, and whether each can be imported.

    Example:
        >>> from shoal.faces.torchrl import get_available_libraries
        >>> get_available_libraries()["gym"]
        True
    """
    return {name: any(find_spec(module) is not None for module in modules) for name, modules in _MODULES.items()}
