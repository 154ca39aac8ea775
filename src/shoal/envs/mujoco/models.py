"""Where models come from: Gymnasium's files, other files, text, specs, or a model that is already compiled."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import mujoco

from shoal.envs.mujoco.contact_forces import add_contact_forces
from shoal.errors import ArgumentError

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


def find_file(name: str) -> Path:
    """The file of a model: Gymnasium's if it has one of this name, else a path of the user's.

    Raises:
        ArgumentError: If there is no such file.
    """
    is_path = name.startswith((".", "/", "~"))
    path = Path(name).expanduser() if is_path or not (ASSETS / name).is_file() else ASSETS / name
    if not path.is_file():
        beside = "" if is_path else f", nor has Gymnasium one of this name in {ASSETS}"
        raise ArgumentError(f"model: there is no file {path.absolute()}{beside}")
    return path


def load_model(source: Any, *, with_contact_forces: bool = False) -> mujoco.MjModel:
    """A compiled model.

    Args:
        source: An ``MjModel``, an ``MjSpec``, the text of a model, or the name of a file.
        with_contact_forces: Whether steps compute ``cfrc_ext`` and its kin.

    Raises:
        ArgumentError: If it is none of those, or cannot be compiled.
    """
    if isinstance(source, mujoco.MjModel):
        if with_contact_forces:
            raise ArgumentError("model: contact forces need an MjSpec, a file or a text, not a compiled MjModel")
        return source
    try:
        spec = _spec(source)
        if with_contact_forces:
            add_contact_forces(spec)
        with warnings.catch_warnings():
            if _is_gymnasiums(source):  # users need not hear what is out of date in these files
                warnings.simplefilter("ignore", UserWarning)
            return spec.compile()
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"model: MuJoCo cannot compile it: {error}") from error


def _is_gymnasiums(source: Any) -> bool:
    return isinstance(source, str) and not source.lstrip().startswith("<") and (ASSETS / source).is_file()


def _spec(source: Any) -> mujoco.MjSpec:
    if isinstance(source, mujoco.MjSpec):
        return source.copy()
    if isinstance(source, str) and source.lstrip().startswith("<"):
        return mujoco.MjSpec.from_string(source)
    if isinstance(source, Path):
        source = str(source.absolute())
    if isinstance(source, str):
        return mujoco.MjSpec.from_file(str(find_file(source)))
    raise ArgumentError(f"model: expected an MjModel, an MjSpec, XML or a file, got {type(source).__name__}")
