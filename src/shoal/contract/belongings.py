"""What surrounds an env: its spaces, its render mode, the way to a worker, and ``close``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from shoal.contract.findings import telling
from shoal.engines.process.shipping import pack_factories
from shoal.errors import ShippingError
from shoal.spec import EnvSpec, SpaceTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.contract.findings import Findings


def judge_spaces(env: Any, found: Findings) -> bool:
    """Whether both spaces are Gymnasium's, so that observations and actions can be judged by them."""
    found.judge("spaces")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, Space):
            old = type(space).__module__.partition(".")[0] == "gym"
            got = "a space of the old gym package" if old else _got(space)
            hint = (
                "Import spaces from gymnasium in place of gym."
                if old
                else f"Set self.{name} in __init__, for example to gymnasium.spaces.Discrete(2)."
            )
            found.add("error", "spaces", f"{name}: expected a gymnasium Space, got {got}", hint, key=name)
    return not found.has_error("spaces")


def _got(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"


def judge_spaces_stay(env: Any, before: tuple[Any, Any], found: Findings) -> None:
    """Whether the spaces are what they were before the walk."""
    for name, old in zip(("observation_space", "action_space"), before, strict=True):
        new = getattr(env, name, None)
        # Identity first, because a user's own space class may have no __eq__.
        if new is not old and new != old:
            hint = (
                "Set it once, in __init__, as wide as it will ever be: memory is laid out by it before the first reset."
            )
            found.add("error", "spaces", f"{name} was {old} and is now {new}", hint, key=f"{name} moved")


def judge_twins(env: Any, other: Any, found: Findings) -> None:
    """Whether two instances have the same spaces, as the envs of one pool must."""
    differs = _spec(env).difference(_spec(other))
    if differs:
        hint = (
            "All envs of a pool share one layout: do not let sizes or bounds depend on chance or on other instances. "
            "A space class of your own needs an __eq__."
        )
        found.add("error", "spaces", f"a second instance differs from the first: {differs}", hint, key="twins")


def _spec(env: Any) -> EnvSpec:
    return EnvSpec(SpaceTree(env.observation_space, "observation"), SpaceTree(env.action_space, "action"), "")


def judge_render(env: Any, found: Findings) -> None:
    """Whether the render mode is declared and, if ``render`` returns a picture, whether that is a valid one."""
    found.judge("render")
    metadata, mode = getattr(env, "metadata", None), getattr(env, "render_mode", None)
    if metadata is not None and not isinstance(metadata, Mapping):
        hint = 'Write metadata = {"render_modes": [...]}.'
        found.add("error", "render", f"metadata: expected a dict, got {_got(metadata)}", hint, key="metadata")
        return
    if mode is None:
        return
    declared = list((metadata or {}).get("render_modes") or ())
    if mode not in declared:
        hint = f'Add it to the class: metadata = {{"render_modes": {[*declared, mode]!r}}}.'
        message = f"render_mode is {mode!r}, but metadata['render_modes'] is {declared}"
        found.add("warning", "render", message, hint, key="mode")
    if mode == "rgb_array":
        _judge_picture(env, found)


def _judge_picture(env: Any, found: Findings) -> None:
    try:
        picture = env.render()
    except (Exception, SystemExit) as error:
        hint = "With render_mode='rgb_array', render() has to work after every reset and step."
        found.add("error", "render", f"render() raised {telling(error)}", hint)
        return
    is_array = isinstance(picture, np.ndarray)
    if not (is_array and picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8):
        got = f"{picture.dtype} of shape {picture.shape}" if is_array else type(picture).__name__
        message = f"render() must return a uint8 array of shape (height, width, 3), got {got}"
        found.add("error", "render", message, "Turn the picture into such an array, or use another render_mode.")


def judge_shipping(factory: Callable[[], Any], found: Findings) -> None:
    """Whether what makes the env can go to a worker process."""
    found.judge("shipping")
    try:
        # Not unpacked again: in the process that it comes from, cloudpickle would write the copy's attributes to the
        # class that exists already.
        pack_factories([factory])
    except ShippingError as error:
        message, _, hint = str(error).partition("). ")
        found.add(
            "warning",
            "shipping",
            f"{message})" if hint else message,
            f"{hint}." if hint else "Make it inside the factory.",
        )


def judge_close(env: Any, found: Findings) -> None:
    """Whether the env can be closed, and closed again."""
    found.judge("close")
    try:
        env.close()
    except (Exception, SystemExit) as error:
        hint = "Define close(self), or inherit it from gymnasium.Env; it has to work whatever came before."
        found.add("error", "close", f"close() raised {telling(error)}", hint)
        return
    try:
        env.close()
    except (Exception, SystemExit) as error:
        hint = "Do nothing if it is closed already: a with block and a finally may both call it."
        found.add("warning", "close", f"a second close() raised {telling(error)}", hint)
