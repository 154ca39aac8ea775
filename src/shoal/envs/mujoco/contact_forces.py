"""Contact forces after every step, on the simulator's own threads.

``mj_step`` does not compute ``cfrc_ext`` and its kin; whoever wants them calls ``mj_rnePostConstraint`` after the
step, for which a ``mujoco.batch.Batch`` has no place. MuJoCo's own way to extend a step is an engine plugin, whose
``advance`` is called once a step has been integrated. Its arguments begin with those of ``mj_rnePostConstraint``, and
calling that is all it has to do, so the function itself, from MuJoCo's library, serves as the plugin's ``advance``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import mujoco

from shoal.errors import ArgumentError

NAME = "shoal.contact_forces"
FIELDS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})

_PASSIVE = 1 << 2  # mjPLUGIN_PASSIVE
_POINTER = ctypes.c_void_p
_CountState = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)
_Init = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int)


class _Plugin(ctypes.Structure):
    """``mjpPlugin``, as in ``mjplugin.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("nattribute", ctypes.c_int),
        ("attributes", _POINTER),
        ("capabilityflags", ctypes.c_int),
        ("needstage", ctypes.c_int),
        ("nstate", _POINTER),
        ("nsensordata", _POINTER),
        ("init", _POINTER),
        ("destroy", _POINTER),
        ("copy", _POINTER),
        ("reset", _POINTER),
        ("compute", _POINTER),
        ("advance", _POINTER),
        ("visualize", _POINTER),
        ("actuator_act_dot", _POINTER),
        ("sdf_distance", _POINTER),
        ("sdf_gradient", _POINTER),
        ("sdf_staticdistance", _POINTER),
        ("sdf_attribute", _POINTER),
        ("sdf_aabb", _POINTER),
        ("room", _POINTER * 16),  # a later MuJoCo may clear and copy a larger structure
    )


# Kept for as long as the process lives, because MuJoCo calls them: there is no state, and nothing to prepare.
_no_state = _CountState(lambda model, instance: 0)
_no_init = _Init(lambda model, data, instance: 0)


@cache
def _register() -> None:
    folder = Path(mujoco.__file__).parent
    (path,) = [*folder.glob("libmujoco.so*"), *folder.glob("libmujoco*.dylib")][:1]
    library = ctypes.CDLL(str(path))
    plugin = _Plugin()
    library.mjp_defaultPlugin(ctypes.byref(plugin))
    plugin.name = NAME.encode()
    plugin.capabilityflags = _PASSIVE
    plugin.nstate, plugin.init = _address(_no_state), _address(_no_init)
    # These two are mandatory but have nothing to do; asking for the version comes close to that.
    plugin.reset = plugin.compute = _address(library.mj_version)
    plugin.advance = _address(library.mj_rnePostConstraint)
    library.mjp_registerPlugin(ctypes.byref(plugin))


def _address(function: Any) -> int | None:
    return ctypes.cast(function, _POINTER).value


def add_contact_forces(spec: mujoco.MjSpec) -> None:
    """Have a model compute its contact forces after every step.

    Raises:
        ArgumentError: If it has no body to put the plugin on.
    """
    _register()
    free = [body for body in spec.bodies if body.id != 0 and not body.plugin.active]
    if not free:
        raise ArgumentError("post_constraint: the model has no body without a plugin")
    spec.activate_plugin(NAME)
    spec.add_plugin(name=NAME, plugin_name=NAME, active=True)
    free[0].plugin.name = free[0].plugin.plugin_name = NAME
    free[0].plugin.active = True
