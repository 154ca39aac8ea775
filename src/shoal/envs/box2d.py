"""Gymnasium's Box2D envs under EnvPool's ids.

They are Gymnasium's own; all that is added are ids that Gymnasium no longer has (``LunarLander-v2``). EnvPool has them
beside the newer ones, with the same env behind both.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

__all__ = ["OLD_IDS", "check_installed", "is_box2ds"]

OLD_IDS = {
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "CarRacing-v2": "CarRacing-v3",
}

_HOME = "gymnasium.envs.box2d"


def is_box2ds(env: Any) -> bool:
    """Whether something is Gymnasium's registration of one of its Box2D envs.

    Example:
        >>> import gymnasium
        >>> is_box2ds(gymnasium.spec("LunarLander-v3")), is_box2ds("LunarLander-v3")
        (True, False)
    """
    return str(getattr(env, "entry_point", "")).startswith(_HOME)


def check_installed(registered: EnvSpec) -> None:
    """Check that everything an env needs is installed, if it is one of Gymnasium's Box2D envs.

    Raises:
        BackendUnavailable: If something is missing.
    """
    if not is_box2ds(registered):
        return
    # CarRacing observes a picture, which pygame draws.
    needs = ("Box2D", "pygame") if registered.name == "CarRacing" else ("Box2D",)
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendUnavailable(f"{registered.id} needs {' and '.join(missing)}: pip install 'shoal[box2d]'")
