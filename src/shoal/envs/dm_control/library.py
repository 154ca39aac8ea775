"""dm_control itself: importing it, making its envs, compiling its models.

Its releases have a table of every array in MuJoCo's structures, and fail for any model once MuJoCo has dropped one of
them. 1.0.50 installs with MuJoCo 4, which lacks nine arrays about deformable bodies. What MuJoCo does not have is
struck from the table, which is all that it takes: no task of the suite has such bodies.

It chooses a way to draw when it is imported and, unless told otherwise, takes one that needs a screen even where there
is none. One task draws whenever an episode begins, whether or not anybody looks.
"""

from __future__ import annotations

import ctypes.util
import importlib
import logging
import os
import sys
import warnings
from functools import cache
from typing import Any

from shoal.envs.dm_control import MISSING, has_dm_control
from shoal.errors import BackendUnavailable

_WAY_TO_DRAW = "MUJOCO_GL"
_TABLES = "dm_control.mujoco.wrapper.mjbindings.sizes"


@cache
def load_library() -> Any:
    """The package ``dm_control.suite``, made to work with the installed MuJoCo.

    Raises:
        BackendUnavailable: If dm_control is not installed.
    """
    if not has_dm_control():
        raise BackendUnavailable(MISSING)
    with warnings.catch_warnings():
        # It looks for a screen, and warns if there is none. Whoever draws will hear about it then.
        warnings.simplefilter("ignore")
        suite = _import_suite()
    logging.getLogger("absl").addFilter(_is_news)
    _strike_missing_arrays(importlib.import_module(_TABLES).array_sizes)
    return suite


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of the log is of use. What is out of date in the models is not for the user to fix."""
    return "'settotalmass' is deprecated" not in record.getMessage()


def _import_suite() -> Any:
    name = "dm_control.suite"
    has_screen = not sys.platform.startswith("linux") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if has_screen or os.environ.get(_WAY_TO_DRAW) or ctypes.util.find_library("EGL") is None:
        return importlib.import_module(name)
    os.environ[_WAY_TO_DRAW] = "egl"
    try:
        return importlib.import_module(name)
    except ImportError:  # the library exists, but nothing that it could draw on
        del os.environ[_WAY_TO_DRAW]
        return importlib.import_module(name)
    finally:
        os.environ.pop(_WAY_TO_DRAW, None)


def _strike_missing_arrays(tables: dict[str, dict[str, Any]]) -> None:
    mujoco: Any = importlib.import_module("mujoco")
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for name, struct in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
        for array in [array for array in tables[name] if not hasattr(struct, array)]:
            del tables[name][array]


def load_env(
    domain_name: str,
    task_name: str,
    task_kwargs: dict[str, Any],
    environment_kwargs: dict[str, Any] | None = None,
    visualize_reward: bool = False,
) -> Any:
    """An env of the suite."""
    suite = load_library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in the log
        return suite.load(domain_name, task_name, task_kwargs, environment_kwargs, visualize_reward)


def compile_model(domain_name: str, **options: Any) -> Any:
    """The ``MjModel`` of a domain.

    Args:
        domain_name: The domain, such as ``"cheetah"``.
        **options: Arguments of the domain's own function for its model.
    """
    load_library()
    xml, assets = importlib.import_module(f"dm_control.suite.{domain_name}").get_model_and_assets(**options)
    mujoco: Any = importlib.import_module("mujoco")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mujoco.MjModel.from_xml_string(xml if isinstance(xml, str) else xml.decode(), assets)
